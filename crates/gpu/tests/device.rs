//! The first device that is installed, if any: kernels in one buffer, copies, timestamps, kept programs.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]
#![allow(unsafe_code, reason = "kernels are launched")]

use scrimp_gpu::{Context, GpuError, Interface, opencl};

/// The first device of each interface.
fn contexts() -> impl Iterator<Item = Context> {
    let first = |interface| match Context::new(interface, 0) {
        Ok(context) => Some(context),
        Err(error @ (GpuError::NotFound { .. } | GpuError::NoDevice { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    Interface::ALL.into_iter().filter_map(first)
}

/// Adds a number to floats; the structure shows that structures are passed as they are.
const SOURCE: &str = "
typedef struct { unsigned count; unsigned more[3]; } Shape;
KERNEL void add(GLOBAL char *memory, unsigned long x, unsigned long y, Shape shape, float by) {
    unsigned i = INDEX;
    if (i < shape.count) ((GLOBAL float *)(memory + y))[i] = ((GLOBAL float *)(memory + x))[i] + by + shape.more[2];
}";

/// [`SOURCE`] in an interface's language.
fn source(interface: Interface) -> String {
    let (kernel, global, index) = match interface {
        Interface::OpenCl => ("kernel", "global", "get_global_id(0)"),
        Interface::Cuda => (
            "extern \"C\" __global__",
            "",
            "(blockIdx.x * blockDim.x + threadIdx.x)",
        ),
    };
    format!("#define KERNEL {kernel}\n#define GLOBAL {global}\n#define INDEX {index}\n{SOURCE}")
}

#[test]
fn a_kernel_reads_and_writes_parts_of_one_buffer() {
    contexts().for_each(|context| reads_and_writes(&context));
}

fn reads_and_writes(context: &Context) {
    let source = source(context.interface());
    let queue = context.queue().expect("a queue");
    let buffer = context.buffer(4096).expect("memory");
    queue.fill(&buffer, 0, 4096, 0xff).expect("filled");
    let x: Vec<u8> = (0..10).flat_map(|i| (i as f32).to_le_bytes()).collect();
    queue.write(&x, &buffer, 64).expect("written");
    let folder = tempfile::tempdir().expect("a folder");
    // The second program is the one that was kept.
    for kept in [0, 1] {
        assert_eq!(folder.path().read_dir().expect("there").count(), kept);
        let program = context
            .program(&source, Some(folder.path()))
            .expect("it compiles");
        let kernel = program.kernel("add").expect("it is there");
        let shape: Vec<u8> = [10u32, 0, 0, 5]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let [from, to] = [64u64, 128].map(|at| at.to_le_bytes().to_vec());
        let arguments = [from, to, shape, 0.5f32.to_le_bytes().to_vec()];
        // SAFETY: both parts are inside of the buffer.
        let event = unsafe { queue.launch(&kernel, &buffer, &arguments, [1, 256], &[]) };
        let event = event.expect("launched");
        queue.flush().expect("flushed");
        event.wait().expect("it runs");
        let [start, end] = event.times().expect("it has times");
        assert!(start <= end, "{start} {end}");
        let mut y = [0u8; 44];
        queue.read(&buffer, 128, &mut y).expect("read");
        let floats = y[..40]
            .chunks(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        assert_eq!(
            floats.collect::<Vec<_>>(),
            (0..10).map(|i| i as f32 + 5.5).collect::<Vec<_>>()
        );
        assert_eq!(y[40..], [0xff; 4], "nothing behind the tenth is written");
    }
}

#[test]
fn a_command_waits_for_those_of_another_queue() {
    contexts().for_each(|context| waits(&context));
}

fn waits(context: &Context) {
    let [first, second] = [(); 2].map(|()| context.queue().expect("a queue"));
    let buffer = context.buffer(1 << 22).expect("memory");
    for byte in 1..20 {
        let filled = first.begin_fill(&buffer, 0, 1 << 22, byte, &[]);
        let filled = filled.expect("it begins").expect("there are bytes");
        first.flush().expect("flushed");
        assert!(second.knows(&filled));
        let mut last = [0];
        // SAFETY: `last` lives until the command is done.
        let read = unsafe { second.begin_read(&buffer, (1 << 22) - 1, &mut last, &[filled]) };
        let read = read.expect("it begins").expect("there are bytes");
        second.flush().expect("flushed");
        read.wait().expect("read");
        assert_eq!(last, [byte]);
    }
}

#[test]
fn what_the_compiler_says_is_told() {
    for context in contexts() {
        let nonsense = source(context.interface()) + "\nstatic int f() { return nonsense; }";
        let error = context
            .program(&nonsense, None)
            .expect_err("it doesn't compile");
        assert!(
            matches!(&error, GpuError::Build { log, .. } if log.contains("nonsense")),
            "{error}"
        );
    }
}

#[test]
fn a_program_that_was_damaged_is_compiled_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for context in contexts() {
        let program = || context.program(&source(context.interface()), Some(folder.path()));
        program().expect("it compiles");
        for file in folder.path().read_dir().expect("there") {
            let file = file.expect("a file").path();
            let mut bytes = std::fs::read(&file).expect("read");
            bytes.truncate(bytes.len() / 2);
            std::fs::write(&file, bytes).expect("written");
        }
        program()
            .expect("it compiles")
            .kernel("add")
            .expect("it is there");
    }
}

#[test]
fn a_buffer_that_is_too_large_is_refused() {
    for context in contexts() {
        let error = context.buffer(1 << 50).expect_err("no device has that");
        assert_eq!(error, GpuError::OutOfMemory { bytes: 1 << 50 });
    }
}

#[test]
fn threads_may_ask_for_devices_at_the_same_time() {
    let names = || {
        let device = opencl::Driver::load(None).and_then(|driver| driver.device(0));
        device.map(|device| device.name)
    };
    let threads = [(); 4].map(|()| std::thread::spawn(names));
    let all = threads.map(|thread| thread.join().expect("no panic"));
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
}
