//! Poolings: the largest element or the average of each window, and their gradients.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::sync::Arc;

use crate::desc::{Desc, dims};
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::{self, Api, Dims, Handle, Status};
use crate::primitive::{Arg, Primitive};

/// What becomes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Its largest element.
    Max,
    /// The sum of its elements over the size of the window.
    AverageOfWindow,
    /// The sum of its elements over the number of those that aren't padding.
    AverageOfInside,
}

impl Pooling {
    /// `dnnl_pooling_*`
    fn number(self) -> i32 {
        match self {
            Pooling::Max => 0x1ff,
            Pooling::AverageOfWindow => 0x2ff,
            Pooling::AverageOfInside => 0x3ff,
        }
    }
}

/// A pooling's tensors `[N, C, H, W]`, each as it or its gradient, and its geometry per spatial axis.
#[derive(Clone, Copy, Debug)]
pub struct PoolingShape<'a> {
    /// What becomes of a window.
    pub kind: Pooling,
    /// What is pooled.
    pub source: &'a Desc,
    /// What comes out.
    pub destination: &'a Desc,
    /// Size of a window.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Step between a window's elements, 1 for neighbours.
    pub dilation: [usize; 2],
    /// Padding before the first row and column.
    pub pad_begin: [usize; 2],
    /// Padding after the last row and column.
    pub pad_end: [usize; 2],
}

struct PoolingGeometry {
    kernel: Dims,
    stride: Dims,
    dilation: Dims,
    begin: Dims,
    end: Dims,
}

impl PoolingGeometry {
    fn new(what: &PoolingShape<'_>) -> PoolingGeometry {
        PoolingGeometry {
            kernel: dims(&what.kernel),
            stride: dims(&what.stride),
            // The library counts the elements left out.
            dilation: dims(&what.dilation.map(|step| step.saturating_sub(1))),
            begin: dims(&what.pad_begin),
            end: dims(&what.pad_end),
        }
    }
}

const FORWARD: &str = "dnnl_pooling_forward_primitive_desc_create";

impl Engine {
    /// `src -> dst[, workspace]`: with a workspace, which says where the largest elements were, if a
    /// gradient is to follow.
    ///
    /// # Errors
    /// A failure of the library; `None` is that it has no implementation that is worth using.
    pub fn pooling(
        self: &Arc<Engine>,
        what: &PoolingShape<'_>,
        gradient_follows: bool,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let args = [Arg::Source, Arg::Destination, Arg::Workspace];
        let count = if gradient_follows { 3 } else { 2 };
        self.make(FORWARD, &args[..count], |pd, api| {
            self.pooling_forward(what, gradient_follows, pd, api)
        })
    }

    /// `diff_dst[, workspace] -> diff_src`; the workspace is there for the maximum.
    ///
    /// # Errors
    /// As for [`Engine::pooling`].
    pub fn pooling_gradient(
        self: &Arc<Engine>,
        what: &PoolingShape<'_>,
    ) -> Result<Option<Primitive>, OneDnnError> {
        let _threads = self.library.with_threads(self.threads);
        let hint = self.descriptor(FORWARD, |pd, api| self.pooling_forward(what, true, pd, api))?;
        let Some(hint) = hint else {
            return Ok(None);
        };
        let geometry = PoolingGeometry::new(what);
        let args = [Arg::DestinationGrad, Arg::SourceGrad, Arg::Workspace];
        let count = if what.kind == Pooling::Max { 3 } else { 2 };
        let call = "dnnl_pooling_backward_primitive_desc_create";
        self.make(call, &args[..count], |pd, api| {
            // SAFETY: all objects are alive; the arrays hold the greatest number of axes.
            unsafe {
                (api.pooling_gradient)(
                    pd,
                    self.handle,
                    what.kind.number(),
                    what.source.handle,
                    what.destination.handle,
                    &raw const geometry.stride,
                    &raw const geometry.kernel,
                    &raw const geometry.dilation,
                    &raw const geometry.begin,
                    &raw const geometry.end,
                    hint.handle,
                    self.attributes,
                )
            }
        })
    }

    fn pooling_forward(
        &self,
        what: &PoolingShape<'_>,
        training: bool,
        pd: *mut Handle,
        api: &Api,
    ) -> Status {
        let geometry = PoolingGeometry::new(what);
        let kind = match training {
            true => ffi::FORWARD_TRAINING,
            false => ffi::FORWARD_INFERENCE,
        };
        // SAFETY: all objects are alive; the arrays hold the greatest number of axes.
        unsafe {
            (api.pooling)(
                pd,
                self.handle,
                kind,
                what.kind.number(),
                what.source.handle,
                what.destination.handle,
                &raw const geometry.stride,
                &raw const geometry.kernel,
                &raw const geometry.dilation,
                &raw const geometry.begin,
                &raw const geometry.end,
                self.attributes,
            )
        }
    }
}
