//! The gradients of a layer normalization.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_uint;
use std::sync::Arc;

use crate::desc::Desc;
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::{self, Api, Handle, Status};
use crate::primitive::{Arg, Primitive};

/// Rows that were normalized each by itself.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormalization<'a> {
    /// `[K, length]`: what was normalized, the gradients of that and of the result.
    pub rows: &'a Desc,
    /// `[K]`: means, and biased variances.
    pub statistics: &'a Desc,
    /// Added to the variance.
    pub epsilon: f32,
}

const FORWARD: &str = "dnnl_layer_normalization_forward_primitive_desc_create";

/// `dnnl_use_scale` and `dnnl_use_shift`. With `dnnl_use_global_stats` statistics would be constants.
const FLAGS: c_uint = 2 | 4;

impl Engine {
    /// `src, mean[K], variance[K], scale[length], shift, diff_dst -> diff_src, diff_scale, diff_shift`, through the
    /// statistics; `diff_dst` and `diff_src` may be the same memory. The shift has to be there but isn't read.
    ///
    /// # Errors
    /// A failure of the library; `None` is that it has no implementation that is worth using.
    pub fn layer_normalization_gradient(
        self: &Arc<Engine>,
        what: &LayerNormalization<'_>,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let _threads = self.library.with_threads(self.threads);
        let hint = self.descriptor(FORWARD, |pd, api| self.normalization_forward(what, pd, api))?;
        let Some(hint) = hint else {
            return Ok(None);
        };
        let args = [
            Arg::Source,
            Arg::Mean,
            Arg::Variance,
            Arg::Scale,
            Arg::Shift,
            Arg::DestinationGrad,
            Arg::SourceGrad,
            Arg::ScaleGrad,
            Arg::ShiftGrad,
        ];
        let call = "dnnl_layer_normalization_backward_primitive_desc_create";
        self.make(call, &args, |pd, api| {
            // SAFETY: all objects are alive.
            unsafe {
                (api.layer_normalization_gradient)(
                    pd,
                    self.handle,
                    ffi::BACKWARD,
                    what.rows.handle,
                    what.rows.handle,
                    what.rows.handle,
                    what.statistics.handle,
                    what.epsilon,
                    FLAGS,
                    hint.handle,
                    self.attributes,
                )
            }
        })
    }

    fn normalization_forward(
        &self,
        what: &LayerNormalization<'_>,
        pd: *mut Handle,
        api: &Api,
    ) -> Status {
        // SAFETY: all objects are alive.
        unsafe {
            (api.layer_normalization)(
                pd,
                self.handle,
                ffi::FORWARD_TRAINING,
                what.rows.handle,
                what.rows.handle,
                what.statistics.handle,
                what.epsilon,
                FLAGS,
                self.attributes,
            )
        }
    }
}
