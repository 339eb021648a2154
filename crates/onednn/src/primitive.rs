//! Primitives: what an engine made, to run on the caller's memory.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock, PoisonError};

use crate::desc::Desc;
use crate::engine::Engine;
use crate::error::{OneDnnError, done};
use crate::ffi::{self, Api, ExecArg, Handle, Status};
use crate::library::Library;

/// An argument of a primitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Read.
    Source,
    /// Read.
    Weights,
    /// Read.
    Bias,
    /// Written.
    Destination,
    /// Written.
    SourceGrad,
    /// Written.
    WeightsGrad,
    /// Read.
    DestinationGrad,
    /// Read: the destination of the primitive whose gradient this is.
    Result,
    /// Read.
    Mean,
    /// Read.
    Variance,
    /// Read.
    Scale,
    /// Read.
    Shift,
    /// Written.
    ScaleGrad,
    /// Written.
    ShiftGrad,
    /// Written by a primitive whose gradient follows, read by that.
    Workspace,
    /// Memory that the primitive may use while it runs.
    Scratchpad,
}

impl Arg {
    /// `DNNL_ARG_*`
    fn number(self) -> c_int {
        match self {
            Arg::Source => 1,
            Arg::Destination | Arg::Result => 17,
            Arg::Weights => 33,
            Arg::Bias => 41,
            Arg::Mean => 49,
            Arg::Variance => 50,
            Arg::Scale => 51,
            Arg::Shift => 52,
            Arg::Workspace => 64,
            Arg::Scratchpad => 80,
            Arg::SourceGrad => 129,
            Arg::DestinationGrad => 145,
            Arg::WeightsGrad => 161,
            Arg::ScaleGrad => 255,
            Arg::ShiftGrad => 256,
        }
    }

    fn writes(self) -> bool {
        matches!(
            self,
            Arg::Destination
                | Arg::SourceGrad
                | Arg::WeightsGrad
                | Arg::ScaleGrad
                | Arg::ShiftGrad
                | Arg::Workspace
                | Arg::Scratchpad
        )
    }

    fn name(self) -> &'static str {
        match self {
            Arg::Source => "source",
            Arg::Destination => "destination",
            Arg::Weights => "weights",
            Arg::Bias => "bias",
            Arg::Result => "result",
            Arg::Workspace => "workspace",
            Arg::Scratchpad => "scratchpad",
            Arg::SourceGrad => "gradient of the source",
            Arg::DestinationGrad => "gradient of the destination",
            Arg::WeightsGrad => "gradient of the weights",
            Arg::Mean => "mean",
            Arg::Variance => "variance",
            Arg::Scale => "scale",
            Arg::Shift => "shift",
            Arg::ScaleGrad => "gradient of the scale",
            Arg::ShiftGrad => "gradient of the shift",
        }
    }
}

/// Memory for an argument: borrowed, shared or exclusively, while the buffer lives. Copies of it are
/// the same memory; only primitives that run access it, one after another on one thread.
#[derive(Clone, Copy, Debug)]
pub struct Buffer<'a> {
    pointer: *mut u8,
    bytes: usize,
    writable: bool,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Buffer<'a> {
    /// Memory to read.
    #[must_use]
    pub fn reading(memory: &'a [u8]) -> Self {
        Buffer {
            pointer: memory.as_ptr().cast_mut(),
            bytes: memory.len(),
            writable: false,
            memory: PhantomData,
        }
    }

    /// Memory to write, or to write and then read.
    #[must_use]
    pub fn writing(memory: &'a mut [u8]) -> Self {
        Buffer {
            pointer: memory.as_mut_ptr(),
            bytes: memory.len(),
            writable: true,
            memory: PhantomData,
        }
    }

    /// `bytes` bytes from `start` on, as far as they are there.
    #[must_use]
    pub fn part(self, start: usize, bytes: usize) -> Buffer<'a> {
        let start = start.min(self.bytes);
        Buffer {
            // SAFETY: within the memory or at its end.
            pointer: unsafe { self.pointer.add(start) },
            bytes: bytes.min(self.bytes - start),
            ..self
        }
    }
}

