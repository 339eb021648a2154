//! What can go wrong with CUDA's driver and compiler, shown with ones that do it: a stub in C, compiled by the test.
//! Skipped, and said so, where there is no C compiler.

#![allow(unsafe_code, reason = "kernels are launched")]

mod stub;

use scrimp_gpu::{Context, GpuError, cuda};
use std::path::Path;

/// Everything that a run does.
fn run(stub: &Path, kept: &Path) -> Result<(), GpuError> {
    let device = cuda::Driver::load(Some(stub))?.device(0)?;
    assert_eq!((&*device.name, device.capability), ("Stub 7", (9, 0)));
    // The program of this name is compiled by the same file.
    // SAFETY: this is the only test of its process.
    unsafe { std::env::set_var("SCRIMP_NVRTC", stub) };
    let context = Context::Cuda(cuda::Context::new(&device)?);
    let queue = context.queue()?;
    let buffer = context.buffer(4096)?;
    let mut host = [0u8; 64];
    // SAFETY: the memory outlives the guard.
    let locked = unsafe { context.lock(host.as_mut_ptr(), 64)? };
    assert!(locked.is_some());
    queue.fill(&buffer, 0, 4096, 0)?;
    queue.write(&1f32.to_le_bytes(), &buffer, 16)?;
    let kernel = context.program("kernel", Some(kept))?.kernel("add")?;
    let arguments = [16u64.to_le_bytes(), 2064u64.to_le_bytes()].map(|at| at.to_vec());
    let arguments = [&arguments[..], &[0.5f32.to_le_bytes().to_vec()]].concat();
    // SAFETY: the stub adds 256 numbers, which are inside.
    let event = unsafe { queue.launch(&kernel, &buffer, &arguments, [1, 256], &[])? };
    event.wait()?;
    let [start, end] = event.times()?;
    assert_eq!(end - start, 1_000_000, "a millisecond of the stub's clock");
    // A launch begins where the command before it ended, unless the queue paused.
    for paused in [false, true] {
        let launch = || {
            // SAFETY: as above.
            unsafe { queue.launch(&kernel, &buffer, &arguments, [1, 256], &[]) }
        };
        let [_, before] = launch()?.times()?;
        if paused {
            queue.pause();
        }
        let [start, end] = launch()?.times()?;
        assert_eq!((start > before, start < end), (paused, true));
    }
    let mut answer = context.answer()?;
    // SAFETY: the answer lives until the command is done.
    let told = unsafe { queue.begin_answer(&buffer, 2064, &mut answer)? };
    told.expect("a command").wait()?;
    let both = u64::from(1.5f32.to_bits()) | u64::from(0.5f32.to_bits()) << 32;
    assert_eq!(answer.numbers()[0] as u64, both);
    let outside = queue.read(&buffer, 4090, &mut host);
    assert!(
        matches!(
            outside,
            Err(GpuError::Outside {
                end: 4154,
                found: 4096,
                ..
            })
        ),
        "{outside:?}"
    );
    drop(locked);
    queue.finish()
}

#[test]
fn each_failure_is_a_sentence() {
    let says = [
        ("NOTHING_WRONG", None),
        (
            "WITHOUT_FINISH",
            Some("it has no function `cuStreamSynchronize`; install a driver for CUDA 12 or later"),
        ),
        (
            "NO_DEVICE",
            Some("there is no device 0 of CUDA's driver; no driver has one"),
        ),
        ("TOO_OLD", Some("it is for CUDA 11.4; install a driver")),
        (
            "BUILD_FAILS",
            Some(
                "can't compile scrimp's kernels; update the driver. It says: line 7: no such thing",
            ),
        ),
        ("FULL", Some("has no 4096 bytes for a buffer")),
        ("UNLOCKED", Some("doesn't lock 64 bytes of main memory")),
        ("LOST", Some("was lost in `cuEventQuery` (status 700)")),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for (wrong, says) in says {
        let Some(stub) = stub::compiled("cuda_stub.c", wrong, folder.path()) else {
            return;
        };
        let kept = folder.path().join(wrong);
        match (run(&stub, &kept), says) {
            (Ok(()), None) => {
                // What was compiled is there the next time, and the compiler isn't asked.
                assert_eq!(kept.read_dir().expect("there").count(), 1);
            }
            (Err(error), Some(says)) => {
                let error = error.to_string();
                assert!(error.contains(says), "{wrong}: {error}");
            }
            (result, _) => panic!("{wrong}: {result:?}"),
        }
    }
    let nowhere = folder.path().join("libcuda.so.1");
    let error = cuda::Driver::load(Some(&nowhere)).expect_err("no file");
    assert!(matches!(error, GpuError::NotThere { .. }), "{error}");
    std::fs::write(&nowhere, "text").expect("written");
    let error = cuda::Driver::load(Some(&nowhere)).expect_err("no library");
    assert!(matches!(error, GpuError::Unusable { .. }), "{error}");
}
