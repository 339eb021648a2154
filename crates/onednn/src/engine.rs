//! Engines: a number of threads of the library, and the tensors that their primitives work on.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use crate::desc::{Desc, dims};
use crate::error::{OneDnnError, done};
use crate::ffi::{self, Api, Dims, Handle, MAX_RANK};
use crate::library::Library;

/// The library's CPU with a number of threads: makes primitives and runs them one after another.
pub struct Engine {
    pub(crate) library: &'static Library,
    pub(crate) handle: Handle,
    /// Every primitive's attributes: its scratchpad is the caller's.
    pub(crate) attributes: Handle,
    /// The same, and what is computed is added to what the destination holds.
    pub(crate) adding: Handle,
    /// Who holds it runs a primitive.
    pub(crate) stream: Mutex<Stream>,
    pub(crate) threads: usize,
}

/// A stream, used by one thread at a time.
pub(crate) struct Stream(pub(crate) Handle);

// SAFETY: a stream isn't bound to a thread; the engine's lock has one thread use it at a time.
unsafe impl Send for Stream {}
// SAFETY: engine and attributes aren't bound to a thread and are only read after they were made.
unsafe impl Send for Engine {}
// SAFETY: as above; the stream is behind a lock.
unsafe impl Sync for Engine {}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} with {} threads", self.library, self.threads)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let api = &self.library.api;
        let stream = self.stream.get_mut();
        let stream = stream.unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: each was created by this engine and is destroyed once; null ones are skipped by
        // the library, which answers with a status.
        unsafe {
            if !stream.0.is_null() {
                (api.stream_destroy)(stream.0);
            }
            for attributes in [self.attributes, self.adding] {
                if !attributes.is_null() {
                    (api.attr_destroy)(attributes);
                }
            }
            (api.engine_destroy)(self.handle);
        }
    }
}

impl Engine {
    /// An engine whose primitives use this many threads.
    ///
    /// # Errors
    /// The library has no CPU engine.
    pub fn new(library: &'static Library, threads: usize) -> Result<Arc<Engine>, OneDnnError> {
        let api = &library.api;
        let mut handle = null_mut();
        // SAFETY: the places written to are ours, here and below.
        done("dnnl_engine_create", unsafe {
            (api.engine_create)(&raw mut handle, ffi::CPU, 0)
        })?;
        let mut engine = Engine {
            library,
            handle,
            attributes: null_mut(),
            adding: null_mut(),
            stream: Mutex::new(Stream(null_mut())),
            threads: threads.max(1),
        };
        let mut stream = null_mut();
        // SAFETY: the engine is alive.
        done("dnnl_stream_create", unsafe {
            (api.stream_create)(&raw mut stream, handle, ffi::IN_ORDER)
        })?;
        engine.stream = Mutex::new(Stream(stream));
        for attributes in [&mut engine.attributes, &mut engine.adding] {
            // SAFETY: as above.
            done("dnnl_primitive_attr_create", unsafe {
                (api.attr_create)(attributes)
            })?;
            // SAFETY: the attributes are alive.
            done("dnnl_primitive_attr_set_scratchpad_mode", unsafe {
                (api.attr_scratchpad)(*attributes, ffi::USER_SCRATCHPAD)
            })?;
        }
        engine.add_sum()?;
        Ok(Arc::new(engine))
    }

    /// Completes the attributes that add.
    fn add_sum(&self) -> Result<(), OneDnnError> {
        let api = &self.library.api;
        let mut sum = null_mut();
        // SAFETY: the place written to is ours.
        done("dnnl_post_ops_create", unsafe {
            (api.post_ops_create)(&raw mut sum)
        })?;
        // SAFETY: the list and the attributes are alive; the attributes keep a copy of the list, which is
        // destroyed once.
        let [appended, set, destroyed] = unsafe {
            [
                (api.post_ops_sum)(sum, 1.0, 0, ffi::UNDEFINED),
                (api.attr_post_ops)(self.adding, sum),
                (api.post_ops_destroy)(sum),
            ]
        };
        done("dnnl_post_ops_append_sum", appended)?;
        done("dnnl_primitive_attr_set_post_ops", set)?;
        done("dnnl_post_ops_destroy", destroyed)
    }

    /// The attributes of a primitive that adds to its destination, or writes it.
    pub(crate) fn attributes(&self, adds: bool) -> Handle {
        match adds {
            true => self.adding,
            false => self.attributes,
        }
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Threads that its primitives use.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// A tensor whose last axis is contiguous, the others outside of it in order.
    pub fn dense(&self, shape: &[usize]) -> Result<Desc, OneDnnError> {
        let mut strides = [1; MAX_RANK];
        let rank = shape.len().min(MAX_RANK);
        for axis in (0..rank.saturating_sub(1)).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        self.strided(shape, &strides[..rank])
    }

    /// A tensor with these steps, in elements, along its axes.
    pub fn strided(&self, shape: &[usize], strides: &[usize]) -> Result<Desc, OneDnnError> {
        self.desc(shape, |api, handle, rank, shape| {
            let strides = dims(strides);
            // SAFETY: both arrays hold the greatest number of axes; the library reads the first `rank`.
            let status =
                unsafe { (api.desc_strided)(handle, rank, shape, ffi::F32, &raw const strides) };
            done("dnnl_memory_desc_create_with_strides", status)
        })
    }

    /// A tensor in whatever format suits the primitive that is made with it.
    pub fn any(&self, shape: &[usize]) -> Result<Desc, OneDnnError> {
        self.desc(shape, |api, handle, rank, shape| {
            // SAFETY: as in `strided`.
            let status = unsafe { (api.desc_tagged)(handle, rank, shape, ffi::F32, ffi::ANY) };
            done("dnnl_memory_desc_create_with_tag", status)
        })
    }

    fn desc(
        &self,
        shape: &[usize],
        create: impl Fn(&Api, *mut Handle, c_int, *const Dims) -> Result<(), OneDnnError>,
    ) -> Result<Desc, OneDnnError> {
        if shape.is_empty() || shape.len() > MAX_RANK {
            return Err(OneDnnError::Rank { rank: shape.len() });
        }
        let mut handle = null_mut();
        let lengths = dims(shape);
        create(
            &self.library.api,
            &raw mut handle,
            shape.len() as c_int,
            &raw const lengths,
        )?;
        Ok(Desc {
            library: self.library,
            handle,
        })
    }
}
