//! Where a solver library is: an explicit path, its environment variable, the Python environment, or
//! the names under which a system installs it, in this order. A place that was named and doesn't have
//! it is an error; nothing else is tried then.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::SolverError;
use crate::library::Library;

/// A place that may hold a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// This very file.
    File(PathBuf),
    /// A bare name for the system's loader.
    Name(&'static str),
}

/// The locations to try for `library`. Every one is worth trying only if the ones before it fail
/// because nothing is there, and only bare names can.
pub(crate) fn locations(
    library: Library,
    explicit: Option<&Path>,
) -> Result<Vec<Location>, SolverError> {
    if let Some(path) = explicit {
        return named(library, path, "the option".into());
    }
    if let Some(path) = variable(library.variable()) {
        return named(library, Path::new(&path), library.variable().into());
    }
    for (origin, root) in python_roots() {
        if let Some(file) = in_environment(library, &root) {
            return Ok(vec![Location::File(file)]);
        }
        if origin == "SCRIMP_PYTHON" && !root.exists() {
            return Err(SolverError::NotThere {
                library,
                path: root,
                origin: origin.into(),
            });
        }
    }
    Ok(library
        .file_names()
        .iter()
        .map(|&name| Location::Name(name))
        .collect())
}

fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn named(library: Library, path: &Path, origin: String) -> Result<Vec<Location>, SolverError> {
    let file = if path.is_dir() {
        in_folder(library, path)
    } else {
        Some(path.to_path_buf())
    };
    match file.filter(|file| file.is_file()) {
        Some(file) => Ok(vec![Location::File(file)]),
        None => Err(SolverError::NotThere {
            library,
            path: path.to_path_buf(),
            origin,
        }),
    }
}

/// The Python environments to look into, with the variable that names each. `SCRIMP_PYTHON` may be
/// an interpreter or an environment's folder.
fn python_roots() -> Vec<(&'static str, PathBuf)> {
    let mut roots = Vec::new();
    for name in ["SCRIMP_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        let Some(path) = variable(name).map(PathBuf::from) else {
            continue;
        };
        if path.is_file() {
            // …/bin/python → …; the link isn't followed, since it leads out of the environment.
            roots.extend(
                path.parent()
                    .and_then(Path::parent)
                    .map(|root| (name, root.to_path_buf())),
            );
        } else {
            roots.push((name, path));
        }
    }
    roots
}

fn in_environment(library: Library, root: &Path) -> Option<PathBuf> {
    let mut packages = vec![root.join("Lib/site-packages")];
    for lib in [root.join("lib"), root.join("local/lib"), root.join("lib64")] {
        let Ok(entries) = lib.read_dir() else {
            continue;
        };
        let mut pythons: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
            .map(|entry| entry.path())
            .collect();
        pythons.sort();
        for python in pythons {
            packages.push(python.join("site-packages"));
            packages.push(python.join("dist-packages"));
        }
    }
    packages.iter().find_map(|folder| {
        let mut folders = library.wheel_folders().iter();
        folders.find_map(|inside| in_folder(library, &folder.join(inside)))
    })
}

/// The library's file in a folder: by its usual names, or as wheels rename it (`libhighs-1a2b.so.1`).
fn in_folder(library: Library, folder: &Path) -> Option<PathBuf> {
    let exact = library.file_names().iter().map(|name| folder.join(name));
    if let Some(file) = exact.into_iter().find(|file| file.is_file()) {
        return Some(file);
    }
    let stem = match library {
        Library::Highs => "libhighs-",
        Library::OrTools => "libortools-",
    };
    let mut renamed: Vec<PathBuf> = folder
        .read_dir()
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(stem))
        .map(|entry| entry.path())
        .collect();
    renamed.sort();
    renamed.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_place_without_the_library_is_an_error() {
        let nowhere = Path::new("/nonexistent/libhighs.so.1");
        let error = locations(Library::Highs, Some(nowhere)).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "HiGHS isn't at `/nonexistent/libhighs.so.1`, which the option names; give the path of {} or of the folder it is in",
                Library::Highs.file_name()
            )
        );
    }

    #[test]
    fn the_message_says_how_to_get_it() {
        let text = SolverError::NotFound {
            library: Library::OrTools,
        }
        .to_string();
        assert!(
            text.contains("pip install ortools") && text.contains("SCRIMP_ORTOOLS"),
            "{text}"
        );
    }
}
