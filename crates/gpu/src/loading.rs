//! Finding and loading a library of C functions.

#![allow(unsafe_code, reason = "loading C libraries")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{GpuError, Library};

/// Declares a table of function pointers and its loader.
macro_rules! functions {
    ($($name:ident = $symbol:literal : fn($($arg:ty),* $(,)?) -> $ret:ty;)*) => {
        /// The library's functions, valid for as long as the library in it is loaded.
        pub(crate) struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            _library: libloading::Library,
        }

        impl Api {
            /// Every function; the first one that isn't there is named.
            pub(crate) fn of(library: libloading::Library) -> Result<Api, String> {
                $(
                    // SAFETY: the type is that of the C declaration of this function.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> $ret>($symbol.as_bytes())
                    };
                    let $name = *$name.map_err(|_| format!("it has no function `{}`", $symbol))?;
                )*
                Ok(Api { $($name,)* _library: library })
            }
        }
    };
}
pub(crate) use functions;

/// Libraries that were loaded, each once. They stay until the process ends.
pub(crate) struct Loaded<T: 'static>(Mutex<Vec<(PathBuf, &'static T)>>);

impl<T> Loaded<T> {
    pub const fn none() -> Loaded<T> {
        Loaded(Mutex::new(Vec::new()))
    }

    /// Loads a library from `explicit`, from the file that its variable names, from the Python environment if wheels
    /// bring it, or from where the system has it.
    ///
    /// # Errors
    /// It isn't there, can't be loaded, or lacks a function.
    pub fn load(
        &self,
        library: Library,
        explicit: Option<&Path>,
        make: impl Fn(libloading::Library, &Path) -> Result<T, String>,
    ) -> Result<&'static T, GpuError> {
        let variable = std::env::var_os(library.variable()).filter(|value| !value.is_empty());
        let paths = match (explicit, variable) {
            (Some(path), _) => vec![named(library, path, "the argument")?],
            (None, Some(path)) => {
                vec![named(library, Path::new(&path), library.variable())?]
            }
            (None, None) => {
                let names = library.file_names().iter().map(PathBuf::from);
                in_python(library).into_iter().chain(names).collect()
            }
        };
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in paths {
            if let Some((_, made)) = loaded.iter().find(|(known, _)| *known == path) {
                return Ok(made);
            }
            // SAFETY: a published library, named by the user or found under its own name; its initializers only
            // set up its own state, and it is never unloaded.
            let made = match unsafe { libloading::Library::new(&path) } {
                Ok(library) => make(library, &path),
                Err(_)
                    if library
                        .file_names()
                        .iter()
                        .any(|name| path == Path::new(name)) =>
                {
                    continue;
                }
                Err(error) => Err(error.to_string()),
            };
            let made = made.map_err(|reason| GpuError::Unusable {
                library,
                path: path.clone(),
                reason,
            })?;
            let made: &'static T = Box::leak(Box::new(made));
            loaded.push((path, made));
            return Ok(made);
        }
        Err(GpuError::NotFound { library })
    }
}

/// Where the active Python environment has a library of NVIDIA's.
fn in_python(library: Library) -> Option<PathBuf> {
    if matches!(library, Library::OpenCl | Library::Cuda) {
        return None;
    }
    let roots = ["SCRIMP_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX"].into_iter();
    let roots = roots.filter_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    roots.map(PathBuf::from).find_map(|root| {
        let root = match root.is_file() {
            // …/bin/python → …; the link isn't followed, since it leads out of the environment.
            true => root.parent()?.parent()?.to_path_buf(),
            false => root,
        };
        in_environment(&root, library.file_names())
    })
}

/// The first of these files in a package of NVIDIA's: `lib/python3.*/site-packages/nvidia/*/lib`.
fn in_environment(root: &Path, names: &[&str]) -> Option<PathBuf> {
    let folders = |folder: PathBuf| {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let pythons = ["lib", "lib64"]
        .into_iter()
        .flat_map(|lib| folders(root.join(lib)));
    let packages: Vec<PathBuf> = pythons
        .flat_map(|python| folders(python.join("site-packages/nvidia")))
        .collect();
    names.iter().find_map(|name| {
        let files = packages
            .iter()
            .map(|package| package.join("lib").join(name));
        files.into_iter().find(|file| file.is_file())
    })
}

fn named(library: Library, path: &Path, origin: &str) -> Result<PathBuf, GpuError> {
    if path.is_file() {
        return Ok(path.to_path_buf());
    }
    Err(GpuError::NotThere {
        library,
        path: path.to_path_buf(),
        origin: origin.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_found_in_an_environment() {
        let root = tempfile::tempdir().expect("a folder");
        let names = Library::Nvrtc.file_names();
        assert_eq!(in_environment(root.path(), names), None);
        let package = root
            .path()
            .join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&package).expect("created");
        std::fs::write(package.join("libcudart.so.13"), "another").expect("written");
        assert_eq!(in_environment(root.path(), names), None);
        let file = package.join(names[0]);
        std::fs::write(&file, "the library").expect("written");
        assert_eq!(in_environment(root.path(), names), Some(file));
    }
}
