//! The 16-bit float types of files, widened.

/// IEEE half precision to single.
pub(crate) fn half_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from((bits >> 10) & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Zero and subnormals: fraction · 2⁻²⁴, exact in f32.
        0 => f32::from_bits(sign | (fraction as f32 * 0.5f32.powi(24)).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// The upper half of a single.
pub(crate) fn bfloat_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::half_to_f32;

    #[test]
    fn halves() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
            (0x3555, 0.333_251_95),
            (0x8000, -0.0),
        ] {
            assert_eq!(
                half_to_f32(bits).to_bits(),
                f32::to_bits(value),
                "{bits:#x}"
            );
        }
        assert!(half_to_f32(0x7e00).is_nan());
        assert_eq!(half_to_f32(0xfc00), f32::NEG_INFINITY);
    }
}
