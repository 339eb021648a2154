//! The loaded library, and its threads.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::any::Any;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::OneDnnError;
use crate::ffi::{self, Api, Version};
use crate::locate::{Location, location};

/// oneDNN, loaded. It stays until the process ends.
pub struct Library {
    pub(crate) api: Api,
    version: Version,
    path: PathBuf,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "oneDNN {} of {}", self.version, self.path.display())
    }
}

/// Settings of GNU's OpenMP runtime that say how a thread waits for work.
const WAITING: [&str; 2] = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"];

/// How often a thread looks for work before it sleeps: some hundredths of a millisecond.
const LOOKS: &str = "1000";

/// Has the library's threads sleep soon after they run out of work, unless the environment says how they
/// wait. Left alone they wait for milliseconds at full speed: on cores that do something else too, that
/// makes a training step two to three times as long.
///
/// # Safety
/// It changes the environment: no other thread may be running. Only a library that is loaded after it
/// heeds it.
pub unsafe fn wait_briefly() {
    if WAITING.iter().all(|name| std::env::var_os(name).is_none()) {
        // SAFETY: no other thread, by the caller's promise.
        unsafe { std::env::set_var(WAITING[1], LOOKS) };
    }
}

static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);

impl Library {
    /// Loads the library from `explicit`, or from where the environment or the system has it.
    ///
    /// # Errors
    /// It isn't there, can't be loaded, or isn't a version 3.x built with OpenMP; another file was
    /// asked for than is loaded.
    pub fn load(explicit: Option<&Path>) -> Result<&'static Library, OneDnnError> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let location = location(explicit)?;
        if let Some(library) = *loaded {
            return match location {
                Location::File(asked) if !same(&asked, &library.path) => {
                    Err(OneDnnError::Conflict {
                        asked,
                        loaded: library.path.clone(),
                    })
                }
                _ => Ok(library),
            };
        }
        let path = match location {
            Location::File(path) => path,
            Location::Name(name) => PathBuf::from(name),
        };
        let (api, version) = ffi::load(&path).map_err(|reason| match reason {
            Some(reason) => OneDnnError::Unusable {
                path: path.clone(),
                reason,
            },
            None => OneDnnError::NotFound,
        })?;
        let library: &'static Library = Box::leak(Box::new(Library { api, version, path }));
        *loaded = Some(library);
        Ok(library)
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The file it was loaded from, or the name by which the system's loader knew it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `f(slot)` at the same time on up to `threads` of the library's threads, each with its own
    /// slot below `threads`; one of them is the caller.
    pub fn parallel(&self, threads: usize, f: &(dyn Fn(usize) + Sync)) {
        let team = Team {
            f,
            thread: self.api.thread,
            panic: Mutex::new(None),
        };
        let count = c_uint::try_from(threads.max(1)).unwrap_or(c_uint::MAX);
        // SAFETY: `enter` is called with the address of `team`, which lives until all threads are done:
        // the call returns after that.
        unsafe { (self.api.parallel)(enter, (&raw const team).cast_mut().cast(), count, 0) };
        let panic = team.panic.into_inner();
        if let Some(panic) = panic.unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Sets how many threads the library's calls on this thread use, until the guard is dropped.
    pub(crate) fn with_threads(&self, threads: usize) -> Threads<'_> {
        // SAFETY: reads a setting of this thread.
        let before = unsafe { (self.api.max_threads)() };
        let wanted = c_int::try_from(threads.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: changes a setting of this thread.
        unsafe { (self.api.set_threads)(wanted) };
        Threads {
            library: self,
            before,
        }
    }
}

/// Puts a thread's former setting back.
pub(crate) struct Threads<'a> {
    library: &'a Library,
    before: c_int,
}

impl Drop for Threads<'_> {
    fn drop(&mut self) {
        // SAFETY: changes a setting of this thread.
        unsafe { (self.library.api.set_threads)(self.before) };
    }
}

/// What the threads of a parallel call share.
struct Team<'a> {
    f: &'a (dyn Fn(usize) + Sync),
    thread: unsafe extern "C" fn() -> c_int,
    /// A panic can't cross the runtime's frames; it goes on in the caller.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

extern "C" fn enter(team: *mut c_void) {
    // SAFETY: `parallel` passes its team, which all threads only share.
    let team = unsafe { &*team.cast_const().cast::<Team<'_>>() };
    // SAFETY: reads the number of this thread within its team.
    let slot = unsafe { (team.thread)() };
    let slot = usize::try_from(slot).unwrap_or(0);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (team.f)(slot))) {
        let mut first = team.panic.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(panic);
    }
}

fn same(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}
