//! Changes of format.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::sync::Arc;

use crate::desc::Desc;
use crate::engine::Engine;
use crate::error::OneDnnError;
use crate::ffi::Api;
use crate::primitive::{Arg, Primitive};

impl Engine {
    /// `src -> dst`: the same elements in another format.
    ///
    /// # Errors
    /// A failure of the library, as in all functions that make a primitive; `None` is that it has no
    /// implementation that is worth using.
    pub fn reorder(
        self: &Arc<Engine>,
        from: &Desc,
        to: &Desc,
        adds: bool,
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
                    self.attributes(adds),
                )
            }
        };
        let call = "dnnl_reorder_primitive_desc_create";
        self.make(call, &[Arg::Source, Arg::Destination], create)
    }
}
