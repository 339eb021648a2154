//! Matrix products.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ptr::null_mut;
use std::sync::Arc;

use crate::desc::Desc;
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::Api;
use crate::primitive::{Arg, Primitive};

impl Engine {
    /// `src, weights[, bias] -> dst`: matrices in the last two axes, axes before them alike or of
    /// length 1; the bias has as many axes. If it `adds`, the product is added to what `dst` holds.
    pub fn matmul(
        self: &Arc<Engine>,
        [source, weights, destination]: [&Desc; 3],
        bias: Option<&Desc>,
        adds: bool,
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
                    self.attributes(adds),
                )
            }
        };
        let args = [Arg::Source, Arg::Weights, Arg::Destination, Arg::Bias];
        let count = if bias.is_some() { 4 } else { 3 };
        self.make("dnnl_matmul_primitive_desc_create", &args[..count], create)
    }
}
