//! Engines, descriptors of memory, and the primitives that an engine makes.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

use crate::error::OneDnnError;
use crate::ffi::{self, Api, Dims, Handle, MAX_RANK, Status};
use crate::library::Library;
use crate::primitive::{Arg, Primitive};

/// Turns a status into a result.
pub(crate) fn done(call: &'static str, status: Status) -> Result<(), OneDnnError> {
    match status {
        ffi::SUCCESS => Ok(()),
        status => Err(OneDnnError::Failed { call, status }),
    }
}

/// The library's CPU with a number of threads: makes primitives and runs them one after another.
pub struct Engine {
    pub(crate) library: &'static Library,
    pub(crate) handle: Handle,
    /// Every primitive's attributes: its scratchpad is the caller's.
    pub(crate) attributes: Handle,
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
            if !self.attributes.is_null() {
                (api.attr_destroy)(self.attributes);
            }
            (api.engine_destroy)(self.handle);
        }
    }
}

/// Shape and memory format of a tensor of 32-bit floats.
pub struct Desc {
    pub(crate) library: &'static Library,
    pub(crate) handle: Handle,
}

// SAFETY: a descriptor is a plain record that nothing changes after it was made.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.library.api.desc_destroy)(self.handle) };
    }
}

impl PartialEq for Desc {
    fn eq(&self, other: &Desc) -> bool {
        // SAFETY: both are alive.
        unsafe { (self.library.api.desc_equal)(self.handle, other.handle) != 0 }
    }
}

impl std::fmt::Debug for Desc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

impl Desc {
    /// Bytes of memory that it describes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // SAFETY: the descriptor is alive.
        unsafe { (self.library.api.desc_size)(self.handle) }
    }

    /// Another one like it.
    ///
    /// # Errors
    /// The library has no memory left.
    pub fn duplicate(&self) -> Result<Desc, OneDnnError> {
        Desc::copy(self.library, self.handle)
    }

    /// A copy of a descriptor that something else owns.
    pub(crate) fn copy(library: &'static Library, of: Handle) -> Result<Desc, OneDnnError> {
        let mut handle = null_mut();
        // SAFETY: `of` is alive.
        done("dnnl_memory_desc_clone", unsafe {
            (library.api.desc_clone)(&raw mut handle, of)
        })?;
        Ok(Desc { library, handle })
    }
}

/// What a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// `src, weights[, bias] -> dst`
    Forward,
    /// `diff_dst, weights -> diff_src`
    Data,
    /// `src, diff_dst -> diff_weights`
    Weights,
}

/// A convolution's tensors, each as the source, weights or destination or as the gradient of it, and
/// its geometry per spatial axis.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// `[N, C, H, W]`
    pub source: &'a Desc,
    /// `[O, C, kh, kw]` or, with groups, `[G, O/G, C/G, kh, kw]`
    pub weights: &'a Desc,
    /// `[O]`, forward only.
    pub bias: Option<&'a Desc>,
    /// `[N, O, H', W']`
    pub destination: &'a Desc,
    /// Step between windows.
    pub stride: [usize; 2],
    /// Step between a window's elements, 1 for neighbours.
    pub dilation: [usize; 2],
    /// Padding before the first row and column.
    pub pad_begin: [usize; 2],
    /// Padding after the last row and column.
    pub pad_end: [usize; 2],
}

pub(crate) fn dims(values: &[usize]) -> Dims {
    let mut dims = [0; MAX_RANK];
    for (to, &value) in dims.iter_mut().zip(values) {
        *to = value as i64;
    }
    dims
}

