//! Budgets, sizes and durations as people write them.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use proptest::prelude::*;
use scrimp_plan::*;
use std::time::Duration;

#[test]
fn sizes() {
    let cases = [
        ("0", 0),
        ("123456", 123_456),
        ("512 B", 512),
        ("8GiB", 8 << 30),
        (" 8 GB ", 8_000_000_000),
        ("1.5 kB", 1500),
        ("1.5KIB", 1536),
        ("0.0001 MB", 100),
        ("1.99 B", 1),
        ("18446744073709551615", u64::MAX),
        ("15.5 EiB", 31 << 59),
    ];
    for (text, bytes) in cases {
        assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    }
    for text in [
        "",
        "GiB",
        "-1",
        "1e9",
        "1.2.3",
        "8 GiX",
        "8 furlongs",
        "0x10",
        "١",
        "8 µB",
        ".",
        "1 %",
    ] {
        assert!(
            matches!(parse_bytes(text), Err(UnitError::Syntax { .. })),
            "{text}: {:?}",
            parse_bytes(text)
        );
    }
    for text in ["18446744073709551616", "16 EiB", "999999999999 GB"] {
        assert!(
            matches!(parse_bytes(text), Err(UnitError::TooLarge { .. })),
            "{text}"
        );
    }
    let message = parse_bytes("8g").unwrap_err().to_string();
    assert!(
        message.contains("`GB`") && message.contains("`GiB`"),
        "{message}"
    );
}

#[test]
fn durations() {
    let cases = [
        ("250 ms", 250_000_000),
        ("1.5s", 1_500_000_000),
        ("30", 30_000_000_000),
        ("2 min", 120_000_000_000),
    ];
    for (text, nanoseconds) in cases {
        assert_eq!(
            parse_seconds(text),
            Ok(Duration::from_nanos(nanoseconds)),
            "{text}"
        );
    }
    assert_eq!(parse_seconds("1h"), Ok(Duration::from_secs(3600)));
    assert!(matches!(
        parse_seconds("1 day"),
        Err(UnitError::Syntax { .. })
    ));
    assert!(matches!(
        parse_seconds("99999999999 h"),
        Err(UnitError::TooLarge { .. })
    ));
}

#[test]
fn numbers_for_people() {
    let bytes = [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (1_048_575, "1.00 MiB"),
    ];
    for (number, text) in bytes {
        assert_eq!(format_bytes(number), text);
    }
    assert_eq!(format_bytes(38_059_356_160), "35.4 GiB");
    assert_eq!(format_bytes(u64::MAX), "16.0 EiB");
    let seconds = [
        (0.0, "0 s"),
        (1.5e-9, "1.50 ns"),
        (0.012_345, "12.3 ms"),
        (0.999_9, "1.00 s"),
        (600.0, "10.0 min"),
    ];
    for (number, text) in seconds {
        assert_eq!(format_seconds(number), text);
    }
    assert_eq!(format_seconds(36_000.0), "10.0 h");
}

#[test]
fn units_of_published_instances() {
    let format = |unit: &str, amount| {
        Units {
            cost: unit.into(),
            memory: "B".into(),
        }
        .format_cost(amount)
    };
    assert_eq!(format("s", 0.25), "250 ms");
    assert_eq!(format("µs", 405_670.0), "406 ms");
    assert_eq!(format("1/100 ms", 188_252.0), "1.88 s");
    assert_eq!(format("1/0 ms", 2.0), "2 1/0 ms");
    assert_eq!(format("FLOPs", 2.0), "2 FLOPs");
}

#[test]
fn budgets() {
    let parse = |text: &str| text.parse::<Budget>();
    assert_eq!(parse("8GiB"), Ok(Budget::Bytes(8 << 30)));
    assert_eq!(parse("123456"), Ok(Budget::Units(123_456)));
    assert_eq!(parse(" 60 % "), Ok(Budget::Percent(60.0)));
    assert_eq!(parse("Min"), Ok(Budget::Min));
    for text in ["", "%", "-5%", "NaN%", "inf", "maximum"] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.contains("60%"), "{message}");
    }
    assert_eq!(parse("100%"), Ok(Budget::Percent(100.0)));
    for text in ["100.1%", "150%", "1001%"] {
        assert!(matches!(parse(text), Err(UnitError::MoreThanAll { .. })));
    }
}

