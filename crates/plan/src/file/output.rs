//! Output files: a path that can't be written is refused before the work starts, and a file is written whole
//! or not at all.
//!
//! How a path is written depends on what it names:
//! * nothing yet, or a regular file: a draft takes the name once it is complete, with the mode and, where
//!   permitted, the owner of the file that it replaces;
//! * a symbolic link: its target is written in this way, and the link stays;
//! * a device or a pipe: the claim opens it, and the contents are written straight through;
//! * a folder, a disk, a read-only file, or a pipe that nobody reads: the claim is refused.

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
    /// A regular file or nothing yet. The last part of the path isn't a link.
    Name(PathBuf),
    /// A device or a pipe.
    Stream(File),
}

impl Output {
    /// Finds out whether the path can be written, without leaving anything behind.
    ///
    /// # Errors
    /// If the path can't be written; the message says why.
    pub fn claim(path: &Path) -> io::Result<Output> {
        let target = match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                if found.permissions().readonly() {
                    return Err(io::Error::other("it is a read-only file"));
                }
                // Opening the file changes nothing, and detects obstacles that its mode doesn't show.
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
    /// If the operating system refuses; a regular file then keeps its old contents.
    pub fn write(&self, contents: &[u8]) -> io::Result<()> {
        self.write_with(|out| out.write_all(contents))
    }

    /// Writes whatever `fill` writes, piece by piece. A process that reads a regular file meanwhile sees
    /// either all the old contents or all the new ones.
    ///
    /// # Errors
    /// The errors of `fill`, and refusals of the operating system; a regular file then keeps its old
    /// contents.
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
/// If the path can't be written; an old file then keeps its contents.
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
/// If the path can't be written; an old file then keeps its contents.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    Output::claim(path)?.write(bytes)
}

fn filled(file: &File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    fill(&mut buffered)?;
    buffered.flush()
}

/// The name that a draft will take, after trying to make a draft beside it.
fn replaceable(path: &Path) -> io::Result<Target> {
    let name = system::followed(path)?;
    Draft::new(&name)?;
    Ok(Target::Name(name))
}
