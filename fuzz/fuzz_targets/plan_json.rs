//! Any bytes as a plan file for one fixed problem: `cargo +nightly fuzz run plan_json`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use scrimp_plan::testing::{Shape, plan_text, random_problem};

fuzz_target!(|data: &[u8]| plan_text(&random_problem(1, &Shape::everything(12)), data));
