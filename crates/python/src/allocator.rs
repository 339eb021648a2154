//! The functions that `torch.cuda.memory.CUDAPluggableAllocator` calls for every tensor on a GPU, and
//! what Python says to them. Memory comes from CUDA's own stream-ordered allocator, through functions
//! whose addresses Python gives; a step's requests are served from one slab of it, see `slab`.
#![allow(unsafe_code, reason = "the interface is C's, and memory comes from C")]

use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::failure::Failure;
use crate::slab::{Counts, Expected, Range, Seen, Slab};

/// `cudaMallocAsync`, `cudaFreeAsync` and `cudaDeviceSynchronize`, or what stands for them in tests.
#[derive(Clone, Copy)]
struct Source {
    get: unsafe extern "C" fn(*mut *mut c_void, usize, *mut c_void) -> c_int,
    give_back: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    wait: unsafe extern "C" fn() -> c_int,
}

impl Source {
    /// Memory, or null if there is none.
    fn get(self, bytes: usize, stream: usize) -> usize {
        let mut address = null_mut();
        // SAFETY: the signature is that of the function whose address Python gave.
        let failed = unsafe { (self.get)(&raw mut address, bytes, stream as *mut c_void) };
        if failed == 0 { address as usize } else { 0 }
    }

    fn give_back(self, address: usize, stream: usize) {
        // SAFETY: as above; the address came from `get` and isn't used any more.
        unsafe { (self.give_back)(address as *mut c_void, stream as *mut c_void) };
    }

    fn wait(self) {
        // SAFETY: as above.
        unsafe { (self.wait)() };
    }
}

#[derive(Default)]
struct State {
    source: Option<Source>,
    slab: Slab,
    /// The device that has the slab.
    device: c_int,
    /// What other streams than its own use: they are waited for before it is given back.
    shared: HashSet<usize>,
    allocated: u64,
    peak: u64,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives memory for a tensor; null for no bytes, or if there is no memory.
#[unsafe(no_mangle)]
pub extern "C" fn scrimp_slab_malloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let mut guard = locked();
    let (Some(state), Ok(bytes @ 1..)) = (guard.as_mut(), usize::try_from(size)) else {
        return null_mut();
    };
    let Some(source) = state.source else {
        return null_mut();
    };
    let here = device == state.device;
    let served = here
        .then(|| state.slab.serve(bytes as u64, stream as usize))
        .flatten();
    let address = served.unwrap_or_else(|| source.get(bytes, stream as usize));
    if address != 0 && here {
        state.slab.note(address, bytes as u64, served.is_some());
        state.allocated += bytes as u64;
        state.peak = state.peak.max(state.allocated);
    }
    address as *mut c_void
}

/// Takes back what `scrimp_slab_malloc` gave.
#[unsafe(no_mangle)]
pub extern "C" fn scrimp_slab_free(
    address: *mut c_void,
    size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    let mut guard = locked();
    let Some(state) = guard.as_mut() else { return };
    let (Some(source), Ok(bytes @ 1..)) = (state.source, usize::try_from(size)) else {
        return;
    };
    if state.shared.remove(&(address as usize)) {
        source.wait();
    }
    let here = device == state.device;
    if here {
        state.allocated = state.allocated.saturating_sub(bytes as u64);
    }
    if !(here && state.slab.release(address as usize, bytes as u64)) {
        source.give_back(address as usize, stream as usize);
    }
}

/// Hears that another stream uses memory, too.
#[unsafe(no_mangle)]
pub extern "C" fn scrimp_slab_record_stream(address: *mut c_void, _stream: *mut c_void) {
    if let Some(state) = locked().as_mut() {
        state.shared.insert(address as usize);
    }
}

/// Says where memory comes from: the addresses of functions with the signatures of `cudaMallocAsync`,
/// `cudaFreeAsync` and `cudaDeviceSynchronize`, and the device that may have a slab.
#[pyfunction]
pub fn slab_source(
    get: usize,
    give_back: usize,
    wait: usize,
    device: c_int,
) -> Result<(), Failure> {
    if [get, give_back, wait].contains(&0) {
        return Err(Failure::Option(
            "a function for memory has the address 0".into(),
        ));
    }
    // SAFETY: Python gives the addresses of functions with these signatures, and none is 0.
    let source = unsafe {
        Source {
            get: std::mem::transmute::<
                usize,
                unsafe extern "C" fn(*mut *mut c_void, usize, *mut c_void) -> c_int,
            >(get),
            give_back: std::mem::transmute::<
                usize,
                unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            >(give_back),
            wait: std::mem::transmute::<usize, unsafe extern "C" fn() -> c_int>(wait),
        }
    };
    *locked() = Some(State {
        source: Some(source),
        device,
        ..State::default()
    });
    Ok(())
}

/// Makes the slab at least so large, for a stream; says whether it is. One that is in use stays as it is.
#[pyfunction]
pub fn slab_reserve(bytes: u64, stream: usize) -> bool {
    let mut guard = locked();
    let Some(state) = guard.as_mut() else {
        return false;
    };
    let Some(source) = state.source else {
        return false;
    };
    if let Some(range) = state.slab.range {
        if range.bytes >= bytes && range.stream == stream {
            return true;
        }
        if !state.slab.live().is_empty() {
            return false;
        }
        source.give_back(range.base, range.stream);
        state.slab.range = None;
    }
    let base = usize::try_from(bytes).map_or(0, |bytes| source.get(bytes, stream));
    state.slab.range = (base != 0).then_some(Range {
        base,
        bytes,
        stream,
    });
    base != 0
}

/// Begins a step: what it will ask for, or nothing to have its requests written down.
#[pyfunction]
pub fn slab_begin(table: Vec<Expected>) {
    if let Some(state) = locked().as_mut() {
        state.slab.begin(table);
    }
}

/// Ends a step: how many requests were served, how many places were taken, how many weren't served in
/// all, their most bytes at once; and the requests of a step without a table.
#[pyfunction]
pub fn slab_end() -> ((u64, u64, u64, u64), Vec<Seen>) {
    let ended = locked().as_mut().map(|state| state.slab.end());
    let (
        Counts {
            served,
            taken,
            elsewhere,
            outside,
        },
        seen,
    ) = ended.unwrap_or_default();
    ((served, taken, elsewhere, outside), seen)
}

/// What is in use in the slab: offsets and bytes.
#[pyfunction]
pub fn slab_live() -> Vec<(u64, u64)> {
    locked()
        .as_ref()
        .map_or_else(Vec::new, |state| state.slab.live())
}

/// Bytes asked for and in use now and at most, and those of the slab; `reset` begins the most anew.
#[pyfunction]
pub fn slab_usage(reset: bool) -> (u64, u64, u64) {
    let mut guard = locked();
    let Some(state) = guard.as_mut() else {
        return (0, 0, 0);
    };
    let peak = state.peak;
    if reset {
        state.peak = state.allocated;
    }
    (
        state.allocated,
        peak,
        state.slab.range.map_or(0, |range| range.bytes),
    )
}
