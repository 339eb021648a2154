//! Convolutions by cuDNN, with workspace of ours.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use super::context::{Buffer, Context};
use super::ffi::{self, Algorithms, Convolve, Performance, Status, cudnn::Api};
use super::object::Object;
use super::{Event, Queue};
use crate::error::{GpuError, Library, unless_failed};
use crate::loading::Loaded;

struct Loading(Api);

static LOADED: Loaded<Loading> = Loaded::none();

/// cuDNN on a device. Clones are the same.
#[derive(Clone, Debug)]
pub struct Convolutions(Arc<Inner>);

struct Inner {
    api: &'static Api,
    /// One thread at a time may use it.
    library: Mutex<Object>,
    context: Context,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuDNN")
    }
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// y from x and w, and perhaps a number for each channel.
    Forward {
        /// Whether there is such a number.
        biased: bool,
    },
    /// The gradient of x from that of y and w.
    Input,
    /// The gradient of w from x and that of y.
    Weight {
        /// Whether it is added to what is there.
        added: bool,
    },
}

/// A convolution in 32 bits; all tensors are stored by rows, channels before places.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    /// Samples, channels, height and width of x.
    pub x: [usize; 4],
    /// Output channels, input channels per group, height and width of w.
    pub w: [usize; 4],
    /// Samples, channels, height and width of y.
    pub y: [usize; 4],
    /// Zeros at each end, down and right.
    pub pad: [usize; 2],
    /// Steps of the window.
    pub stride: [usize; 2],
    /// Distances of its elements.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub groups: usize,
}

/// A convolution that the library has an algorithm for.
#[derive(Debug)]
pub struct PreparedConvolution {
    convolutions: Convolutions,
    x: Object,
    w: Object,
    y: Object,
    bias: Object,
    what: Object,
    pass: Pass,
    algorithm: c_int,
    /// Bytes of workspace.
    pub workspace: u64,
}

/// Algorithms by Fourier transform (forward, input gradient, weight gradient): they round much more than a sum does.
const BY_FOURIER: [[c_int; 2]; 3] = [[4, 5], [2, 3], [2, 6]];
/// `CUDNN_DETERMINISTIC`
const DETERMINISTIC: c_int = 1;
/// More algorithms than there are.
const ALGORITHMS: usize = 16;

fn done(call: &'static str, status: Status) -> Result<(), GpuError> {
    unless_failed(Library::Cudnn, call, status)
}

fn load() -> Result<&'static Api, GpuError> {
    let load = |library, _: &_| Ok(Loading(Api::of(library)?));
    Ok(&LOADED.load(Library::Cudnn, None, load)?.0)
}

impl Convolutions {
    /// The version that is installed.
    ///
    /// # Errors
    /// The library isn't there, can't be loaded, or is too old.
    pub fn installed() -> Result<usize, GpuError> {
        // SAFETY: no arguments.
        Ok(unsafe { (load()?.version)() })
    }

