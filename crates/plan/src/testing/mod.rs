//! Random problems, valid random plans, and wrong plans, for tests and fuzz targets. They are drawn from
//! an [`Unstructured`], so that one generator serves a fuzzer's bytes and a seed's bytes. Only [`network`]s are
//! drawn from a seed.

mod families;
mod fuzz;
mod plans;
mod problems;

pub use arbitrary::{Result, Unstructured};
pub use families::{Family, network};
pub use fuzz::{generate_and_check, instance_text, plan_text, problem_text};
pub use plans::{mutate, plan};
pub use problems::{Shape, problem};

/// Bytes that depend only on the seed.
#[must_use]
pub fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend(splitmix(&mut state).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// The next number of splitmix64.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A problem that depends only on the seed and the shape.
///
/// # Panics
/// Never: the generator draws no more than its bytes allow, and every drawn problem is valid.
#[must_use]
pub fn random_problem(seed: u64, shape: &Shape) -> crate::Problem {
    let bytes = random_bytes(seed, 256 + 64 * shape.max_tasks);
    problem(&mut Unstructured::new(&bytes), shape).expect("running out of bytes draws zeros")
}
