//! Problems and plans drawn from the bytes: `cargo +nightly fuzz run generate_and_check`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Running out of bytes draws zeros, so there is no other outcome than success.
    let _ = scrimp_plan::testing::generate_and_check(data);
});
