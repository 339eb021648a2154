//! Drafts: files that are written aside and take their name when they are complete.
//!
//! A draft has no name where the operating system offers that, so that nothing stays behind when the process is
//! killed. Elsewhere, and between naming a draft and renaming it over an older file, it has a name beside the
//! output. Its process then holds a lock on it: what lies under such a name and isn't locked is left over from a
//! process that was killed, and the next draft of the same output removes it.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::system;

/// Drafts of one output at a time, by different processes.
const MOST: usize = 1000;

/// A file that hasn't got its name yet; it vanishes when dropped.
#[derive(Debug)]
pub(super) struct Draft {
    file: File,
    /// Where it lies meanwhile, if it must have a name.
    aside: Option<PathBuf>,
}

impl Draft {
    /// An empty draft in the folder of what it is going to be, with the mode and, where permitted, the owner of
    /// the file that has this name now.
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

    /// What to write to.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the draft its name, in the place of what has it now.
    pub(super) fn publish(mut self, name: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        if self.aside.is_none() {
            match system::link(&self.file, name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // Only a file that has a name can replace another.
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
            // There is nobody to tell; the next draft of the same output tries again.
            let _ = fs::remove_file(aside);
        }
    }
}

/// Makes something under the first free name beside an output, and tells the name.
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

/// Locks a new draft. Between its creation and the lock another process may have taken it for abandoned: then
/// the name counts as taken.
fn locked(file: File, aside: &Path) -> io::Result<File> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(io::ErrorKind::AlreadyExists.into()),
        // A file system without locks: nobody else can lock the draft either, so nobody removes it.
        Err(TryLockError::Error(_)) => Ok(file),
        Ok(()) if system::is_at(&file, aside) => Ok(file),
        Ok(()) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Removes a draft whose process is gone; false if there is none at this path.
fn remove_abandoned(aside: &Path) -> bool {
    let Ok(file) = system::open_itself(aside) else {
        return false;
    };
    // Only the holder of the lock renames or removes a draft, so the path still leads to it afterwards.
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
        // A link isn't a draft, wherever it leads.
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
