//! Which libraries this process has loaded. Each is loaded once and stays until the process ends; a
//! second copy of HiGHS is refused, for the C++ symbols of two copies clash.
#![allow(unsafe_code, reason = "loading a library runs its initializers")]

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::cpsat::ffi::CpSatApi;
use crate::error::SolverError;
use crate::highs::ffi::HighsApi;
use crate::library::Library;
use crate::locate::{Location, locations};

/// A loaded library: where from (as far as known), and its functions.
struct Loaded<T: 'static> {
    path: PathBuf,
    api: &'static T,
}

#[derive(Default)]
struct Registry {
    highs: Option<Loaded<HighsApi>>,
    cpsat: Option<Loaded<CpSatApi>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    highs: None,
    cpsat: None,
});

pub(crate) fn highs(explicit: Option<&Path>) -> Result<&'static HighsApi, SolverError> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let locations = locations(Library::Highs, explicit)?;
    if let Some(loaded) = &registry.highs {
        agree(&locations, &loaded.path)?;
        return Ok(loaded.api);
    }
    if let Some(cpsat) = &registry.cpsat {
        beside(&locations, &cpsat.path)?;
    }
    let (library, path) = open(Library::Highs, &locations)?;
    let api = HighsApi::new(library).map_err(|reason| unusable(Library::Highs, &path, reason))?;
    let api: &'static HighsApi = Box::leak(Box::new(api));
    registry.highs = Some(Loaded { path, api });
    Ok(api)
}

pub(crate) fn cpsat(explicit: Option<&Path>) -> Result<&'static CpSatApi, SolverError> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let locations = locations(Library::OrTools, explicit)?;
    if let Some(loaded) = &registry.cpsat {
        agree(&locations, &loaded.path)?;
        return Ok(loaded.api);
    }
    if let (Some(highs), Some(Location::File(asked))) = (&registry.highs, locations.first()) {
        beside(&[Location::File(highs.path.clone())], asked)?;
    }
    let (library, path) = open(Library::OrTools, &locations)?;
    let api = CpSatApi::new(library).map_err(|reason| unusable(Library::OrTools, &path, reason))?;
    let api: &'static CpSatApi = Box::leak(Box::new(api));
    registry.cpsat = Some(Loaded { path, api });
    Ok(api)
}

fn unusable(library: Library, path: &Path, reason: String) -> SolverError {
    SolverError::Unusable {
        library,
        path: path.to_path_buf(),
        reason,
    }
}

/// A solver library that this process has loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its file; a bare name where the system's loader found it.
    pub path: PathBuf,
    /// Its version, where it can be told.
    pub version: Option<String>,
}

/// Loads a library as the methods that need it would, and says which one it is.
///
/// # Errors
/// As loading it says: it isn't there, can't be used, or clashes with another copy.
pub fn installed(library: Library, explicit: Option<&Path>) -> Result<Installed, SolverError> {
    match library {
        Library::Highs => highs(explicit).map(drop)?,
        Library::OrTools => cpsat(explicit).map(drop)?,
    }
    let registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = match library {
        Library::Highs => registry.highs.as_ref().map(|loaded| {
            let version = Some(loaded.api.version());
            (&loaded.path, version)
        }),
        // Its C interface has no version; the wheel that it came in does.
        Library::OrTools => registry
            .cpsat
            .as_ref()
            .map(|loaded| (&loaded.path, wheel_version(&loaded.path, library))),
    };
    let (path, version) = loaded.ok_or(SolverError::NotFound { library })?;
    Ok(Installed {
        path: path.clone(),
        version,
    })
}

/// The version in the name of the wheel's folder of facts, beside the package that a file is in.
fn wheel_version(file: &Path, library: Library) -> Option<String> {
    let start = format!("{}-", library.wheel());
    file.ancestors().skip(1).take(3).find_map(|folder| {
        let mut names = folder
            .read_dir()
            .ok()?
            .flatten()
            .map(|entry| entry.file_name());
        names.find_map(|name| {
            let rest = name.to_str()?.strip_prefix(&start)?;
            rest.strip_suffix(".dist-info").map(str::to_owned)
        })
    })
}

/// What is loaded is what is asked for.
fn agree(locations: &[Location], loaded: &Path) -> Result<(), SolverError> {
    match locations.first() {
        Some(Location::File(asked)) if !same(asked, loaded) => Err(SolverError::Conflict {
            asked: asked.clone(),
            loaded: loaded.to_path_buf(),
        }),
        _ => Ok(()),
    }
}

/// A HiGHS that shares the process with this OR-tools must be the one in OR-tools' folder, if there
/// is one there: OR-tools has loaded it, or will.
fn beside(highs: &[Location], ortools: &Path) -> Result<(), SolverError> {
    let (Some(Location::File(highs)), Some(folder)) = (highs.first(), ortools.parent()) else {
        return Ok(());
    };
    let own = folder.join(Library::Highs.file_name());
    if own.is_file() && !same(highs, &own) {
        return Err(SolverError::Conflict {
            asked: highs.clone(),
            loaded: own,
        });
    }
    Ok(())
}

fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

fn open(
    library: Library,
    locations: &[Location],
) -> Result<(libloading::Library, PathBuf), SolverError> {
    for location in locations {
        let path = match location {
            Location::File(path) => path.clone(),
            Location::Name(name) => PathBuf::from(name),
        };
        // SAFETY: the file is a published solver library, named by the user or found under its own
        // name; its initializers only set up its own state, and it is never unloaded.
        match unsafe { libloading::Library::new(&path) } {
            Ok(handle) => return Ok((handle, path)),
            Err(error) if matches!(location, Location::File(_)) => {
                return Err(unusable(library, &path, error.to_string()));
            }
            Err(_) => {}
        }
    }
    Err(SolverError::NotFound { library })
}
