//! Any bytes as a published instance: `cargo +nightly fuzz run instance_json`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| scrimp_plan::testing::instance_text(data));
