//! A file as a memory: without a name, reserved before it is used, read and written past the system's caches.
//!
//! The file has no name from the start, so that nothing is left behind however the process ends. Direct I/O
//! takes no memory outside of the arenas and hardly any time of the processor. It needs addresses, offsets and
//! lengths that are multiples of [`PAGE`].

use std::path::Path;

use crate::error::RunError;
use crate::span::PAGE;

/// A file of fixed size.
#[derive(Debug)]
pub(crate) struct FileMemory {
    /// The folder, for messages.
    folder: String,
    bytes: u64,
    #[cfg(target_os = "linux")]
    file: std::fs::File,
    /// What the file system reserved, in its blocks.
    #[cfg(target_os = "linux")]
    blocks: u64,
}

/// Whether direct I/O can start or end at this offset or take this many bytes.
pub(crate) fn aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(PAGE)
}

/// The bytes that a file in this folder could have that values are swapped to.
///
/// # Errors
/// There is no such folder, files can't be made there, or its file system has no direct I/O.
pub fn swap_room(folder: &Path) -> Result<u64, RunError> {
    FileMemory::new(folder, 0)?;
    free_bytes(folder)
}

#[cfg(target_os = "linux")]
use linux::free_bytes;

#[cfg(not(target_os = "linux"))]
fn free_bytes(_: &Path) -> Result<u64, RunError> {
    Ok(0)
}

impl FileMemory {
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn failed(&self, doing: &'static str, offset: u64, reason: impl ToString) -> RunError {
        RunError::SwapFile {
            folder: self.folder.clone(),
            doing,
            offset,
            reason: reason.to_string(),
        }
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, open, statvfs};
    use rustix::io::Errno;

    use super::{FileMemory, PAGE, RunError};

