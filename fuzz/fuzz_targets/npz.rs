//! Any bytes as a file of data: `cargo +nightly fuzz run npz`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scrimp_graph::data::Arrays;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    // Either outcome is right; it must not panic or take much memory.
    let _ = Arrays::from_reader(Cursor::new(data), 1 << 20);
});
