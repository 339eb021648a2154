//! Convolutions and their gradients.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr::null_mut;
use std::sync::Arc;

use crate::desc::{Desc, dims};
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::{self, Api, Dims, Handle, Status};
use crate::primitive::{Arg, Primitive};

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

impl Engine {
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
        let geometry = ConvolutionGeometry::new(what);
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
        let geometry = ConvolutionGeometry::new(what);
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
}

/// A convolution's geometry as the library takes it.
struct ConvolutionGeometry {
    stride: Dims,
    dilation: Dims,
    begin: Dims,
    end: Dims,
}

impl ConvolutionGeometry {
    fn new(what: &Convolution<'_>) -> ConvolutionGeometry {
        ConvolutionGeometry {
            stride: dims(&what.stride),
            // The library counts the elements left out.
            dilation: dims(&what.dilation.map(|step| step.saturating_sub(1))),
            begin: dims(&what.pad_begin),
            end: dims(&what.pad_end),
        }
    }
}