    /// Bytes that a folder has room for.
    pub fn free_bytes(folder: &Path) -> Result<u64, RunError> {
        let free = statvfs(folder).map_err(|error| RunError::SwapFolder {
            folder: folder.display().to_string(),
            reason: error.to_string(),
        })?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize))
    }

    impl FileMemory {
        /// Reserves a file of this size in a folder.
        ///
        /// # Errors
        /// The folder doesn't have that much room, which is found out before anything is taken, or its file
        /// system can't do this.
        pub fn new(folder: &Path, bytes: u64) -> Result<FileMemory, RunError> {
            let needed = bytes.next_multiple_of(PAGE);
            let name = folder.display().to_string();
            let refused = |reason: String| RunError::SwapFolder {
                folder: name.clone(),
                reason,
            };
            let available = free_bytes(folder)?;
            if needed > available {
                return Err(RunError::SwapRoom {
                    folder: name,
                    needed,
                    available,
                });
            }
            let flags = OFlags::TMPFILE | OFlags::DIRECT | OFlags::RDWR | OFlags::CLOEXEC;
            let file = open(folder, flags, Mode::RUSR | Mode::WUSR).map_err(|error| {
                refused(match error {
                    Errno::INVAL | Errno::OPNOTSUPP | Errno::ISDIR => {
                        "its file system has no files without a name or no direct I/O".into()
                    }
                    other => other.to_string(),
                })
            })?;
            if needed > 0 {
                fallocate(&file, FallocateFlags::empty(), 0, needed).map_err(|error| {
                    refused(format!("reserving {needed} bytes failed: {error}"))
                })?;
            }
            let what = fstat(&file).map_err(|error| refused(error.to_string()))?;
            Ok(FileMemory {
                folder: name,
                bytes: needed,
                file: File::from(file),
                blocks: what.st_blocks as u64,
            })
        }

        /// Whether everything that was reserved is still there. A file that was shortened and then written
        /// beyond its end would give zeros in between.
        fn whole(&self, offset: u64) -> Result<(), RunError> {
            let what = fstat(&self.file).map_err(|error| self.failed("reading", offset, error))?;
            match what.st_size as u64 >= self.bytes && what.st_blocks as u64 >= self.blocks {
                true => Ok(()),
                false => Err(self.failed("reading", offset, "the file was shortened")),
            }
        }

        /// A file that is there already, for tests of what can go wrong with it.
        #[cfg(test)]
        pub fn of(file: File, bytes: u64) -> FileMemory {
            FileMemory {
                folder: "tests".into(),
                bytes,
                file,
                blocks: 0,
            }
        }

        /// Fills memory from an offset on.
        pub fn read(&self, offset: u64, memory: &mut [u8]) -> Result<(), RunError> {
            let mut done = 0;
            while done < memory.len() {
                let at = offset + done as u64;
                match self.file.read_at(&mut memory[done..], at) {
                    Ok(0) => return Err(self.failed("reading", at, "the file ends there")),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.failed("reading", at, error)),
                }
            }
            self.whole(offset)
        }

        /// Writes memory from an offset on.
        pub fn write(&self, offset: u64, memory: &[u8]) -> Result<(), RunError> {
            let mut done = 0;
            while done < memory.len() {
                let at = offset + done as u64;
                match self.file.write_at(&memory[done..], at) {
                    Ok(0) => return Err(self.failed("writing", at, "nothing more is taken")),
                    Ok(count) => done += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.failed("writing", at, error)),
                }
            }
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl FileMemory {
    /// Files as memory need Linux.
    pub fn new(folder: &Path, _: u64) -> Result<FileMemory, RunError> {
        Err(RunError::SwapFolder {
            folder: folder.display().to_string(),
            reason: "a file as memory needs Linux".into(),
        })
    }

    pub fn read(&self, offset: u64, _: &mut [u8]) -> Result<(), RunError> {
        Err(self.failed("reading", offset, "a file as memory needs Linux"))
    }

    pub fn write(&self, offset: u64, _: &[u8]) -> Result<(), RunError> {
        Err(self.failed("writing", offset, "a file as memory needs Linux"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use std::fs::OpenOptions;

    const BLOCK: u64 = PAGE;

    fn arena(blocks: u64) -> Arena {
        Arena::new(blocks * BLOCK).expect("memory")
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = FileMemory::new(folder.path(), 4 * BLOCK).expect("room");
        let mut memory = arena(2);
        memory.bytes_at_mut(0, 2 * BLOCK).fill(7);
        file.write(BLOCK, memory.bytes_at(0, 2 * BLOCK))
            .expect("written");
        memory.bytes_at_mut(0, 2 * BLOCK).fill(0);
        file.read(2 * BLOCK, memory.bytes_at_mut(0, BLOCK))
            .expect("read");
        assert!(memory.bytes_at(0, BLOCK).iter().all(|&byte| byte == 7));
        let files = std::fs::read_dir(folder.path()).expect("a folder");
        assert_eq!(files.count(), 0, "the file has no name");
    }

    #[test]
    fn a_folder_without_room_is_refused_with_the_number_needed() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes = 1 << 60;
        let refused = FileMemory::new(folder.path(), bytes).expect_err("no disk is that large");
        match refused {
            RunError::SwapRoom { needed, .. } => assert_eq!(needed, bytes),
            other => panic!("{other}"),
        }
        let missing = FileMemory::new(&folder.path().join("none"), BLOCK);
        assert!(matches!(missing, Err(RunError::SwapFolder { .. })));
    }

    #[test]
    fn what_goes_wrong_with_the_file_is_told() {
        let mut memory = arena(1);
        let open = |path: &str| OpenOptions::new().read(true).write(true).open(path);
        // Reading the first page of a process's memory gives an input/output error; writing to a full device
        // finds no space.
        let faulty = FileMemory::of(open("/proc/self/mem").expect("our own"), BLOCK);
        let error = faulty
            .read(0, memory.bytes_at_mut(0, BLOCK))
            .expect_err("EIO");
        assert!(error.to_string().contains("Input/output error"), "{error}");
        let full = FileMemory::of(open("/dev/full").expect("there"), BLOCK);
        let error = full
            .write(0, memory.bytes_at(0, BLOCK))
            .expect_err("ENOSPC");
        assert!(error.to_string().contains("No space left"), "{error}");
        let folder = tempfile::tempdir().expect("a folder");
        let short = FileMemory::new(folder.path(), 2 * BLOCK).expect("room");
        short.read(0, memory.bytes_at_mut(0, BLOCK)).expect("whole");
        short.file.set_len(0).expect("shortened");
        short
            .write(BLOCK, memory.bytes_at(0, BLOCK))
            .expect("longer again");
        let error = short
            .read(0, memory.bytes_at_mut(0, BLOCK))
            .expect_err("zeros");
        assert!(error.to_string().contains("was shortened"), "{error}");
        let shrunk = tempfile::tempfile().expect("a file");
        shrunk.set_len(BLOCK / 2).expect("shortened");
        let shrunk = FileMemory::of(shrunk, BLOCK);
        let error = shrunk
            .read(0, memory.bytes_at_mut(0, BLOCK))
            .expect_err("it ends early");
        assert!(error.to_string().contains("the file ends there"), "{error}");
    }
}