#[test]
fn what_budgets_mean() {
    let mut parts = parts();
    let problem = Problem::new(parts.clone()).unwrap();
    // 18 bytes are fixed: 10 resident ones and the weight.
    let bytes = |budget: Budget| budget.bytes(&problem, d(0), 36);
    assert_eq!(bytes(Budget::Percent(50.0)), Ok(Some(27)));
    // The host that the weight could go to doesn't change what a percentage means.
    parts.links.clear();
    let alone = Problem::new(parts.clone()).unwrap();
    let half = Budget::Percent(50.0).bytes(&alone, d(0), 36);
    assert_eq!(half, Ok(Some(27)));
    assert_eq!(bytes(Budget::Percent(100.0)), Ok(Some(36)));
    assert_eq!(bytes(Budget::Units(7)), Ok(Some(7)));
    assert_eq!(bytes(Budget::Bytes(1024)), Ok(Some(1024)));
    assert_eq!(bytes(Budget::Min), Ok(None));
    parts.units.memory = "KiB".into();
    let problem = Problem::new(parts.clone()).unwrap();
    assert_eq!(Budget::Bytes(10_000).bytes(&problem, d(0), 36), Ok(Some(9)));
    parts.units.memory = "abstract memory units".into();
    let problem = Problem::new(parts).unwrap();
    let error = Budget::Bytes(10_000).bytes(&problem, d(0), 36).unwrap_err();
    assert!(
        error.to_string().contains("abstract memory units"),
        "{error}"
    );
}

#[test]
fn energies() {
    let parse = |text: &str| text.parse::<Joules>().map(|Joules(joules)| joules);
    assert_eq!((parse("250"), parse(" 0.5 J")), (Ok(250.0), Ok(0.5)));
    for wrong in ["", "-1", "nan", "inf", "1e9", "5W"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn budgets_for_devices() {
    let parse = |text: &str| text.parse::<PerDevice<Budget>>();
    assert_eq!(parse("50%"), Ok(PerDevice::Sole(Budget::Percent(50.0))));
    let two = parse("gpu=2KiB, host = 64").unwrap();
    assert_eq!(two.to_string(), "gpu=2.00 KiB,host=64");
    let expected = [(d(0), &Budget::Bytes(2048)), (d(1), &Budget::Units(64))];
    assert_eq!(two.of(&problem()).unwrap(), expected);
    let sole = parse("min").unwrap();
    assert_eq!(sole.of(&problem()), Ok(vec![(d(0), &Budget::Min)]));
    let told = |text: &str| match parse(text) {
        Ok(budgets) => budgets.of(&problem()).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    for (text, why) in [
        ("gpu=2KiB,64", "`64` doesn't say for which device"),
        ("gpu=1,gpu=2", "device `gpu` is named twice"),
        ("gpu=lots", "`lots` isn't a budget"),
        (
            "tpu=1",
            "there is no device `tpu`; the devices are gpu, host, disk",
        ),
    ] {
        assert!(told(text).contains(why), "{}", told(text));
    }
    let mut parts = parts();
    parts.devices[d(1)].computes = true;
    let error = sole.of(&Problem::new(parts).unwrap()).unwrap_err();
    assert!(error.to_string().contains("gpu, host"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        let _ = text.parse::<Budget>();
        let _ = parse_seconds(&text);
    }

    #[test]
    fn formatted_bytes_are_read_back_within_half_a_percent(bytes in any::<u64>(), shift in 0u32..64) {
        let bytes = bytes >> shift;
        // The largest ones are rounded up to 16 EiB, which is one byte too many.
        if let Ok(again) = parse_bytes(&format_bytes(bytes)) {
            prop_assert!(again.abs_diff(bytes) as f64 <= 0.005_1 * bytes as f64);
        } else {
            prop_assert!(bytes > 15 << 60);
        }
    }
}
