//! The first device that is installed, if any: kernels in one buffer, copies, timestamps, kept programs.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]
#![allow(unsafe_code, reason = "kernels are launched")]

use scrimp_opencl::{Context, Library, OpenClError, Program, Queue, Value};

fn context() -> Option<Context> {
    let device = Library::load(None).and_then(|library| library.device(0));
    match device {
        Ok(device) => Some(Context::new(&device).expect("it can be used")),
        Err(error @ (OpenClError::NotFound | OpenClError::NoDevice { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Adds a number to floats; the structure shows that structures are passed as they are.
const SOURCE: &str = "
typedef struct { uint count; uint more[3]; } Shape;
kernel void add(global char *memory, ulong x, ulong y, Shape shape, float by) {
    uint i = get_global_id(0);
    if (i < shape.count) ((global float *)(memory + y))[i] = ((global float *)(memory + x))[i] + by + shape.more[2];
}";

#[test]
fn a_kernel_reads_and_writes_parts_of_one_buffer() {
    let Some(context) = context() else { return };
    let queue = Queue::new(&context).expect("a queue");
    let buffer = context.buffer(4096).expect("memory");
    queue.fill(&buffer, 0, 4096, 0xff).expect("filled");
    let x: Vec<u8> = (0..10).flat_map(|i| (i as f32).to_le_bytes()).collect();
    queue.write(&x, &buffer, 64).expect("written");
    let folder = tempfile::tempdir().expect("a folder");
    // The second program is the one that was kept.
    for kept in [0, 1] {
        assert_eq!(folder.path().read_dir().expect("there").count(), kept);
        let program = Program::new(&context, SOURCE, "", Some(folder.path())).expect("it compiles");
        let kernel = program.kernel("add").expect("it is there");
        let shape: Vec<u8> = [10u32, 0, 0, 5]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let (from, to, by) = (
            64u64.to_le_bytes(),
            128u64.to_le_bytes(),
            0.5f32.to_le_bytes(),
        );
        let arguments = [
            Value::Buffer(&buffer),
            Value::Bytes(&from),
            Value::Bytes(&to),
            Value::Bytes(&shape),
            Value::Bytes(&by),
        ];
        // SAFETY: both parts are inside of the buffer.
        let event = unsafe { queue.launch(&kernel, &arguments, 1, 256, &[]) }.expect("launched");
        event.wait().expect("it runs");
        let times = event.times().expect("it has times");
        assert!(times.queued <= times.start && times.start <= times.end && times.end > 0);
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
    let Some(context) = context() else { return };
    let [first, second] = [(); 2].map(|()| Queue::new(&context).expect("a queue"));
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
    let Some(context) = context() else { return };
    let error = Program::new(&context, "kernel void f() { nonsense; }", "", None)
        .expect_err("it doesn't compile");
    assert!(
        matches!(&error, OpenClError::Build { log, .. } if log.contains("nonsense")),
        "{error}"
    );
}

#[test]
fn a_buffer_that_is_too_large_is_refused() {
    let Some(context) = context() else { return };
    let error = context.buffer(1 << 50).expect_err("no device has that");
    assert_eq!(error, OpenClError::OutOfMemory { bytes: 1 << 50 });
}

#[test]
fn threads_may_ask_for_devices_at_the_same_time() {
    let names = || {
        let device = Library::load(None).and_then(|library| library.device(0));
        device.map(|device| device.name)
    };
    let threads = [(); 4].map(|()| std::thread::spawn(names));
    let all = threads.map(|thread| thread.join().expect("no panic"));
    assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
}
