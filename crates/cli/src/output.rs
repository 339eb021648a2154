//! Output files. Each is checked for being writable before the work starts, and is written whole or not at
//! all.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use scrimp::plan::file::{FileIdentity, Output};

use crate::failure::{Failure, Kind};
use crate::stdout;

/// The outputs of a command. All are different files, and none is a file that the command reads.
#[derive(Debug, Default)]
pub struct Outputs(Vec<(FileIdentity, String)>);

impl Outputs {
    /// An empty list of outputs for a command that reads these files. A path that doesn't exist, such as the
    /// name of a built-in network, is ignored.
    pub fn beside<'a>(inputs: impl IntoIterator<Item = &'a Path>) -> Outputs {
        let mut outputs = Outputs::default();
        outputs.keep(inputs);
        outputs
    }

    /// Adds files that the command reads; outputs claimed from now on may not be among them.
    pub fn keep<'a>(&mut self, inputs: impl IntoIterator<Item = &'a Path>) {
        let there = inputs.into_iter().filter(|path| path.exists());
        let identity = |path| Some((FileIdentity::of(path)?, "read as well".into()));
        self.0.extend(there.filter_map(identity));
    }

    /// Checks, before any work, that an output can be written; leaves nothing behind.
    pub fn claim(&mut self, path: Option<&PathBuf>) -> Result<Option<OutputFile>> {
        path.map(|path| self.claimed(path)).transpose()
    }

    fn claimed(&mut self, path: &Path) -> Result<OutputFile> {
        let output = OutputFile::open(path)?;
        if let Some(identity) = FileIdentity::of(path) {
            if let Some((_, other)) = self.0.iter().find(|(taken, _)| *taken == identity) {
                let sentence = format!(
                    "can't write '{}': it is {other}; give another file",
                    path.display()
                );
                return Err(Failure::new(Kind::Output, sentence).into());
            }
            let taken = format!("the output '{}' too", path.display());
            self.0.push((identity, taken));
        }
        Ok(output)
    }
}

/// An output path that could be written when the command started.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    target: Target,
}

#[derive(Debug)]
enum Target {
    /// Standard output, where the command's answer goes.
    Answers,
    File(Output),
}

impl OutputFile {
    fn open(path: &Path) -> Result<OutputFile> {
        let target = match stdout::is_at(path) {
            true => Target::Answers,
            false => Target::File(Output::claim(path).map_err(|error| failure(path, error))?),
        };
        Ok(OutputFile {
            path: path.to_owned(),
            target,
        })
    }

    pub fn write(&self, contents: &[u8]) -> Result<()> {
        self.write_with(|out| out.write_all(contents))
    }

    /// Writes whatever `fill` writes, piece by piece.
    pub fn write_with(&self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let written = match &self.target {
            Target::Answers => stdout::write_with(fill),
            Target::File(output) => output.write_with(fill),
        };
        Ok(written.map_err(|error| failure(&self.path, error))?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn failure(path: &Path, why: io::Error) -> Failure {
    let path = path.display();
    Failure::new(
        Kind::Output,
        format!("can't write '{path}': {why}; give a file in a folder that you may write to"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_output_is_an_input_or_another_output() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("model"), "").unwrap();
        std::fs::hard_link(at("model"), at("same")).unwrap();
        let model = at("model");
        let mut outputs = Outputs::beside([&*model, Path::new("resnet50")]);
        let mut claim = |name: &str| {
            let claimed = outputs.claim(Some(&at(name)));
            claimed.map(drop).map_err(|error| error.to_string())
        };
        assert!(claim("same").unwrap_err().contains("it is read as well"));
        claim("plan").unwrap();
        let error = claim("plan").unwrap_err();
        assert!(error.contains("it is the output '"), "{error}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
        for _ in 0..2 {
            let null = outputs.claim(Some(&"/dev/null".into()));
            null.unwrap().unwrap().write(b"nothing").unwrap();
        }
    }
}
