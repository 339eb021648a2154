//! The functions of CP-SAT's C interface, and the only calls to them.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::ptr;

type NewEnv = unsafe extern "C" fn() -> *mut c_void;
type OnEnv = unsafe extern "C" fn(*mut c_void);
type SolveIn = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    c_int,
    *const c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
);

unsafe extern "C" {
    /// The C library's; OR-tools allocates its answer with `malloc`.
    fn free(pointer: *mut c_void);
}

/// CP-SAT's functions, valid for as long as the library in it is loaded.
pub(crate) struct CpSatApi {
    new_env: NewEnv,
    destroy_env: OnEnv,
    stop_search: OnEnv,
    solve: SolveIn,
    _library: libloading::Library,
}

impl CpSatApi {
    pub(crate) fn new(library: libloading::Library) -> Result<CpSatApi, String> {
        /// Copies one function pointer out of the library.
        fn get<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
            // SAFETY: the callers below ask for the types of the C declarations.
            match unsafe { library.get::<T>(name.as_bytes()) } {
                Ok(symbol) => Ok(*symbol),
                Err(error) => Err(error.to_string()),
            }
        }
        Ok(CpSatApi {
            new_env: get(&library, "SolveCpNewEnv")?,
            destroy_env: get(&library, "SolveCpDestroyEnv")?,
            stop_search: get(&library, "SolveCpStopSearch")?,
            solve: get(&library, "SolveCpInterruptible")?,
            _library: library,
        })
    }
}

/// The state of one solve, which another thread may stop.
pub(super) struct Env {
    api: &'static CpSatApi,
    env: *mut c_void,
}

// SAFETY: the object behind the pointer may be stopped from any thread while one thread solves in
// it, and be destroyed on any; `solve` is called once, by the thread that runs the solve.
unsafe impl Send for Env {}
// SAFETY: as above.
unsafe impl Sync for Env {}

impl Drop for Env {
    fn drop(&mut self) {
        // SAFETY: made by `new_env`, destroyed once, and nobody uses it any more.
        unsafe { (self.api.destroy_env)(self.env) }
    }
}

impl Env {
    pub(super) fn new(api: &'static CpSatApi) -> Env {
        // SAFETY: no arguments; the allocation doesn't fail but aborts.
        let env = unsafe { (api.new_env)() };
        Env { api, env }
    }

    /// Asks a running solve to end.
    pub(super) fn stop(&self) {
        // SAFETY: a live environment.
        unsafe { (self.api.stop_search)(self.env) }
    }

    /// Solves an encoded model with encoded parameters and returns the encoded response. Both have
    /// fewer than 2^31 bytes.
    pub(super) fn solve(&self, model: &[u8], parameters: &[u8]) -> Vec<u8> {
        let (mut answer, mut length) = (ptr::null_mut(), 0);
        // SAFETY: a live environment and two readable buffers of these lengths; the messages were
        // encoded by us, hence parse; the answer is ours to free.
        unsafe {
            (self.api.solve)(
                self.env,
                model.as_ptr().cast(),
                model.len() as c_int,
                parameters.as_ptr().cast(),
                parameters.len() as c_int,
                &raw mut answer,
                &raw mut length,
            );
        }
        if answer.is_null() {
            return Vec::new();
        }
        // SAFETY: the solver wrote that many bytes there.
        let bytes =
            unsafe { std::slice::from_raw_parts(answer.cast::<u8>(), length.max(0) as usize) }
                .to_vec();
        // SAFETY: from `malloc`, freed once, no longer borrowed.
        unsafe { free(answer) };
        bytes
    }
}