/// A primitive descriptor, destroyed when it goes.
pub(crate) struct Descriptor {
    pub(crate) library: &'static Library,
    pub(crate) handle: Handle,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.library.api.pd_destroy)(self.handle) };
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
            stream: Mutex::new(Stream(null_mut())),
            threads: threads.max(1),
        };
        let mut stream = null_mut();
        // SAFETY: the engine is alive.
        done("dnnl_stream_create", unsafe {
            (api.stream_create)(&raw mut stream, handle, ffi::IN_ORDER)
        })?;
        engine.stream = Mutex::new(Stream(stream));
        // SAFETY: as above.
        done("dnnl_primitive_attr_create", unsafe {
            (api.attr_create)(&raw mut engine.attributes)
        })?;
        // SAFETY: the attributes are alive.
        done("dnnl_primitive_attr_set_scratchpad_mode", unsafe {
            (api.attr_scratchpad)(engine.attributes, ffi::USER_SCRATCHPAD)
        })?;
        Ok(Arc::new(engine))
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

    /// `src -> dst`: the same elements in another format.
    ///
    /// # Errors
    /// A failure of the library, as in all functions that make a primitive; `None` is that it has no
    /// implementation that is worth using.
    pub fn reorder(
        self: &Arc<Engine>,
        from: &Desc,
        to: &Desc,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let create = |pd, api: &Api| {
            // SAFETY: all objects are alive.
            unsafe {
                (api.reorder)(
                    pd,
                    from.handle,
                    self.handle,
                    to.handle,
                    self.handle,
                    self.attributes,
                )
            }
        };
        let call = "dnnl_reorder_primitive_desc_create";
        self.make(call, &[Arg::Source, Arg::Destination], create)
    }

    /// `src, weights[, bias] -> dst`: matrices in the last two axes, axes before them alike or of
    /// length 1; the bias has as many axes.
    pub fn matmul(
        self: &Arc<Engine>,
        [source, weights, destination]: [&Desc; 3],
        bias: Option<&Desc>,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let create = |pd, api: &Api| {
            // SAFETY: all objects are alive; no bias is null.
            unsafe {
                (api.matmul)(
                    pd,
                    self.handle,
                    source.handle,
                    weights.handle,
                    bias.map_or(null_mut(), |bias| bias.handle),
                    destination.handle,
                    self.attributes,
                )
            }
        };
        let args = [Arg::Source, Arg::Weights, Arg::Destination, Arg::Bias];
        let count = if bias.is_some() { 4 } else { 3 };
        self.make("dnnl_matmul_primitive_desc_create", &args[..count], create)
    }

    /// A convolution or one of its gradients.
    pub fn convolution(
        self: &Arc<Engine>,
        direction: Direction,
        what: &Convolution<'_>,
    ) -> Result<Option<Primitive>, OneDnnError> {
        if direction == Direction::Forward {
            let args = [Arg::Source, Arg::Weights, Arg::Destination, Arg::Bias];
            let count = if what.bias.is_some() { 4 } else { 3 };
            let call = "dnnl_convolution_forward_primitive_desc_create";
            return self.make(call, &args[..count], |pd, api| self.forward(what, pd, api));
        }
        // A gradient is asked for with the descriptor of its forward direction as a hint.
        let call = "dnnl_convolution_forward_primitive_desc_create";
        let _threads = self.library.with_threads(self.threads);
        let Some(hint) = self.descriptor(call, |pd, api| self.forward(what, pd, api))? else {
            return Ok(None);
        };
        let geometry = Geometry::new(what);
        match direction {
            Direction::Data => {
                let call = "dnnl_convolution_backward_data_primitive_desc_create";
                let args = [Arg::DestinationGrad, Arg::Weights, Arg::SourceGrad];
                self.make(call, &args, |pd, api| {
                    // SAFETY: all objects are alive; the arrays hold the greatest number of axes.
                    unsafe {
                        (api.convolution_data)(
                            pd,
                            self.handle,
                            ffi::CONVOLUTION_DIRECT,
                            what.source.handle,
                            what.weights.handle,
                            what.destination.handle,
                            &raw const geometry.stride,
                            &raw const geometry.dilation,
                            &raw const geometry.begin,
                            &raw const geometry.end,
                            hint.handle,
                            self.attributes,
                        )
                    }
                })
            }
            Direction::Weights | Direction::Forward => {
                let call = "dnnl_convolution_backward_weights_primitive_desc_create";
                let args = [Arg::Source, Arg::DestinationGrad, Arg::WeightsGrad];
                self.make(call, &args, |pd, api| {
                    // SAFETY: all objects are alive; no gradient of a bias is null.
                    unsafe {
                        (api.convolution_weights)(
                            pd,
                            self.handle,
                            ffi::CONVOLUTION_DIRECT,
                            what.source.handle,
                            what.weights.handle,
                            null_mut(),
                            what.destination.handle,
                            &raw const geometry.stride,
                            &raw const geometry.dilation,
                            &raw const geometry.begin,
                            &raw const geometry.end,
                            hint.handle,
                            self.attributes,
                        )
                    }
                })
            }
        }
    }

    fn forward(&self, what: &Convolution<'_>, pd: *mut Handle, api: &Api) -> Status {
        let geometry = Geometry::new(what);
        // SAFETY: all objects are alive; no bias is null; the arrays hold the greatest number of axes.
        unsafe {
            (api.convolution)(
                pd,
                self.handle,
                ffi::FORWARD_TRAINING,
                ffi::CONVOLUTION_DIRECT,
                what.source.handle,
                what.weights.handle,
                what.bias.map_or(null_mut(), |bias| bias.handle),
                what.destination.handle,
                &raw const geometry.stride,
                &raw const geometry.dilation,
                &raw const geometry.begin,
                &raw const geometry.end,
                self.attributes,
            )
        }
    }

    /// The library's best implementation, unless that is only for reference.
    pub(crate) fn descriptor(
        &self,
        call: &'static str,
        create: impl FnOnce(*mut Handle, &Api) -> Status,
    ) -> Result<Option<Descriptor>, OneDnnError> {
        let mut handle = null_mut();
        match create(&raw mut handle, &self.library.api) {
            // Shapes come checked from their graph: what the library calls invalid, it can't do.
            ffi::UNIMPLEMENTED | ffi::INVALID_ARGUMENTS => return Ok(None),
            status => done(call, status)?,
        }
        Ok(Some(Descriptor {
            library: self.library,
            handle,
        }))
    }

    pub(crate) fn make(
        self: &Arc<Engine>,
        call: &'static str,
        args: &[Arg],
        create: impl FnOnce(*mut Handle, &Api) -> Status,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let _threads = self.library.with_threads(self.threads);
        match self.descriptor(call, create)? {
            Some(descriptor) => Primitive::new(self, descriptor, args),
            None => Ok(None),
        }
    }
}

/// A convolution's geometry as the library takes it.
struct Geometry {
    stride: Dims,
    dilation: Dims,
    begin: Dims,
    end: Dims,
}

impl Geometry {
    fn new(what: &Convolution<'_>) -> Geometry {
        Geometry {
            stride: dims(&what.stride),
            // The library counts the elements left out.
            dilation: dims(&what.dilation.map(|step| step.saturating_sub(1))),
            begin: dims(&what.pad_begin),
            end: dims(&what.pad_end),
        }
    }
}
