//! Random bits that depend only on a key and a position, not on the order in which they are drawn.

/// 2^64 divided by the golden ratio, odd: the Weyl increment of the generator.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64-bit words whose output bits each depend on all input bits (two multiplications
/// and three shifts, the finalizer of SplitMix64). Draw `i` of a stream is `mix(key + i·GOLDEN)`.
#[inline(always)]
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
