//! Any bytes as an ONNX model: `cargo +nightly fuzz run onnx`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scrimp_graph::onnx::{ImportOptions, import_bytes};

fuzz_target!(|data: &[u8]| {
    let options = ImportOptions {
        batch: Some(2),
        ..Default::default()
    };
    // Either outcome is right; it must not panic or take much memory.
    let _ = import_bytes(data.to_vec(), "fuzz", &options);
});
