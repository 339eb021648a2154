//! The kernels as CUDA C: NVRTC compiles every program where it is installed, GPU or not.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use scrimp_gpu::cuda::{Compiler, Made};
use scrimp_gpu::{GpuError, Interface};
use scrimp_graph::DType;

use super::{prelude, source};

#[test]
fn the_kernels_are_cuda_too() {
    let compiler = match Compiler::load(None) {
        Ok(compiler) => compiler,
        Err(error @ GpuError::NotFound { .. }) => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    for dtype in [DType::F32, DType::F64, DType::I64] {
        let source = source(prelude(Interface::Cuda), dtype);
        // A device's own code, and code for a driver to translate.
        for capability in [(9, 0), (9, 9)] {
            match compiler.compile(&source, capability).expect("it answers") {
                Made::Code(code) => assert!(code.len() > 10_000, "{dtype}: {}", code.len()),
                Made::Complaints(log) => panic!("{dtype}: {log}"),
            }
        }
    }
    let made = compiler.compile("nonsense;", (9, 0)).expect("it answers");
    assert!(matches!(made, Made::Complaints(log) if log.contains("nonsense")));
    let made = compiler.compile("", (1, 0)).expect("it answers");
    assert!(matches!(made, Made::Complaints(log) if log.contains("1.0")));
}
