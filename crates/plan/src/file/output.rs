//! Output files: found unwritable before the work starts, then written whole or not at all.
//!
//! What a path names decides how it is written:
//! * nothing yet, or a regular file: a draft takes the name once it is complete, with the mode and, where
//!   permitted, the owner of the file that it replaces;
//! * a symbolic link: what it leads to is written in this way, and the link stays;
//! * a device or a pipe: it is opened when it is claimed, and written through;
//! * a folder, a disk, a read-only file, a pipe that nobody reads: the claim is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::FileError;
use super::draft::Draft;
use super::system;

/// A path that could be written when it was claimed.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// A regular file or nothing yet; the last part of the path isn't a link.
    Name(PathBuf),
    /// A device or a pipe.
    Stream(File),
}

impl Output {
    /// Finds out whether the path can be written, and leaves nothing behind.
    ///
    /// # Errors
    /// If it can't; the message says why.
    pub fn claim(path: &Path) -> io::Result<Output> {
        let target = match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                if found.permissions().readonly() {
                    return Err(io::Error::other("it is a read-only file"));
                }
                // Opening changes nothing, and finds what the mode doesn't tell.
                OpenOptions::new().write(true).open(path)?;
                replaceable(path)?
            }
            Ok(found) if found.is_dir() => return Err(io::Error::other("it is a folder")),
            Ok(found) => Target::Stream(system::open_stream(path, &found)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => replaceable(path)?,
            Err(error) => return Err(error),
        };
        Ok(Output {
            path: path.into(),
            target,
        })
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the whole contents.
    ///
    /// # Errors
    /// If the operating system refuses; a regular file is then as it was.
    pub fn write(&self, contents: &[u8]) -> io::Result<()> {
        self.write_with(|out| out.write_all(contents))
    }

    /// Writes whatever `fill` writes, piece by piece. Whoever reads a regular file meanwhile sees the old
    /// contents or all of the new ones.
    ///
    /// # Errors
    /// Those of `fill`, or if the operating system refuses; a regular file is then as it was.
    pub fn write_with(
        &self,
        fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.target {
            Target::Stream(stream) => filled(stream, fill),
            Target::Name(name) => {
                let draft = Draft::new(name)?;
                filled(draft.file(), fill)?;
                draft.publish(name)
            }
        }
    }
}

/// Writes a text file as [`write_bytes`] does.
///
/// # Errors
/// If the path can't be written; the old file, if there was one, is then as it was.
pub fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    write_bytes(path, text.as_bytes()).map_err(|source| FileError::Io {
        path: path.into(),
        doing: "write",
        source,
    })
}

/// Claims and writes an output.
///
/// # Errors
/// If the path can't be written; the old file, if there was one, is then as it was.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Output::claim(path)?.write(bytes)
}

fn filled(file: &File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    fill(&mut buffered)?;
    buffered.flush()
}

/// The name that a draft is going to take; that a draft can lie beside it is tried.
fn replaceable(path: &Path) -> io::Result<Target> {
    let name = system::followed(path)?;
    Draft::new(&name)?;
    Ok(Target::Name(name))
}
