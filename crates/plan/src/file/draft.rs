//! Drafts: files that get their name only when they are complete.
//!
//! Where the operating system allows it, a draft has no name, so that nothing stays behind when the process
//! is killed. Elsewhere, and while a draft replaces an older file, it has a temporary name beside the output.
//! Its process then holds a lock on it. An unlocked file under such a name is left over from a process that
//! was killed, and the next draft of the same output removes it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::system;

/// The most drafts that different processes can have of one output at a time.
const MOST: usize = 1000;

/// A file without its final name; it vanishes when dropped.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    /// Its temporary path, if it needs one.
    aside: Option<PathBuf>,
}

impl Draft {
    /// Makes an empty draft in the output's folder, with the mode and, where permitted, the owner of the file
    /// that it will replace.
    pub(super) fn new(name: &Path) -> io::Result<Draft> {
        let replaced = fs::metadata(name).ok();
        let draft = match system::nameless(system::folder(name), replaced.as_ref()) {
            Some(file) => Draft { file, aside: None },
            None => {
                let make = |aside: &Path| locked(system::create(aside, replaced.as_ref())?, aside);
                let (file, aside) = beside(name, make)?;
                Draft {
                    file,
                    aside: Some(aside),
                }
            }
        };
        if let Some(replaced) = &replaced {
            system::resemble(&draft.file, replaced)?;
        }
        Ok(draft)
    }

    /// The file to write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the draft its final name, replacing any file that has it now.
    pub(super) fn publish(mut self, name: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        if self.aside.is_none() {
            match system::link(&self.file, name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // Only a file with a name can replace another file.
                    let _ = self.file.try_lock();
                    let named = beside(name, |aside| system::link(&self.file, aside))?;
                    self.aside = Some(named.1);
                }
                linked => return linked,
            }
        }
        if let Some(aside) = &self.aside {
            fs::rename(aside, name)?;
        }
        self.aside = None;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            // Nobody can be told of a failure here; the next draft of the same output tries again.
            let _ = fs::remove_file(aside);
        }
    }
}

/// Makes a file under the first free temporary name beside an output, and returns that name too.
fn beside<T>(name: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(T, PathBuf)> {
    let file_name = name
        .file_name()
        .ok_or_else(|| io::Error::other("the path doesn't end in a file name"))?;
    for number in 0..MOST {
        let mut hidden = OsString::from(".");
        hidden.push(file_name);
        hidden.push(format!(".{number}.tmp"));
        let aside = system::folder(name).join(hidden);
        let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        let mut made = make(&aside);
        if made.as_ref().is_err_and(taken) && remove_abandoned(&aside) {
            made = make(&aside);
        }
        match made {
            Err(error) if taken(&error) => {}
            made => return Ok((made?, aside)),
        }
    }
    Err(io::Error::other(
        "the folder is full of temporary files of earlier attempts; remove them",
    ))
}

/// Locks a new draft. If another process took it for abandoned between its creation and the lock, its name
/// counts as taken.
fn locked(file: File, aside: &Path) -> io::Result<File> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AlreadyExists.into()),
        // The file system has no locks. So nobody else can lock the draft either, and nobody removes it.
        Err(TryLockError::Error(_)) => Ok(file),
        Ok(()) if system::is_at(&file, aside) => Ok(file),
        Ok(()) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Removes a draft whose process is gone; returns false if there is none at this path.
fn remove_abandoned(aside: &Path) -> bool {
    let Ok(file) = system::open_itself(aside) else {
        return false;
    };
    // Only the holder of the lock renames or removes a draft, so the path still leads to it once it is
    // locked.
    file.try_lock().is_ok() && system::is_at(&file, aside) && fs::remove_file(aside).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_of_killed_processes_are_removed_and_those_of_others_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("plan.json");
        let aside = |number| folder.path().join(format!(".plan.json.{number}.tmp"));
        let write = |text: &str| {
            fs::write(&name, "old").expect("written");
            let draft = Draft::new(&name).expect("a draft");
            io::Write::write_all(&mut draft.file(), text.as_bytes()).expect("written");
            draft.publish(&name).expect("published");
            assert_eq!(fs::read_to_string(&name).expect("it is there"), text);
        };
        fs::write(aside(0), "half of a plan").expect("written");
        write("first");
        assert!(!aside(0).exists(), "nobody held it");
        fs::write(aside(0), "another's plan").expect("written");
        let other = File::open(aside(0)).expect("it is there");
        other.lock().expect("locked");
        write("second");
        assert_eq!(fs::read(aside(0)).expect("it is there"), b"another's plan");
        assert!(!aside(1).exists());
        // A link isn't a draft, whatever it points to.
        drop(other);
        fs::remove_file(aside(0)).expect("removed");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&name, aside(0)).expect("linked");
            write("third");
            assert!(aside(0).is_symlink());
        }
    }

    #[test]
    fn a_dropped_draft_vanishes() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = folder.path().join("plan.json");
        drop(Draft::new(&name).expect("a draft"));
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
    }
}
