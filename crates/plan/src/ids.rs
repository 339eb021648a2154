//! Newtype ids. Vectors keyed by them are `cranelift_entity::PrimaryMap`s.

use cranelift_entity::entity_impl;
use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);
        entity_impl!($name, $prefix);
    };
}

id!(
    /// A memory space, with or without compute.
    DeviceId,
    "device"
);
id!(
    /// A directed connection between two devices.
    LinkId,
    "link"
);
id!(
    /// One execution of one operator. Task order is the given order.
    TaskId,
    "task"
);
id!(
    /// One storage: bytes that a task writes or that are given at the start.
    ValueId,
    "value"
);
id!(
    /// One allocation of a checked plan: some bytes that are held during a stretch of steps.
    BufferId,
    "buffer"
);
