//! Any bytes as a problem file: `cargo +nightly fuzz run problem_json`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| scrimp_plan::testing::problem_text(data));
