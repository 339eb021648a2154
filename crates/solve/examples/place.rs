//! Places the buffers of allocation instances and prints one line each: `place FILE…`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
use scrimp_solve::{Cutoff, place_intervals};

fn main() {
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file).unwrap();
        let instance = scrimp_plan::read_allocation_instance(&text).unwrap();
        let start = cpu_seconds();
        let p = place_intervals(&instance.intervals, instance.capacity, Cutoff::NEVER);
        println!(
            "{file} {} intervals: arena {} live {} lost {:.3} %{} in {:.2} CPU seconds",
            instance.intervals.len(),
            p.arena_bytes,
            p.live_bytes,
            100.0 * (p.arena_bytes as f64 / p.live_bytes as f64 - 1.0),
            if p.arena_bytes == p.floor_bytes {
                " optimal"
            } else {
                ""
            },
            cpu_seconds() - start
        );
    }
}

/// What this process has used, where the system says so.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |k: usize| fields.get(k).map_or(0.0, |f| f.parse().unwrap());
    (ticks(11) + ticks(12)) / 100.0
}