    /// Loads the library where it is installed.
    ///
    /// # Errors
    /// It isn't there, or fails.
    pub fn new(context: &Context) -> Result<Convolutions, GpuError> {
        let api = load()?;
        context.api()?;
        // SAFETY: the answer is one handle, for the context that is current.
        let library = Object::new(
            Library::Cudnn,
            "cudnnCreate",
            |handle| unsafe { (api.create)(handle) },
            api.destroy,
        )?;
        let context = context.clone();
        Ok(Convolutions(Arc::new(Inner {
            api,
            library: Mutex::new(library),
            context,
        })))
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> usize {
        // SAFETY: no arguments.
        unsafe { (self.0.api.version)() }
    }

    /// The algorithm that the library thinks fastest among those that need at most so much workspace and give the same
    /// bits each time; `None` if it has none.
    ///
    /// # Errors
    /// The library fails.
    pub fn prepare(
        &self,
        pass: Pass,
        convolution: &Convolution,
        workspace: u64,
    ) -> Result<Option<PreparedConvolution>, GpuError> {
        let api = self.0.api;
        self.0.context.api()?;
        let c = convolution;
        let (x, y) = (self.tensor(c.x)?, self.tensor(c.y)?);
        let bias = self.tensor([1, c.y[1], 1, 1])?;
        // SAFETY: the answer is one handle.
        let w = Object::new(
            Library::Cudnn,
            "cudnnCreateFilterDescriptor",
            |w| unsafe { (api.create_filter)(w) },
            api.destroy_filter,
        )?;
        let what = Object::new(
            Library::Cudnn,
            "cudnnCreateConvolutionDescriptor", // SAFETY: the answer is one handle.
            |what| unsafe { (api.create_convolution)(what) },
            api.destroy_convolution,
        )?;
        let int = |x: usize| x as c_int;
        let [k, channels, height, width] = c.w.map(int);
        let [[down, right], [u, v], [a, b]] =
            [c.pad, c.stride, c.dilation].map(|pair| pair.map(int));
        // SAFETY: all descriptors live.
        let set = unsafe {
            let (float, first) = (ffi::DNN_FLOAT, ffi::CHANNELS_FIRST);
            [
                (api.set_filter)(w.handle, float, first, k, channels, height, width),
                (api.set_convolution)(
                    what.handle,
                    down,
                    right,
                    u,
                    v,
                    a,
                    b,
                    ffi::CROSS_CORRELATION,
                    float,
                ),
                (api.set_groups)(what.handle, int(c.groups)),
                (api.set_math)(what.handle, ffi::FMA_MATH),
            ]
        };
        for status in set {
            done("cudnnSetConvolution2dDescriptor", status)?;
        }
        let (find, arguments, fourier): (Algorithms, _, _) = match pass {
            Pass::Forward { .. } => (api.forward_algorithms, [&x, &w, &what, &y], BY_FOURIER[0]),
            Pass::Input => (api.input_algorithms, [&w, &y, &what, &x], BY_FOURIER[1]),
            Pass::Weight { .. } => (api.weight_algorithms, [&x, &y, &what, &w], BY_FOURIER[2]),
        };
        let [first, second, third, fourth] = arguments.map(|object| object.handle);
        let (mut found, mut count) = ([Performance::default(); ALGORITHMS], 0);
        let library = self.0.library.lock();
        let library = library.unwrap_or_else(PoisonError::into_inner);
        // SAFETY: there is room for as many answers as are asked for.
        let status = unsafe {
            find(
                library.handle,
                first,
                second,
                third,
                fourth,
                ALGORITHMS as c_int,
                &mut count,
                found.as_mut_ptr(),
            )
        };
        drop(library);
        // `CUDNN_STATUS_NOT_SUPPORTED` and what is like it.
        if (3000..4000).contains(&status) {
            return Ok(None);
        }
        done("cudnnGetConvolutionForwardAlgorithm_v7", status)?;
        let fits = |one: &&Performance| {
            one.status == ffi::SUCCESS
                && one.deterministic == DETERMINISTIC
                && [ffi::DEFAULT_MATH, ffi::FMA_MATH].contains(&one.math)
                && one.memory as u64 <= workspace
                && !fourier.contains(&one.algorithm)
        };
        let found = found.iter().take(count.max(0) as usize).find(fits);
        let found = found.map(|one| (one.algorithm, one.memory as u64));
        Ok(found.map(|(algorithm, workspace)| PreparedConvolution {
            convolutions: self.clone(),
            x,
            w,
            y,
            bias,
            what,
            pass,
            algorithm,
            workspace,
        }))
    }

    fn tensor(&self, shape: [usize; 4]) -> Result<Object, GpuError> {
        let api = self.0.api;
        // SAFETY: the answer is one handle.
        let tensor = Object::new(
            Library::Cudnn,
            "cudnnCreateTensorDescriptor",
            |one| unsafe { (api.create_tensor)(one) },
            api.destroy_tensor,
        )?;
        let [n, c, h, w] = shape.map(|length| length as c_int);
        let (first, float) = (ffi::CHANNELS_FIRST, ffi::DNN_FLOAT);
        // SAFETY: the descriptor lives.
        done("cudnnSetTensor4dDescriptor", unsafe {
            (api.set_tensor)(tensor.handle, first, float, n, c, h, w)
        })?;
        Ok(tensor)
    }
}

impl PreparedConvolution {
    /// Gives it to a queue; `at` are the places in the buffer of the first and the second factor (x, dy and w in this
    /// order, but w before dy), the bias, the result and the workspace.
    ///
    /// # Errors
    /// The library or the driver fails.
    ///
    /// # Safety
    /// The buffer has room for all of it there, and no other command uses at the same time what this one writes.
    pub(super) unsafe fn run(
        &self,
        queue: &Queue,
        buffer: &Buffer,
        at: [u64; 5],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        let Inner { api, library, .. } = &*self.convolutions.0;
        let [first, second, bias, result, workspace] = at.map(|offset| {
            ptr::without_provenance_mut::<c_void>((buffer.address + offset) as usize)
        });
        let (convolve, factors, to): (Convolve, _, _) = match self.pass {
            Pass::Forward { .. } => (api.forward, [&self.x, &self.w], &self.y),
            Pass::Input => (api.input_gradient, [&self.w, &self.y], &self.x),
            Pass::Weight { .. } => (api.weight_gradient, [&self.x, &self.y], &self.w),
        };
        let kept = matches!(self.pass, Pass::Weight { added: true });
        let (one, kept) = (1f32, f32::from(u8::from(kept)));
        let biased = matches!(self.pass, Pass::Forward { biased: true });
        let (one, kept): (*const c_void, *const c_void) =
            ((&raw const one).cast(), (&raw const kept).cast());
        let library = library.lock().unwrap_or_else(PoisonError::into_inner);
        queue.external(after, |stream| {
            // SAFETY: the caller's promise; numbers are copied before the calls return.
            unsafe {
                done("cudnnSetStream", (api.set_stream)(library.handle, stream))?;
                let [f, s] = factors.map(|factor| factor.handle);
                let status = convolve(
                    library.handle,
                    one,
                    f,
                    first,
                    s,
                    second,
                    self.what.handle,
                    self.algorithm,
                    workspace,
                    self.workspace as usize,
                    kept,
                    to.handle,
                    result,
                );
                done("cudnnConvolutionForward", status)?;
                if biased {
                    let status = (api.add)(
                        library.handle,
                        one,
                        self.bias.handle,
                        bias,
                        one,
                        to.handle,
                        result,
                    );
                    done("cudnnAddTensor", status)?;
                }
                Ok(())
            }
        })
    }
}
