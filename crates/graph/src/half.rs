//! The 16-bit float types of files, widened and rounded.

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

/// The nearest half precision number; ties go to the even one.
pub(crate) fn f32_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    if value.is_nan() {
        return sign | 0x7e00;
    }
    // Half way between the largest number and what would come after it.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    let smallest_normal = 0.5f32.powi(14);
    if magnitude < smallest_normal {
        // In units of the last place, which are all the same here.
        return sign | (magnitude * 2f32.powi(24)).round_ties_even() as u16;
    }
    let magnitude = magnitude.to_bits();
    let kept = magnitude >> 13;
    let rest = magnitude & 0x1fff;
    let up = rest > 0x1000 || (rest == 0x1000 && kept & 1 == 1);
    sign | (kept + u32::from(up) - (112 << 10)) as u16
}

/// The nearest number that is the upper half of a single; ties go to the even one.
pub(crate) fn f32_to_bfloat(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    let even = (bits >> 16) & 1;
    ((bits + 0x7fff + even) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::{bfloat_to_f32, f32_to_bfloat, f32_to_half, half_to_f32};

    #[test]
    fn every_half_is_its_own_nearest() {
        for bits in 0..=u16::MAX {
            let value = half_to_f32(bits);
            if value.is_nan() {
                assert!(half_to_f32(f32_to_half(value)).is_nan());
            } else {
                assert_eq!(f32_to_half(value), bits, "{value}");
                // And so are the numbers close to it, on either side.
                if value.is_finite() && value.abs() > 1e-7 {
                    assert_eq!(f32_to_half(value * 1.0001), bits, "{value}");
                    assert_eq!(f32_to_half(value * 0.9999), bits, "{value}");
                }
            }
            let value = bfloat_to_f32(bits);
            assert!(value.is_nan() || f32_to_bfloat(value) == bits, "{value}");
        }
        // Ties go to the even one.
        assert_eq!(f32_to_half(1.0 + 0.5f32.powi(11)), 0x3c00);
        assert_eq!(f32_to_half(1.0 + 3.0 * 0.5f32.powi(11)), 0x3c02);
        assert_eq!(f32_to_half(65519.0), 0x7bff);
        assert_eq!(f32_to_half(65520.0), 0x7c00);
        assert_eq!(f32_to_bfloat(1.0 + 0.5f32.powi(8)), 0x3f80);
    }

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
