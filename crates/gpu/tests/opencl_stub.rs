//! What can go wrong with a driver, shown with one that does it: a stub in C, compiled by the test. Skipped, and
//! said so, where there is no C compiler.

#![allow(unsafe_code, reason = "kernels are launched")]

mod stub;

use scrimp_gpu::{Context, GpuError, opencl};
use std::path::Path;

/// Everything that a run does.
fn run(stub: &Path) -> Result<(), GpuError> {
    let driver = opencl::Driver::load(Some(stub))?;
    let context = Context::OpenCl(opencl::Context::new(&driver.device(0)?)?);
    let queue = context.queue()?;
    let buffer = context.buffer(64)?;
    let kernel = context.program("kernel", None)?.kernel("kernel")?;
    // SAFETY: the stub runs nothing.
    let event = unsafe { queue.launch(&kernel, &buffer, &[], [1, 1], &[])? };
    event.wait()?;
    assert_eq!(event.times()?, [0x1282, 0x1283]);
    queue.fill(&buffer, 0, 64, 0)?;
    queue.write(&[1; 32], &buffer, 32)?;
    let mut bytes = [0; 32];
    queue.read(&buffer, 0, &mut bytes)?;
    assert_eq!(bytes, [7; 32]);
    let outside = queue.read(&buffer, 33, &mut bytes);
    assert!(
        matches!(
            outside,
            Err(GpuError::Outside {
                end: 65,
                found: 64,
                ..
            })
        ),
        "{outside:?}"
    );
    queue.finish()
}

#[test]
fn each_failure_is_a_sentence() {
    let says = [
        ("NOTHING_WRONG", None),
        (
            "WITHOUT_FILL",
            Some("it has no function `clEnqueueFillBuffer`"),
        ),
        (
            "NO_DRIVER",
            Some("there is no device 0 of OpenCL; no driver has one"),
        ),
        ("TOO_OLD", Some("it has OpenCL 1.1 and needs 1.2")),
        (
            "BUILD_FAILS",
            Some(
                "can't compile scrimp's kernels; update the driver. It says: line 7: no such thing",
            ),
        ),
        ("FULL", Some("has no 64 bytes for a buffer")),
        ("LOST", Some("was lost in `clWaitForEvents` (status -5)")),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (wrong, says) in says {
        let Some(stub) = stub::compiled("opencl_stub.c", wrong, folder.path()) else {
            return;
        };
        match (run(&stub), says) {
            (Ok(()), None) => {}
            (Err(error), Some(says)) => {
                let error = error.to_string();
                assert!(error.contains(says), "{wrong}: {error}");
            }
            (result, _) => panic!("{wrong}: {result:?}"),
        }
    }
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libOpenCL.so.1");
    let load = || {
        opencl::Driver::load(Some(&file))
            .map(|_| ())
            .expect_err("no library")
    };
    assert!(matches!(load(), GpuError::NotThere { .. }));
    std::fs::write(&file, "text").expect("written");
    assert!(matches!(load(), GpuError::Unusable { .. }));
}
