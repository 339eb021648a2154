//! Any bytes as a file of weights: `cargo +nightly fuzz run safetensors`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scrimp_graph::weights::Weights;

fuzz_target!(|data: &[u8]| {
    // Either outcome is right; it must not panic.
    let _ = Weights::from_bytes(data);
});