/// Most arguments that a primitive has, with its scratchpad.
pub const MOST_ARGUMENTS: usize = 10;

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
    /// The library's best implementation of those that are used.
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

/// An operation with fixed shapes, formats and number of threads. It is compiled when that is asked for, or when it
/// first runs: to plan with it takes only its formats and bytes.
pub struct Primitive {
    engine: Arc<Engine>,
    descriptor: Descriptor,
    compiled: OnceLock<Handle>,
    name: String,
    arguments: Vec<Argument>,
}

struct Argument {
    arg: Arg,
    desc: Desc,
    bytes: usize,
    /// The library's object for this argument's memory; its address is set before each run.
    memory: Handle,
}

// SAFETY: a primitive isn't bound to a thread.
unsafe impl Send for Primitive {}
// SAFETY: running it changes its memory objects under the engine's lock only.
unsafe impl Sync for Primitive {}

impl std::fmt::Debug for Primitive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Primitive {
    fn drop(&mut self) {
        for argument in &self.arguments {
            // SAFETY: created once, destroyed once.
            unsafe { (self.engine.library.api.memory_destroy)(argument.memory) };
        }
        if let Some(&handle) = self.compiled.get() {
            // SAFETY: as above.
            unsafe { (self.engine.library.api.primitive_destroy)(handle) };
        }
    }
}

