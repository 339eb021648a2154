//! Functions of single elements and of lines of them: activations and softmax, with their gradients.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_int;
use std::sync::Arc;

use crate::desc::Desc;
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::{self, Api, Handle, Status};
use crate::primitive::{Arg, Primitive};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// tanh x; its gradient is computed from its result, like those of the next two.
    Tanh,
    /// 1/(1 + e^−x)
    Sigmoid,
    /// e^x
    Exp,
    /// x·Φ(x); its gradient is computed from x, like those of the next two.
    Gelu,
    /// The approximation of gelu by tanh.
    GeluTanh,
    /// x/(1 + e^−x)
    Silu,
}

impl Activation {
    /// `dnnl_eltwise_*`
    fn number(self) -> c_int {
        match self {
            // The first three are `…_use_dst_for_bwd`.
            Activation::Tanh => 0x101,
            Activation::Sigmoid => 0x104,
            Activation::Exp => 0x105,
            Activation::Gelu => 0x31,
            Activation::GeluTanh => 0x2b,
            Activation::Silu => 0x2c,
        }
    }

    /// Where the gradient reads what was saved.
    #[must_use]
    pub fn saved(self) -> Arg {
        match self {
            Activation::Tanh | Activation::Sigmoid | Activation::Exp => Arg::Result,
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => Arg::Source,
        }
    }
}

const FORWARD: &str = "dnnl_eltwise_forward_primitive_desc_create";
const SOFTMAX_FORWARD: &str = "dnnl_softmax_forward_primitive_desc_create";

/// `dnnl_softmax_accurate` and `dnnl_softmax_log`.
fn softmax_number(log: bool) -> c_int {
    match log {
        false => 0x30000,
        true => 0x30001,
    }
}

impl Engine {
    /// `src -> dst`; they may be the same memory.
    ///
    /// # Errors
    /// A failure of the library; `None` is that it has no implementation that is worth using.
    pub fn activation(
        self: &Arc<Engine>,
        function: Activation,
        tensor: &Desc,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let args = [Arg::Source, Arg::Destination];
        self.make(FORWARD, &args, |pd, api| {
            self.activation_forward(function, tensor, pd, api)
        })
    }

    /// `saved, diff_dst -> diff_src`, where [`Activation::saved`] says what is saved.
    ///
    /// # Errors
    /// As for [`Engine::activation`].
    pub fn activation_gradient(
        self: &Arc<Engine>,
        function: Activation,
        tensor: &Desc,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let _threads = self.library.with_threads(self.threads);
        let hint = self.descriptor(FORWARD, |pd, api| {
            self.activation_forward(function, tensor, pd, api)
        })?;
        let Some(hint) = hint else {
            return Ok(None);
        };
        let args = [function.saved(), Arg::DestinationGrad, Arg::SourceGrad];
        let call = "dnnl_eltwise_backward_primitive_desc_create";
        self.make(call, &args, |pd, api| {
            // SAFETY: all objects are alive.
            unsafe {
                (api.eltwise_gradient)(
                    pd,
                    self.handle,
                    function.number(),
                    tensor.handle,
                    tensor.handle,
                    tensor.handle,
                    1.0,
                    0.0,
                    hint.handle,
                    self.attributes,
                )
            }
        })
    }

    fn activation_forward(
        &self,
        function: Activation,
        tensor: &Desc,
        pd: *mut Handle,
        api: &Api,
    ) -> Status {
        // SAFETY: all objects are alive.
        unsafe {
            (api.eltwise)(
                pd,
                self.handle,
                ffi::FORWARD_TRAINING,
                function.number(),
                tensor.handle,
                tensor.handle,
                1.0,
                0.0,
                self.attributes,
            )
        }
    }

    /// `src -> dst`: softmax along an axis, or its logarithm; they may be the same memory.
    ///
    /// # Errors
    /// As for [`Engine::activation`].
    pub fn softmax(
        self: &Arc<Engine>,
        log: bool,
        axis: usize,
        tensor: &Desc,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let args = [Arg::Source, Arg::Destination];
        self.make(SOFTMAX_FORWARD, &args, |pd, api| {
            self.softmax_forward(log, axis, tensor, pd, api)
        })
    }

    /// `dst, diff_dst -> diff_src`.
    ///
    /// # Errors
    /// As for [`Engine::activation`].
    pub fn softmax_gradient(
        self: &Arc<Engine>,
        log: bool,
        axis: usize,
        tensor: &Desc,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let _threads = self.library.with_threads(self.threads);
        let hint = self.descriptor(SOFTMAX_FORWARD, |pd, api| {
            self.softmax_forward(log, axis, tensor, pd, api)
        })?;
        let Some(hint) = hint else {
            return Ok(None);
        };
        let args = [Arg::Result, Arg::DestinationGrad, Arg::SourceGrad];
        let call = "dnnl_softmax_backward_primitive_desc_create";
        self.make(call, &args, |pd, api| {
            // SAFETY: all objects are alive.
            unsafe {
                (api.softmax_gradient)(
                    pd,
                    self.handle,
                    softmax_number(log),
                    tensor.handle,
                    tensor.handle,
                    tensor.handle,
                    axis as c_int,
                    hint.handle,
                    self.attributes,
                )
            }
        })
    }

    fn softmax_forward(
        &self,
        log: bool,
        axis: usize,
        tensor: &Desc,
        pd: *mut Handle,
        api: &Api,
    ) -> Status {
        // SAFETY: all objects are alive.
        unsafe {
            (api.softmax)(
                pd,
                self.handle,
                ffi::FORWARD_TRAINING,
                softmax_number(log),
                tensor.handle,
                tensor.handle,
                axis as c_int,
                self.attributes,
            )
        }
    }
}
