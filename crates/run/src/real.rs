//! The two floating-point types that kernels are written for, and their elementary functions.
//!
//! The `f32` functions are branch-free so that loops over them vectorize; their relative errors are a
//! few units in the last place (tested against `f64`). The `f64` functions are the platform's and
//! `libm`'s, for checking gradients.

use bytemuck::Pod;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

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
    + crate::kernels::micro::Micro
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// −∞
    const NEG_INFINITY: Self;
    /// Rounds to this type.
    fn of(x: f64) -> Self;
    /// Exact.
    fn f64(self) -> f64;
    /// e^x
    fn exp(self) -> Self;
    /// ln x
    fn ln(self) -> Self;
    /// √x
    fn sqrt(self) -> Self;
    /// tanh x
    fn tanh(self) -> Self;
    /// erf x
    fn erf(self) -> Self;
    /// |x|
    fn abs(self) -> Self;
    /// x^y
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
    fn exp(self) -> f64 {
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
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn erf(self) -> f64 {
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
    fn exp(self) -> f32 {
        exp_f32(self)
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
    fn tanh(self) -> f32 {
        tanh_f32(self)
    }
    #[inline(always)]
    fn erf(self) -> f32 {
        erf_f32(self)
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

/// e^x = 2^n · e^r with |r| ≤ ln 2 / 2; 2^n is applied in two halves so that neither overflows. Below
/// the smallest normal number it is 0: numbers that aren't normal are computed a hundred times slower,
/// and half of a causal attention's exponentials are.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer
    const LEAST: f32 = -87.0;
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < LEAST { LEAST } else { clamped };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = clamped - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    // Taylor coefficients to the seventh power: the remainder is below 1e-9.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r * r + r + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = exponent >> 1;
    let first = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let second = f32::from_bits((exponent.wrapping_sub(half).wrapping_add(127) << 23) as u32);
    let power = p * first * second;
    if x < LEAST { 0.0 } else { power }
}

#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let a = x.abs();
    // (1 − e^(−2a)) / (1 + e^(−2a)) cancels near 0; there the odd Taylor-like polynomial is exact enough.
    let e = exp_f32(-2.0 * a);
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    let z = x * x;
    let p = TANH[6];
    let p = p * z + TANH[5];
    let p = p * z + TANH[4];
    let p = p * z + TANH[3];
    let p = p * z + TANH[2];
    let p = p * z + TANH[1];
    let p = p * z + TANH[0];
    let small = p * z * x + x;
    if a < 0.625 { small } else { large }
}

/// erf: an odd polynomial below 1, 1 − e^(−x²)·P(1/x)/x above.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = ERF[7];
    let p = p * z + ERF[6];
    let p = p * z + ERF[5];
    let p = p * z + ERF[4];
    let p = p * z + ERF[3];
    let p = p * z + ERF[2];
    let p = p * z + ERF[1];
    let p = p * z + ERF[0];
    let small = p * x;
    let a = if a > 4.5 { 4.5 } else { a };
    let t = 1.0 / (a + 2.0);
    let q = ERFC[8];
    let q = q * t + ERFC[7];
    let q = q * t + ERFC[6];
    let q = q * t + ERFC[5];
    let q = q * t + ERFC[4];
    let q = q * t + ERFC[3];
    let q = q * t + ERFC[2];
    let q = q * t + ERFC[1];
    let q = q * t + ERFC[0];
    let large = (1.0 - exp_f32(-a * a) * q).copysign(x);
    if z < 1.0 { small } else { large }
}

/// (tanh(√z)/√z − 1)/z on [0, 0.4], least maximal error 7e-11.
const TANH: [f32; 7] = [
    -0.333_333_34,
    0.133_333_32,
    -0.053_967_674,
    0.021_859_996,
    -0.008_790_537,
    0.003_303_417_4,
    -0.000_858_503_3,
];

/// erf(√z)/√z on [0, 1], least maximal error 4e-11.
const ERF: [f32; 8] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -0.376_126_4,
    0.112_837_83,
    -0.026_865_445,
    0.005_221_075,
    -0.000_848_471_2,
    0.000_112_705_45,
    -9.680_138e-6,
];

/// erfc(x)·e^(x²) in powers of 1/(x + 2) on [1, 4.5], least maximal error 7e-11.
const ERFC: [f32; 9] = [
    -8.663_655e-5,
    0.567_515_2,
    1.073_015_7,
    2.494_458_5,
    -0.158_302_65,
    13.070_606,
    -20.015_554,
    3.515_077_6,
    5.917_614,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_functions_agree_with_f64() {
        let check = |name: &str, got: f32, want: f64| {
            let error = (f64::from(got) - want).abs();
            assert!(error <= 4.0e-7 * want.abs() + 1e-37, "{name}: {got} {want}");
        };
        for i in -200_000..200_000 {
            let x = i as f32 * 5e-4;
            let d = f64::from(x);
            if (-87.0..88.0).contains(&x) {
                check("exp", exp_f32(x), d.exp());
            }
            check("tanh", tanh_f32(x), d.tanh());
            check("erf", erf_f32(x), libm::erf(d));
        }
        for x in [f32::INFINITY, 1e30, 89.5] {
            assert_eq!(exp_f32(x), f32::INFINITY);
            assert_eq!(exp_f32(-1.2 * x), 0.0);
            assert_eq!(tanh_f32(-x), -1.0);
            assert_eq!(erf_f32(x), 1.0);
        }
        assert!(
            exp_f32(f32::NAN).is_nan() && tanh_f32(f32::NAN).is_nan() && erf_f32(f32::NAN).is_nan()
        );
    }
}
