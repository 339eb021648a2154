//! `--tile` on the command line: the same results in less memory, and sentences for what can't be done.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::fs::File;
use std::path::Path;

use scrimp::graph::DType;
use scrimp::graph::data::{Arrays, Contents, Saved, save_npz};
use serde_json::Value;
use support::{fails, object, scrimp};
use tempfile::tempdir;

const TRUNK: [&str; 5] = ["vgg16-trunk", "--image", "96x64", "--batch", "1"];

fn training<'a>(with: &[&'a str]) -> Vec<&'a str> {
    let step = [
        "--steps",
        "1",
        "--costs",
        "static",
        "--time-limit",
        "1",
        "--threads",
        "1",
    ];
    [&["train"], &TRUNK[..], &step, with].concat()
}

#[test]
fn training_by_tiles_is_the_same_step() {
    let loss = |with: &[&str]| object(&training(with))["losses"][0].as_f64().unwrap();
    let whole = loss(&["--budget", "100%"]);
    for tile in ["2", "3"] {
        let tiled = loss(&["--budget", "200MiB", "--tile", tile]);
        assert!(
            (tiled - whole).abs() < 1e-5 * whole,
            "{tile}: {tiled} and {whole}"
        );
    }
}

#[test]
fn as_many_tiles_as_a_budget_needs() {
    let plan = |budget: &str| {
        let image = ["plan", "vgg16-trunk", "--image", "512x384", "--batch", "1"];
        let flags = ["--budget", budget, "--tile", "auto", "--time-limit", "10"];
        object(&[image, flags].concat())
    };
    assert!(plan("1GiB")["segments"].is_null());
    let tiled = plan("180MiB");
    assert!(tiled["peak_bytes"].as_u64().unwrap() <= 180 << 20);
    let segments = tiled["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    assert!(
        segments
            .iter()
            .all(|part| part["halo_percent"].as_f64().unwrap() < 60.0)
    );
}

/// A share is of what the step needs without tiles, and `min` is the least with any.
#[test]
fn budgets_of_tiles_that_are_no_bytes() {
    let plan = |budget: &str, with: &[&str]| {
        let image = ["plan", "vgg16-trunk", "--image", "256x192", "--batch", "1"];
        let flags = ["--budget", budget, "--time-limit", "10"];
        object(&[&image[..], &flags, with].concat())
    };
    let number = |told: &serde_json::Value, key: &str| told[key].as_u64().unwrap();
    let whole = plan("100%", &[]);
    let (base, fixed) = (
        number(&whole, "base_peak_bytes"),
        number(&whole, "fixed_bytes"),
    );
    let share = (number(&whole, "floor_bytes") - fixed) * 90 / (base - fixed);
    let tiled = plan(&format!("{share}%"), &[]);
    assert!(!tiled["segments"].is_null());
    let budget = fixed + (base - fixed) * share / 100;
    assert!(number(&tiled, "budget_bytes").abs_diff(budget) <= 1);
    assert!(number(&tiled, "peak_bytes") <= budget);
    let [least, tiled] = [&[][..], &["--tile", "auto"]].map(|with| plan("min", with));
    assert!(least["segments"].is_null() && !tiled["segments"].is_null());
    assert!(number(&tiled, "peak_bytes") < number(&least, "peak_bytes"));
}

/// Only gathering the inputs of one task proves that this budget can't be met without tiles: its working set is smaller.
#[test]
fn tiles_where_inputs_can_not_be_gathered() {
    let darknet = [
        "darknet19",
        "--batch",
        "4",
        "--budget",
        "138MB",
        "--library",
        "native",
    ];
    let flags = ["--costs", "static", "--threads", "1", "--time-limit", "10"];
    let planned = object(&[&["plan"], &darknet[..], &flags].concat());
    assert!(!planned["segments"].is_null());
    assert!(planned["peak_bytes"].as_u64().unwrap() <= 138_000_000);
    let refused = [&["plan"], &darknet[..], &flags, &["--tile", "off"]].concat();
    assert!(fails(4, &refused).contains("none exists below 134 MiB"));
}