impl Primitive {
    /// The descriptor's primitive; `None` where none that is left is used.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        descriptor: Descriptor,
        args: &[Arg],
    ) -> Result<Option<Primitive>, OneDnnError> {
        let api = &engine.library.api;
        let name = loop {
            let name = name(&descriptor)?;
            if is_used(&name) {
                break name;
            }
            // SAFETY: the descriptor is alive and nothing else uses it.
            match unsafe { (api.pd_next)(descriptor.handle) } {
                ffi::SUCCESS => {}
                ffi::LAST_IMPLEMENTATION | ffi::UNIMPLEMENTED => return Ok(None),
                status => done("dnnl_primitive_desc_next_impl", status)?,
            }
        };
        let mut primitive = Primitive {
            engine: engine.clone(),
            descriptor,
            compiled: OnceLock::new(),
            name,
            arguments: Vec::with_capacity(args.len() + 1),
        };
        for &arg in args.iter().chain([&Arg::Scratchpad]) {
            primitive.argument(arg)?;
        }
        Ok(Some(primitive))
    }

    fn argument(&mut self, arg: Arg) -> Result<(), OneDnnError> {
        let api = &self.engine.library.api;
        let descriptor = self.descriptor.handle;
        // SAFETY: the descriptor is alive, and what it answers lives as long.
        let desc = unsafe { (api.pd_query_md)(descriptor, ffi::QUERY_ARGUMENT, arg.number()) };
        if desc.is_null() {
            return done("dnnl_primitive_desc_query_md", ffi::INVALID_ARGUMENTS);
        }
        let desc = Desc::copy(self.engine.library, desc)?;
        let bytes = desc.bytes();
        if arg == Arg::Scratchpad && bytes == 0 {
            return Ok(());
        }
        let mut memory = null_mut();
        // SAFETY: descriptor and engine are alive; the object starts without memory.
        done("dnnl_memory_create", unsafe {
            (api.memory_create)(&raw mut memory, desc.handle, self.engine.handle, null_mut())
        })?;
        self.arguments.push(Argument {
            arg,
            desc,
            bytes,
            memory,
        });
        Ok(())
    }

    /// Name of the implementation.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format of an argument that the primitive was made for.
    #[must_use]
    pub fn desc(&self, arg: Arg) -> Option<&Desc> {
        let found = self.arguments.iter().find(|argument| argument.arg == arg);
        found.map(|argument| &argument.desc)
    }

    /// Bytes of scratchpad.
    #[must_use]
    pub fn scratchpad(&self) -> usize {
        self.desc(Arg::Scratchpad).map_or(0, Desc::bytes)
    }

    /// Compiles the primitive unless that has been done.
    ///
    /// # Errors
    /// The library can't.
    pub fn compile(&self) -> Result<(), OneDnnError> {
        self.handle().map(|_| ())
    }

    fn handle(&self) -> Result<Handle, OneDnnError> {
        if let Some(&handle) = self.compiled.get() {
            return Ok(handle);
        }
        let engine = &self.engine;
        let api = &engine.library.api;
        let _threads = engine.library.with_threads(engine.threads);
        let mut handle = null_mut();
        // SAFETY: the descriptor is alive; the primitive keeps what it needs of it.
        done("dnnl_primitive_create", unsafe {
            (api.primitive_create)(&raw mut handle, self.descriptor.handle)
        })?;
        let kept = *self.compiled.get_or_init(|| handle);
        if kept != handle {
            // Another thread was faster.
            // SAFETY: created above, and nothing else has it.
            unsafe { (api.primitive_destroy)(handle) };
        }
        Ok(kept)
    }

    /// Runs the primitive and waits for it. Arguments that it doesn't have are ignored.
    ///
    /// # Errors
    /// The library can't compile it; an argument that is missing, too short, or written but only lent for reading.
    pub fn execute(&self, buffers: &[(Arg, Buffer<'_>)]) -> Result<(), OneDnnError> {
        let engine = &self.engine;
        let api = &self.engine.library.api;
        let handle = self.handle()?;
        let mut list = [ExecArg {
            argument: 0,
            memory: null_mut(),
        }; MOST_ARGUMENTS];
        // From here to the end no one else changes the memory objects or runs anything.
        let stream = engine.stream.lock().unwrap_or_else(PoisonError::into_inner);
        for (argument, to) in self.arguments.iter().zip(&mut list) {
            let buffer = self.buffer(argument, buffers)?;
            // SAFETY: the object is alive; the buffer is as long as the object's descriptor says.
            done("dnnl_memory_set_data_handle", unsafe {
                (api.memory_set)(argument.memory, buffer.pointer.cast::<c_void>())
            })?;
            *to = ExecArg {
                argument: argument.arg.number(),
                memory: argument.memory,
            };
        }
        let _threads = self.engine.library.with_threads(engine.threads);
        // SAFETY: all objects are alive. The buffers borrow their memory beyond this call, those that
        // are written exclusively, and the stream is done with them when it has been waited for.
        unsafe {
            done(
                "dnnl_primitive_execute",
                (api.primitive_execute)(
                    handle,
                    stream.0,
                    self.arguments.len() as c_int,
                    list.as_ptr(),
                ),
            )?;
            done("dnnl_stream_wait", (api.stream_wait)(stream.0))
        }
    }

    fn buffer<'a>(
        &self,
        argument: &Argument,
        buffers: &[(Arg, Buffer<'a>)],
    ) -> Result<Buffer<'a>, OneDnnError> {
        let given = buffers.iter().find(|(arg, _)| *arg == argument.arg);
        let usable = given
            .map(|(_, buffer)| *buffer)
            .filter(|buffer| buffer.writable || !argument.arg.writes());
        match usable {
            Some(buffer) if buffer.bytes >= argument.bytes => Ok(buffer),
            other => Err(OneDnnError::Buffer {
                primitive: self.name.clone(),
                argument: argument.arg.name(),
                expected: argument.bytes,
                found: other.map_or(0, |buffer| buffer.bytes),
            }),
        }
    }
}

fn name(descriptor: &Descriptor) -> Result<String, OneDnnError> {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: this query writes one pointer to a string that lives as long as the descriptor.
    done("dnnl_primitive_desc_query", unsafe {
        (descriptor.library.api.pd_query)(
            descriptor.handle,
            ffi::QUERY_NAME,
            0,
            (&raw mut name).cast(),
        )
    })?;
    if name.is_null() {
        return Ok(String::new());
    }
    // SAFETY: a string of the library that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(name.to_string_lossy().into_owned())
}

/// Neither `ref:any` and the like, which are slow, nor `gemm:jit:f32`, `x64:gemm:jit` and the like: their product of
/// matrices allocates its blocks itself, outside of the scratchpad and of any budget. Where there is AVX-512 only convolutions
/// 1×1 of rows would get those.
fn is_used(name: &str) -> bool {
    !name.starts_with("ref") && name.split(':').all(|part| part != "gemm")
}
