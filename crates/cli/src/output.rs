//! Output files: found unwritable before the work starts, written whole or not at all.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::NamedTempFile;

use crate::failure::{Failure, Kind};

/// A path that could be written when the command started.
#[derive(Clone, Debug)]
pub struct OutputFile(PathBuf);

impl OutputFile {
    /// Finds out now, before any work, whether the file can be written, and leaves nothing behind.
    pub fn claim(path: &Path) -> Result<OutputFile> {
        let output = OutputFile(path.to_owned());
        if path.is_dir() {
            return Err(output.failure("it is a folder").into());
        }
        output.temporary()?;
        Ok(output)
    }

    /// Writes the contents under a temporary name in the same folder, then renames.
    pub fn write(&self, contents: &[u8]) -> Result<()> {
        self.write_with(|out| out.write_all(contents))
    }

    /// Writes whatever `fill` writes, as [`OutputFile::write`] does.
    pub fn write_with(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let file = self.temporary()?;
        let mut buffered = BufWriter::new(file.as_file());
        let written = fill(&mut buffered)
            .and_then(|()| buffered.flush())
            .and_then(|()| file.as_file().sync_all());
        drop(buffered);
        written.map_err(|error| self.failure(error))?;
        file.persist(&self.0)
            .map_err(|error| self.failure(error.error))?;
        Ok(())
    }

    /// Where it is, for writers that rename by themselves.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A new file beside the output, removed when dropped.
    fn temporary(&self) -> Result<NamedTempFile> {
        let folder = match self.0.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".scrimp-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        Ok(builder
            .tempfile_in(folder)
            .map_err(|error| self.failure(error))?)
    }

    fn failure(&self, why: impl std::fmt::Display) -> Failure {
        let path = self.0.display();
        Failure::new(
            Kind::Output,
            format!("can't write '{path}': {why}; give a file in a folder that you may write to"),
        )
    }
}

/// Claims an optional output.
pub fn claim(path: Option<&PathBuf>) -> Result<Option<OutputFile>> {
    path.map(|path| OutputFile::claim(path)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_leave_nothing_and_writes_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        let output = OutputFile::claim(&path).unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        output.write(b"first").unwrap();
        output.write(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn folders_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(OutputFile::claim(folder.path()).is_err());
        assert!(OutputFile::claim(&folder.path().join("no/such/plan.json")).is_err());
    }
}