/// Neither a step by tiles nor one without them meets the budget. The refusal names the lesser of what the two need, and says of which of
/// them its floor is proven.
#[test]
fn a_refusal_names_no_more_than_what_the_step_needs_without_tiles() {
    let unet = ["plan", "unet", "--image", "256", "--batch", "1"];
    let flags = [
        "--budget",
        "30MB",
        "--time-limit",
        "4",
        "--library",
        "native",
    ];
    let refused = |tile: &[&str]| {
        let output = scrimp(&[&unet[..], &flags, tile, &["--json"]].concat());
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let refused = &told["error"];
        assert_eq!(refused["code"], 4, "{told}");
        let [least, floor] =
            ["least_found_bytes", "floor_bytes"].map(|key| refused[key].as_u64().unwrap());
        (
            least,
            floor,
            refused["message"].as_str().unwrap().to_owned(),
        )
    };
    let (untiled, untiled_floor, _) = refused(&["--tile", "off"]);
    let (least, floor, sentence) = refused(&[]);
    assert!(least <= untiled, "{sentence}");
    let with = match floor == untiled_floor {
        true => "without tiles, proven",
        false => "with these tiles, proven",
    };
    assert!(sentence.contains(with), "{sentence}");
}

/// Two devices, each with less memory than one layer needs.
#[test]
fn tiles_on_several_devices() {
    let two = ["--devices", "a/1@native,b/1@native", "--costs", "static"];
    let image = ["plan", "vgg16-trunk", "--image", "512x384", "--batch", "1"];
    let budget = ["--budget", "a=95MiB,b=95MiB", "--time-limit", "4"];
    let tiled = object(&[&image[..], &two, &budget].concat());
    assert!(!tiled["segments"].is_null());
    for device in ["a", "b"] {
        assert!(tiled["devices"][device]["peak_bytes"].as_u64().unwrap() <= 95 << 20);
    }
    let loss = |with: &[&str]| {
        let unet = [
            "train", "unet", "--image", "64", "--width", "4", "--batch", "1",
        ];
        let flags = ["--steps", "1", "--time-limit", "2"];
        object(&[&unet[..], &flags, with].concat())["losses"][0]
            .as_f64()
            .unwrap()
    };
    let whole = loss(&["--budget", "100%", "--library", "native"]);
    let by_two = ["--budget", "a=600KiB,b=600KiB", "--tile", "2"];
    let tiled = loss(&[&two[..], &by_two].concat());
    assert!((tiled - whole).abs() < 1e-5 * whole);
}

/// The weights alone take more than a budget, so they wait in a memory while parts run by tiles.
#[test]
fn weights_wait_elsewhere_while_tiles_run() {
    let plan = |budget: &str| {
        let image = ["plan", "vgg16-trunk", "--image", "256x192", "--batch", "1"];
        let flags = ["--swap", "ram=1GiB@10GB/s", "--time-limit", "4"];
        object(&[&image[..], &flags, &["--tile", "auto", "--budget", budget]].concat())
    };
    let number = |told: &serde_json::Value, key: &str| told[key].as_u64().unwrap();
    let tiled = plan("24MiB");
    assert!(!tiled["segments"].is_null());
    assert!(number(&tiled, "peak_bytes") <= 24 << 20);
    let weights = number(&tiled["devices"]["ram"], "peak_bytes");
    assert!(weights > 56 << 20, "{weights}");
    assert!(number(&plan("min"), "peak_bytes") < 24 << 20);
}

/// Two devices, neither of which has room for the weights: recomputation, copies to a memory and places in one plan.
#[test]
fn weights_wait_elsewhere_while_several_devices_compute() {
    let each = ["--devices", "a/1@native,b/1@native", "--budget"];
    let flags = ["a=24MiB,b=24MiB", "--swap", "ram=1GiB@10GB/s", "--compare"];
    let trained = object(&training(&[&each[..], &flags].concat()));
    assert_eq!(trained["bit_identical"], true);
    for device in ["a", "b"] {
        let peak = trained["devices"][device]["peak_bytes"].as_u64().unwrap();
        assert!(0 < peak && peak <= 24 << 20, "{device}: {peak}");
    }
}

