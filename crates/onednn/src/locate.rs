//! Where oneDNN is: an explicit path, its environment variable, the Python environment, or the names
//! under which a system installs it, in this order. A place that was named and doesn't have it is an
//! error; nothing else is tried then.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::OneDnnError;
use crate::names::{FILE_NAME, VARIABLE};

/// A place that may hold the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// This very file.
    File(PathBuf),
    /// A bare name for the system's loader.
    Name(&'static str),
}

/// The place to try.
pub(crate) fn location(explicit: Option<&Path>) -> Result<Location, OneDnnError> {
    if let Some(path) = explicit {
        return named(path, "the option");
    }
    if let Some(path) = variable(VARIABLE) {
        return named(&path, VARIABLE);
    }
    for name in ["SCRIMP_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        let found = variable(name)
            .and_then(|path| root(&path))
            .and_then(|root| in_environment(&root));
        if let Some(file) = found {
            return Ok(Location::File(file));
        }
    }
    Ok(Location::Name(FILE_NAME))
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn named(path: &Path, origin: &str) -> Result<Location, OneDnnError> {
    let file = if path.is_dir() {
        path.join(FILE_NAME)
    } else {
        path.to_path_buf()
    };
    if file.is_file() {
        return Ok(Location::File(file));
    }
    Err(OneDnnError::NotThere {
        path: path.to_path_buf(),
        origin: origin.into(),
    })
}

/// The environment that a variable names by its folder or by its interpreter (…/bin/python; the link
/// isn't followed, since it leads out of the environment).
fn root(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        path.parent().and_then(Path::parent).map(Path::to_path_buf)
    } else {
        Some(path.to_path_buf())
    }
}

/// The wheel puts the library beside the environment's own, not among the packages.
fn in_environment(root: &Path) -> Option<PathBuf> {
    ["lib", "lib64"]
        .map(|lib| root.join(lib).join(FILE_NAME))
        .into_iter()
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_place_without_the_library_is_an_error() {
        let error = location(Some(Path::new("/nonexistent/libdnnl.so.3"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "oneDNN isn't at `/nonexistent/libdnnl.so.3`, which the option names; give the path of {FILE_NAME} or of the folder it is in"
            )
        );
    }

    #[test]
    fn the_message_says_how_to_get_it() {
        let text = OneDnnError::NotFound.to_string();
        assert!(
            text.contains("pip install onednn-cpu-gomp") && text.contains("SCRIMP_ONEDNN"),
            "{text}"
        );
    }
}
