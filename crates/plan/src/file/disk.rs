//! Reads files of bounded size, and only files that end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::{FileError, MAX_FILE_BYTES};

/// Reads a text file of at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// If the file can't be read, is larger, or isn't UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    text_of(file, path)
}

/// Reads a text file as [`read_text`] does, but only a regular file, so that it never waits for another
/// process.
///
/// # Errors
/// The errors of [`read_text`] and of [`open_regular`].
pub fn read_regular_text(path: &Path) -> Result<String, FileError> {
    let (file, _) = open_regular(path).map_err(|source| unreadable(path, source))?;
    text_of(file, path)
}

/// Opens a regular file and returns its size. Devices and pipes are refused without being read: a device may
/// have no end, and opening a pipe waits for its writer.
///
/// # Errors
/// If the operating system refuses, or the path isn't a regular file.
pub fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    let found = file.metadata()?;
    match found.is_file() {
        true => Ok((file, found.len())),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn text_of(file: File, path: &Path) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    // Reading one byte beyond the limit detects a file that grows or whose size is unknown.
    (&file)
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| unreadable(path, source))?;
    let read = bytes.len() as u64;
    if read > MAX_FILE_BYTES {
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        return Err(FileError::TooLarge {
            bytes: size.max(read),
            limit: MAX_FILE_BYTES,
        });
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText { path: path.into() })
}

fn unreadable(path: &Path, source: io::Error) -> FileError {
    FileError::Io {
        path: path.into(),
        doing: "read",
        source,
    }
}
