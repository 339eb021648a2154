//! The typical value of noisy measurements of a time.

/// Measurements beyond this multiple of the lower quartile are interruptions: another process had the
/// processor, or a clock changed.
const OUTLIER: f64 = 1.5;

/// The median of the measurements that aren't interruptions; 0 if there are no measurements.
///
/// Interruptions only ever add time. So the lower quartile is an honest measurement even if half of the
/// measurements were interrupted, and those far above it are left out.
pub(super) fn typical(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(&quartile) = sorted.get(sorted.len() / 4) else {
        return 0.0;
    };
    let kept = sorted.partition_point(|&s| s <= OUTLIER * quartile);
    match kept {
        0 => quartile,
        n => 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::typical;

    #[test]
    fn interruptions_do_not_count() {
        assert_eq!(typical(&[]), 0.0);
        assert_eq!(typical(&[0.0]), 0.0);
        assert_eq!(typical(&[2.0]), 2.0);
        assert_eq!(typical(&[2.0, 2.2, 50.0]), 2.1);
        // More than half of these were interrupted.
        assert_eq!(typical(&[9.0, 1.0, 8.0, 1.1, 7.0, 1.2, 90.0]), 1.1);
        // Ordinary spread is not noise.
        assert_eq!(typical(&[1.4, 1.0, 1.2]), 1.2);
    }
}
