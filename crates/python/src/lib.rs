//! The Python module `scrimp._native`: the planner, the checker and placement for the package
//! `scrimp`, whose Python files say what users see. Nothing here decides anything.

mod allocator;
mod failure;
mod interrupt;
mod planned;
mod planning;
mod slab;

use pyo3::prelude::*;

/// The planner behind the package `scrimp`; use that instead.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::allocator::{
        slab_begin, slab_end, slab_live, slab_reserve, slab_source, slab_usage,
    };
    #[pymodule_export]
    use super::planned::{Placed, Planned};
    #[pymodule_export]
    use super::planning::{
        check, format_bytes, methods, parse_budget, parse_swap, place, plan, sweep,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