/// Outputs of a network that runs by tiles against those of the network as it is.
#[test]
fn inference_by_tiles() {
    let folder = tempdir().unwrap();
    let outputs = ["off", "3"].map(|tile| {
        let path = folder
            .path()
            .join(format!("{tile}.npz"))
            .display()
            .to_string();
        let unet = [
            "run", "unet", "--image", "32", "--width", "4", "--batch", "1",
        ];
        let told = object(&[&unet[..], &["--tile", tile, "--outputs", &path]].concat());
        assert_eq!(told["segments"].is_null(), tile == "off");
        let arrays = Arrays::read(Path::new(&path), 1 << 30).unwrap().0;
        let (name, array) = arrays.into_iter().next().unwrap();
        match array.contents {
            Contents::Floats(floats) => (name, array.shape, floats),
            other => panic!("the mask is {other:?}"),
        }
    });
    let [(name, shape, whole), (tiled_name, tiled_shape, tiled)] = outputs;
    assert_eq!((name, shape), (tiled_name, tiled_shape));
    let size = whole.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(size > 0.0);
    for (a, b) in whole.iter().zip(&tiled) {
        assert!((a - b).abs() <= 1e-5 * size, "{a} and {b}");
    }
}

/// An image that is never whole in memory: tiles of it are read from the file.
#[test]
fn tiles_of_an_image_in_a_file() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let pixels = (0..3 * 96 * 128).map(|i| (i * 7919 % 1009) as f32 / 1009.0);
    let image = Saved {
        name: "input".into(),
        dtype: DType::F32,
        shape: vec![1, 3, 96, 128],
        bytes: pixels.flat_map(f32::to_le_bytes).collect(),
    };
    let npz = path("image.npz");
    save_npz(&mut File::create(&npz).unwrap(), &[image]).unwrap();
    let run = |inputs: &[&str], with: &[&str]| {
        let unet = [
            "run", "unet", "--image", "96x128", "--width", "2", "--batch", "1",
        ];
        object(&[&unet[..], inputs, with].concat())
    };
    let output = |name: &str, with: &[&str]| {
        let outputs = path(name);
        let told = run(&["--inputs", &npz, "--outputs", &outputs], with);
        let arrays = Arrays::read(Path::new(&outputs), 1 << 30).unwrap().0;
        let (_, array) = arrays.into_iter().next().unwrap();
        let Contents::Floats(floats) = array.contents else {
            panic!("the mask is of floats");
        };
        (told, floats)
    };
    let (_, whole) = output("whole.npz", &[]);
    let (tiled, read) = output("tiles.npz", &["--tile", "4"]);
    // Two batches at once can't share a file, so the image is an input like any other.
    let (given, same) = output("given.npz", &["--tile", "4", "--in-flight", "2"]);
    assert_eq!(read, same);
    let size = whole.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (a, b) in whole.iter().zip(&read) {
        assert!((a - b).abs() <= 1e-5 * size, "{a} and {b}");
    }
    let peak = |told: &serde_json::Value| told["peak_bytes"].as_u64().unwrap();
    let bytes = 3 * 96 * 128 * 4;
    assert!(!tiled["segments"].is_null());
    assert!(peak(&given) > 2 * bytes);
    let least = ["--tile", "4", "--budget", "min", "--time-limit", "2"];
    assert!(peak(&run(&["--inputs", &npz], &least)) + bytes / 2 <= peak(&run(&[], &least)));
}

/// Without `--tile` parts of a network run by tiles where no plan without them meets the budget.
#[test]
fn inference_by_as_many_tiles_as_a_budget_needs() {
    let run = |budget: &str| {
        let image = ["run", "vgg16-trunk", "--image", "192x256", "--batch", "1"];
        object(&[&image[..], &["--budget", budget, "--time-limit", "3"]].concat())
    };
    let whole = run("100%");
    assert!(whole["segments"].is_null());
    let budget = whole["floor_bytes"].as_u64().unwrap() * 19 / 20;
    let tiled = run(&format!("{budget}B"));
    assert!(!tiled["segments"].is_null());
    assert!(tiled["peak_bytes"].as_u64().unwrap() <= budget);
}

#[test]
fn what_can_not_be_done_is_told() {
    let cases = [
        (
            2,
            ["--budget", "50%", "--tile", "sft:4"],
            "one device with its budget in bytes",
        ),
        (
            2,
            ["--budget", "1GiB", "--tile", "0"],
            "give off, auto, a whole number from 1 to 4096",
        ),
        (
            2,
            ["--budget", "1GiB", "--tile", "sft:x"],
            "or sft: and such a number",
        ),
        (
            4,
            ["--budget", "1KiB", "--tile", "sft:4"],
            "no plan within 1.00 KiB",
        ),
        (
            4,
            ["--budget", "1KiB", "--tile", "auto"],
            "no plan within 1.00 KiB",
        ),
    ];
    for (code, with, sentence) in cases {
        let message = fails(code, &training(&with));
        assert!(message.contains(sentence), "{with:?}: {message}");
    }
}
