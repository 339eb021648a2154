//! Nothing is allocated while a step runs: a counting allocator watches the whole process, and the C
//! library's allocator is asked what else was taken from it.

#![allow(unsafe_code, reason = "a global allocator that counts")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that reports its measurement"
)]

mod common;

use common::{Case, beside_a_host, network, onednn, place, set_inputs, small_net, swapped};
use scrimp_graph::networks::NetworkOptions;
use scrimp_graph::{Graph, Optimizer};
use scrimp_plan::CheckedPlan;
use scrimp_run::{Cpu, Executor, ExecutorOptions, FIXED_OVERHEAD_BYTES};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

struct Counting;

static WATCHING: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHING.load(Relaxed) {
            BYTES.fetch_add(layout.size() as u64, Relaxed);
        }
        // SAFETY: the caller's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's conditions.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What the C library's allocator has taken from the system, which is where oneDNN allocates. Zero
/// where there is no way to ask.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod system {
    #![allow(unsafe_code, reason = "asks the C library")]

    /// `struct mallinfo2`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        arena: usize,
        ordblks: usize,
        smblks: usize,
        hblks: usize,
        hblkhd: usize,
        usmblks: usize,
        fsmblks: usize,
        uordblks: usize,
        fordblks: usize,
        keepcost: usize,
    }

    unsafe extern "C" {
        fn mallinfo2() -> Info;
    }

    /// Bytes taken from the system, and bytes of them that are allocated.
    pub fn bytes() -> (usize, usize) {
        // SAFETY: no arguments; it only reads the allocator's counts.
        let info = unsafe { mallinfo2() };
        (info.arena + info.hblkhd, info.uordblks + info.hblkhd)
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
mod system {
    pub fn bytes() -> (usize, usize) {
        (0, 0)
    }
}

#[test]
fn a_step_allocates_nothing_outside_the_arena() {
    let transformer = NetworkOptions {
        batch: 2,
        layers: Some(2),
        width: Some(64),
        heads: Some(4),
        sequence: Some(32),
        vocabulary: Some(100),
        dropout: Some(0.1),
        ..NetworkOptions::default()
    };
    let resnet = NetworkOptions {
        batch: 2,
        image: Some([64, 64]),
        ..NetworkOptions::default()
    };
    let graphs = [
        ("small", small_net()),
        ("transformer", network("transformer", transformer)),
        ("resnet18", network("resnet18", resnet)),
    ];
    let devices = [Cpu::new(2).ok(), onednn(2)];
    for (name, graph) in &graphs {
        for cpu in devices.iter().flatten() {
            steps_of(name, graph, cpu);
        }
    }
    without_avx512();
}

/// Without AVX-512 the library chooses other implementations. A process has one choice, so this one runs the test again in
/// another.
fn without_avx512() {
    const MOST: &str = "ONEDNN_MAX_CPU_ISA";
    if std::env::var_os(MOST).is_some() {
        return;
    }
    let mut test = std::process::Command::new(std::env::current_exe().unwrap());
    let done = test.env(MOST, "AVX2").output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

fn steps_of(name: &str, graph: &Graph, cpu: &Cpu) {
    let sgd = Optimizer::Sgd {
        momentum: 0.9,
        weight_decay: 0.0,
    };
    let case = Case::new(graph, Some(sgd), cpu);
    let (problem, devices) = beside_a_host(&case.lowered.problem);
    let recomputes = case.recompute(|task| task.as_u32() % 2 == 0);
    let swaps = swapped(&case.keep_all(), &problem, devices);
    for (does, plan) in [("recomputes", recomputes), ("swaps", swaps)] {
        let most = most_of(&case, &plan, cpu);
        println!(
            "{name}, {}: at most {most} bytes allocated outside the arenas in a step that {does}",
            cpu.signature()
        );
        assert!(most <= FIXED_OVERHEAD_BYTES, "{name} {does}: {most} bytes");
    }
}

/// The most bytes that a step allocates, of those after the first.
fn most_of(case: &Case, plan: &CheckedPlan, cpu: &Cpu) -> u64 {
    let (compiled, layout) = (case.compiled(cpu), place(plan));
    let options = ExecutorOptions::default();
    let mut executor = Executor::new(
        std::slice::from_ref(&compiled),
        &case.lowered,
        &layout,
        options,
    )
    .unwrap();
    let mut most = 0;
    for step in 0..4 {
        set_inputs(case.graph(), &mut executor, step);
        BYTES.store(0, Relaxed);
        let before = system::bytes();
        WATCHING.store(step > 0, Relaxed);
        executor.step(None).unwrap();
        WATCHING.store(false, Relaxed);
        let after = system::bytes();
        most = most.max(BYTES.load(Relaxed));
        if step > 0 {
            let taken = after.0.saturating_sub(before.0);
            let kept = after.1.saturating_sub(before.1);
            most = most.max(taken.max(kept) as u64);
        }
    }
    most
}
