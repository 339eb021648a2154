//! Reading and writing whole files: bounded, and never leaving half a file behind.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::{FileError, MAX_FILE_BYTES};

/// Reads a text file of at most [`MAX_FILE_BYTES`].
///
/// # Errors
/// If it can't be read, is larger, or isn't UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    let io = |source| FileError::Io {
        path: path.into(),
        doing: "read",
        source,
    };
    let file = File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too large, whatever its metadata say.
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let bytes = fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(FileError::TooLarge {
            bytes,
            limit: MAX_FILE_BYTES,
        });
    }
    String::from_utf8(bytes).map_err(|_| FileError::NotText { path: path.into() })
}

/// Writes a text file as [`write_bytes`] does.
///
/// # Errors
/// If the operating system refuses; the old file, if there was one, is then as it was.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    write_bytes(path, text.as_bytes()).map_err(|source| FileError::Io {
        path: path.into(),
        doing: "write",
        source,
    })
}

/// Writes a file: into a new file beside it first, which then takes its name. Whoever reads meanwhile
/// sees the old file or the new one.
///
/// # Errors
/// If the operating system refuses; the old file, if there was one, is then as it was.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, temporary) = create_beside(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    drop(file);
    let moved = written.and_then(|()| fs::rename(&temporary, path));
    if moved.is_err() {
        // The first error is the one to tell; a leftover that can't be removed changes nothing.
        let _ = fs::remove_file(&temporary);
    }
    moved
}

/// A new file in the same folder, hence on the same file system.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("the path doesn't end in a file name"))?;
    for attempt in 0..1000 {
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let temporary = path.with_file_name(temporary);
        match OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
        {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(
        "the folder is full of temporary files of earlier attempts; remove them",
    ))
}
