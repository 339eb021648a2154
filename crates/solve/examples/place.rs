//! Places the buffers of allocation instances and prints one line each: `place FILE…`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
fn main() {
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file).unwrap();
        let instance = scrimp_plan::read_allocation_instance(&text).unwrap();
        let start = std::time::Instant::now();
        let p = scrimp_solve::place_intervals(&instance.intervals, instance.capacity);
        println!(
            "{file} {} intervals: arena {} live {} lost {:.3} % in {:.3} s",
            instance.intervals.len(),
            p.arena_bytes,
            p.live_bytes,
            100.0 * (p.arena_bytes as f64 / p.live_bytes as f64 - 1.0),
            start.elapsed().as_secs_f64()
        );
    }
}
