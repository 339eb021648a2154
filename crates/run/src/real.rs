//! The two floating-point types that kernels are written for, and their elementary functions.
//!
//! The `f32` functions are branch-free so that loops over them vectorize; their relative errors are a
//! few units in the last place (tested against `f64`). The `f64` functions are the platform's and
//! `libm`'s, for checking gradients.

use bytemuck::Pod;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use crate::simd::Isa;

/// f32 or f64.
pub trait Real:
    Pod
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + crate::micro::Micro
    + crate::vector::Vectors
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    /// Rounds to this type.
    fn of(x: f64) -> Self;
    /// The same value in 64 bits, exactly.
    fn f64(self) -> f64;
    /// self · factor + addend, in one instruction where a loop compiled for `isa` has one.
    fn multiply_add(self, factor: Self, addend: Self, isa: Isa) -> Self;
    /// e^x, in a loop compiled for `isa`
    fn exp(self, isa: Isa) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    /// tanh x, in a loop compiled for `isa`
    fn tanh(self, isa: Isa) -> Self;
    /// erf x, in a loop compiled for `isa`
    fn erf(self, isa: Isa) -> Self;
    fn abs(self) -> Self;
    fn powf(self, y: Self) -> Self;

    /// The larger; NaN if `self` is NaN.
    #[inline(always)]
    fn or_more(self, other: Self) -> Self {
        if self < other { other } else { self }
    }

    /// The smaller; NaN if `self` is NaN.
    #[inline(always)]
    fn or_less(self, other: Self) -> Self {
        if self > other { other } else { self }
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn multiply_add(self, factor: f64, addend: f64, isa: Isa) -> f64 {
        if isa.fuses() {
            self.mul_add(factor, addend)
        } else {
            self * factor + addend
        }
    }
    #[inline(always)]
    fn exp(self, _: Isa) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> f64 {
        f64::ln(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    #[inline(always)]
    fn tanh(self, _: Isa) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn erf(self, _: Isa) -> f64 {
        libm::erf(self)
    }
    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    #[inline(always)]
    fn powf(self, y: f64) -> f64 {
        f64::powf(self, y)
    }
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn f64(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn multiply_add(self, factor: f32, addend: f32, isa: Isa) -> f32 {
        if isa.fuses() {
            self.mul_add(factor, addend)
        } else {
            self * factor + addend
        }
    }
    #[inline(always)]
    fn exp(self, isa: Isa) -> f32 {
        exp_f32(self, isa)
    }
    #[inline(always)]
    fn ln(self) -> f32 {
        f32::ln(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn tanh(self, isa: Isa) -> f32 {
        tanh_f32(self, isa)
    }
    #[inline(always)]
    fn erf(self, isa: Isa) -> f32 {
        erf_f32(self, isa)
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn powf(self, y: f32) -> f32 {
        f32::powf(self, y)
    }
}

/// e^x = 2^n · e^r with |r| ≤ ln 2 / 2. 2^n is applied in two halves so that neither overflows. Below the
/// smallest normal number the result is 0: subnormal numbers are computed a hundred times slower, and half of
/// a causal attention's exponentials are subnormal.
#[inline(always)]
fn exp_f32(x: f32, isa: Isa) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer
    const LEAST: f32 = -87.0;
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < LEAST { LEAST } else { clamped };
    let shifted = clamped.multiply_add(std::f32::consts::LOG2_E, ROUND, isa);
    let n = shifted - ROUND;
    let r = n.multiply_add(-0.693_359_4, clamped, isa);
    let r = n.multiply_add(2.121_944_4e-4, r, isa);
    let p = polynomial(&EXP, r, isa).multiply_add(r * r, r, isa) + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = exponent >> 1;
    let first = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let second = f32::from_bits((exponent.wrapping_sub(half).wrapping_add(127) << 23) as u32);
    let power = p * first * second;
    if x < LEAST { 0.0 } else { power }
}

#[inline(always)]
fn tanh_f32(x: f32, isa: Isa) -> f32 {
    let a = x.abs();
    // (1 − e^(−2a)) / (1 + e^(−2a)) cancels near 0; the odd Taylor-like polynomial is exact enough there.
    let e = exp_f32(-2.0 * a, isa);
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    let z = x * x;
    let small = (polynomial(&TANH, z, isa) * z).multiply_add(x, x, isa);
    if a < 0.625 { small } else { large }
}

/// erf is x·P(x²)/Q(x²) below 4. From there on it is 1 or the next smaller number.
#[inline(always)]
fn erf_f32(x: f32, isa: Isa) -> f32 {
    let clamped = x.or_more(-4.0).or_less(4.0);
    let z = clamped * clamped;
    let ratio = polynomial(&ERF_OVER, z, isa) / polynomial(&ERF_UNDER, z, isa);
    (clamped * ratio).or_more(-1.0).or_less(1.0)
}

/// Σ c[i]·x^i
#[inline(always)]
fn polynomial<const N: usize>(c: &[f32; N], x: f32, isa: Isa) -> f32 {
    let mut sum = c[N - 1];
    for &c in c[..N - 1].iter().rev() {
        sum = sum.multiply_add(x, c, isa);
    }
    sum
}

/// (e^r − 1 − r)/r² by Taylor's coefficients: the remainder of e^r is below 1e-8 for |r| ≤ ln 2 / 2.
const EXP: [f32; 6] = [
    0.5,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
];

/// (tanh(√z)/√z − 1)/z on [0, 0.4]; the largest error is 7e-11.
const TANH: [f32; 7] = [
    -0.333_333_34,
    0.133_333_32,
    -0.053_967_674,
    0.021_859_996,
    -0.008_790_537,
    0.003_303_417_4,
    -0.000_858_503_3,
];

/// erf(√z)/√z on [0, 16] as a ratio of polynomials; the largest relative error is about 1e-7.
const ERF_OVER: [f32; 6] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    0.193_538_81,
    0.053_100_925,
    0.003_883_079,
    0.000_284_560_02,
    1.986_828e-6,
];
const ERF_UNDER: [f32; 6] = [
    1.0,
    0.504_851_9,
    0.115_347_42,
    0.015_206_719,
    0.001_185_507_3,
    3.742_035e-5,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_functions_agree_with_f64() {
        let check = |name: &str, got: f32, want: f64| {
            let error = (f64::from(got) - want).abs();
            assert!(error <= 5.0e-7 * want.abs() + 1e-37, "{name}: {got} {want}");
        };
        // `mul_add` is right without the instruction, too, but slow.
        for isa in [Isa::Avx2, Isa::Portable] {
            for i in -200_000..200_000 {
                let x = i as f32 * 5e-4;
                let d = f64::from(x);
                if (-87.0..88.0).contains(&x) {
                    check("exp", exp_f32(x, isa), d.exp());
                }
                check("tanh", tanh_f32(x, isa), d.tanh());
                check("erf", erf_f32(x, isa), libm::erf(d));
            }
            for x in [f32::INFINITY, 1e30, 89.5] {
                assert_eq!(exp_f32(x, isa), f32::INFINITY);
                assert_eq!(exp_f32(-1.2 * x, isa), 0.0);
                assert_eq!(tanh_f32(-x, isa), -1.0);
                assert!((1.0 - erf_f32(x, isa)).abs() <= 1.2e-7);
            }
            let nan = f32::NAN;
            assert!(exp_f32(nan, isa).is_nan());
            assert!(tanh_f32(nan, isa).is_nan() && erf_f32(nan, isa).is_nan());
        }
    }
}
