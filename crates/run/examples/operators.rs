//! Times operators one by one, for `benches/steps.py`: `operators native|onednn|opencl:N|cuda:N[@vendor] THREADS cpu|wall`. Each
//! line of standard input is the name of a case; the answer is a line with the least and the median
//! seconds of a run, for enough runs to fill a twentieth of a second. `list` answers all names.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "an example prints, and its cases are constants"
)]

use scrimp_graph::{DType, Norm, Op, Optimizer, Reduction, Unary, Window, infer};
use scrimp_run::{Alone, Cpu, Gpu, Interface, Library, Processor};
use std::collections::HashMap;
use std::io::{BufRead, Write};

/// An operator and the shapes of its inputs; those of integers begin with [`INTEGERS`].
type Part = (Op, Vec<Vec<usize>>);

const INTEGERS: usize = usize::MAX;

/// The shape that comes out.
fn result(op: &Op, inputs: &[&[usize]]) -> Vec<usize> {
    let inputs: Vec<_> = inputs.iter().map(|&shape| (shape, DType::F32)).collect();
    let outputs = infer(op, &inputs).expect("the cases have valid shapes");
    outputs
        .into_iter()
        .next()
        .map_or(Vec::new(), |(shape, _)| shape)
}

fn conv(
    name: &str,
    window: Window,
    groups: usize,
    x: [usize; 4],
    o: usize,
) -> Vec<(String, Vec<Part>)> {
    let w = vec![o, x[1] / groups, window.kernel[0], window.kernel[1]];
    let y = result(&Op::Conv { window, groups }, &[&x, &w]);
    let input_grad = Op::ConvInputGrad {
        window,
        groups,
        input_hw: [x[2], x[3]],
    };
    let x = x.to_vec();
    vec![
        (
            format!("{name} forward"),
            vec![(Op::Conv { window, groups }, vec![x.clone(), w.clone()])],
        ),
        (
            format!("{name} input gradient"),
            vec![(input_grad, vec![y.clone(), w])],
        ),
        (
            format!("{name} weight gradient"),
            vec![(Op::ConvWeightGrad { window, groups }, vec![x, y])],
        ),
    ]
}

fn norm(name: &str, norm: Norm, x: &[usize]) -> Vec<(String, Vec<Part>)> {
    let (x, epsilon) = (x.to_vec(), 1e-5);
    let (stats, params) = match norm {
        Norm::Layer { axis } => (vec![2, x[..axis].iter().product()], x[axis..].to_vec()),
        Norm::Instance => (vec![2, x[0] * x[1]], vec![x[1]]),
        _ => (vec![2, x[1]], vec![x[1]]),
    };
    let all = vec![x.clone(), stats.clone(), params.clone(), x.clone()];
    let activation = None;
    let forward = vec![
        (Op::NormStats { norm }, vec![x.clone()]),
        (
            Op::NormApply {
                norm,
                epsilon,
                activation,
            },
            vec![x, stats, params.clone(), params],
        ),
    ];
    let gradients = Op::NormGrad {
        norm,
        epsilon,
        activation,
    };
    let backward = vec![(gradients, all)];
    vec![
        (format!("{name} forward"), forward),
        (format!("{name} gradients"), backward),
    ]
}

fn pool(name: &str, window: Window, x: [usize; 4], max: bool) -> Vec<(String, Vec<Part>)> {
    let y = result(&Op::MaxPool { window }, &[&x]);
    let (input_hw, count_pad, x) = ([x[2], x[3]], true, x.to_vec());
    let (forward, gradient) = match max {
        true => (
            Op::MaxPool { window },
            (Op::MaxPoolGrad { window }, vec![x.clone(), y]),
        ),
        false => (
            Op::AvgPool { window, count_pad },
            (
                Op::AvgPoolGrad {
                    window,
                    count_pad,
                    input_hw,
                },
                vec![y],
            ),
        ),
    };
    vec![
        (format!("{name} forward"), vec![(forward, vec![x])]),
        (format!("{name} gradient"), vec![gradient]),
    ]
}

fn unary(name: &str, f: Unary, shape: &[usize]) -> Vec<(String, Vec<Part>)> {
    let x = shape.to_vec();
    vec![
        (
            format!("{name} forward"),
            vec![(Op::Unary(f), vec![x.clone()])],
        ),
        (
            format!("{name} gradient"),
            vec![(Op::UnaryGrad(f), vec![x.clone(), x])],
        ),
    ]
}

/// The names are those of the functions in `benches/steps.py`.
fn cases() -> Vec<(String, Vec<Part>)> {
    let w = Window::square;
    let product = |trans_a, trans_b| Op::MatMul { trans_a, trans_b };
    let mut all = Vec::new();
    all.extend(conv(
        "convolution 3×3, 64 channels of 56×56",
        w(3).pad(1),
        1,
        [8, 64, 56, 56],
        64,
    ));
    all.extend(conv(
        "convolution 3×3, 256 channels of 14×14",
        w(3).pad(1),
        1,
        [8, 256, 14, 14],
        256,
    ));
    all.extend(conv(
        "convolution 3×3 by steps of 2, 128 channels of 56×56",
        w(3).pad(1).stride(2),
        1,
        [8, 128, 56, 56],
        128,
    ));
    all.extend(conv(
        "convolution 1×1, 256 to 64 channels of 56×56",
        w(1),
        1,
        [8, 256, 56, 56],
        64,
    ));
    all.extend(conv(
        "convolution 1×1, 256 to 1024 channels of 14×14",
        w(1),
        1,
        [8, 256, 14, 14],
        1024,
    ));
    all.extend(conv(
        "convolution 7×7 of an image",
        w(7).pad(3).stride(2),
        1,
        [8, 3, 224, 224],
        64,
    ));
    all.extend(conv(
        "depthwise 3×3, 256 channels of 28×28",
        w(3).pad(1),
        256,
        [8, 256, 28, 28],
        256,
    ));
    // A transposed convolution is the input's gradient of a convolution, and the other way round.
    let mut transposed = conv("", w(2).stride(2), 1, [8, 120, 64, 64], 240);
    for (part, name) in transposed
        .iter_mut()
        .zip(["input gradient", "forward", "weight gradient"])
    {
        part.0 = format!("transposed convolution 2×2, 240 to 120 channels {name}");
    }
    all.extend(transposed);
    let one = |name: &str, op: Op, inputs: &[&[usize]]| {
        (
            name.to_owned(),
            vec![(op, inputs.iter().map(|shape| shape.to_vec()).collect())],
        )
    };
    all.push(one(
        "product 1024×1024×1024",
        product(false, false),
        &[&[1024, 1024], &[1024, 1024]],
    ));
    all.push(one(
        "linear 2048×384×1536 with bias",
        product(false, false),
        &[&[2048, 384], &[384, 1536], &[1536]],
    ));
    all.push(one(
        "linear 2048×384×1536 weight gradient",
        product(true, false),
        &[&[2048, 384], &[2048, 1536]],
    ));
    all.push(one(
        "attention scores, 48 of 256×64×256",
        product(false, true),
        &[&[8, 6, 256, 64], &[8, 6, 256, 64]],
    ));
    all.extend(norm(
        "batch normalization, 64 channels of 56×56",
        Norm::Batch,
        &[8, 64, 56, 56],
    ));
    all.extend(norm(
        "batch normalization, 512 channels of 14×14",
        Norm::Batch,
        &[8, 512, 14, 14],
    ));
    all.extend(norm(
        "instance normalization, 120 channels of 64×64",
        Norm::Instance,
        &[8, 120, 64, 64],
    ));
    all.extend(norm(
        "layer normalization, 2048 rows of 384",
        Norm::Layer { axis: 1 },
        &[2048, 384],
    ));
    all.extend(pool(
        "max pooling 3×3 by steps of 2, 64 channels of 112×112",
        w(3).pad(1).stride(2),
        [8, 64, 112, 112],
        true,
    ));
    all.extend(pool(
        "max pooling 2×2, 64 channels of 224×224",
        w(2).stride(2),
        [4, 64, 224, 224],
        true,
    ));
    all.extend(pool(
        "average pooling 2×2, 256 channels of 28×28",
        w(2).stride(2),
        [8, 256, 28, 28],
        false,
    ));
    all.extend(unary("relu, 6.4 million", Unary::Relu, &[8, 64, 112, 112]));
    all.extend(unary("gelu, 3.1 million", Unary::Gelu, &[2048, 1536]));
    all.extend(unary(
        "gelu by tanh, 3.1 million",
        Unary::GeluTanh,
        &[2048, 1536],
    ));
    let add = Op::Binary(scrimp_graph::Binary::Add);
    all.push(one(
        "sum of two, 6.4 million",
        add,
        &[&[8, 256, 56, 56], &[8, 256, 56, 56]],
    ));
    all.push(one(
        "softmax, 12288 rows of 256 forward",
        Op::Softmax { axis: 1 },
        &[&[12288, 256]],
    ));
    all.push(one(
        "softmax, 12288 rows of 256 gradient",
        Op::SoftmaxGrad { axis: 1 },
        &[&[12288, 256], &[12288, 256]],
    ));
    all.push(one(
        "cross-entropy, 2048 of 8192 forward",
        Op::CrossEntropy,
        &[&[2048, 8192], &[INTEGERS, 2048]],
    ));
    all.push(one(
        "cross-entropy, 2048 of 8192 gradient",
        Op::CrossEntropyGrad,
        &[&[2048, 8192], &[INTEGERS, 2048], &[]],
    ));
    let reduce = |kind, axes: &[usize]| Op::Reduce {
        kind,
        axes: axes.to_vec(),
        keep_dims: false,
    };
    all.push(one(
        "mean of maps, 2048 of 7×7",
        reduce(Reduction::Mean, &[2, 3]),
        &[&[8, 2048, 7, 7]],
    ));
    all.push(one(
        "sum per channel, 64 of 56×56",
        reduce(Reduction::Sum, &[0, 2, 3]),
        &[&[8, 64, 56, 56]],
    ));
    all.push(one(
        "sum of 2048 rows of 1536",
        reduce(Reduction::Sum, &[0]),
        &[&[2048, 1536]],
    ));
    let sgd = Optimizer::Sgd {
        momentum: 0.0,
        weight_decay: 0.0,
    };
    all.push(one(
        "gradient descent, 4.2 million",
        Op::Update(sgd),
        &[&[4_194_304], &[4_194_304], &[2]],
    ));
    all
}

#[allow(unsafe_code, reason = "the environment is set up")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: there is no other thread yet.
    unsafe { scrimp_run::wait_briefly() };
    let args: Vec<String> = std::env::args().collect();
    let library = match args[1].as_str() {
        "onednn" => Library::OneDnn,
        _ => Library::Native,
    };
    let clock: fn() -> f64 = match args.get(3).map(String::as_str) {
        Some("cpu") => || seconds(2),
        _ => || seconds(1),
    };
    let cpu = Cpu::with_library(args[2].parse()?, library)?;
    let gpu = Interface::ALL.into_iter().find_map(|interface| {
        let number = args[1].strip_prefix(interface.word())?.strip_prefix(':')?;
        let vendor = number.strip_suffix("@vendor");
        Some((interface, vendor.unwrap_or(number), vendor.is_some()))
    });
    let device = match gpu {
        None => None,
        Some((interface, number, vendor)) => {
            Some(Gpu::new(interface, number.parse()?, None, vendor)?)
        }
    };
    let processor = device.as_ref().map_or(Processor::Cpu(&cpu), Processor::Gpu);
    let cases: Vec<_> = cases();
    let names: Vec<String> = cases.iter().map(|(name, _)| name.clone()).collect();
    let cases: HashMap<_, _> = cases.into_iter().collect();
    let mut ready: HashMap<String, Vec<Alone<'_>>> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        if line == "list" {
            println!("{}", names.join("\t"));
            std::io::stdout().flush()?;
            continue;
        }
        if !ready.contains_key(&line) {
            // One case in memory at a time.
            ready.clear();
            let parts = cases.get(&line).ok_or("no such case")?.iter();
            let parts: Result<Vec<_>, _> = parts.map(|part| alone(processor, part)).collect();
            ready.insert(line.clone(), parts?);
        }
        let parts = ready.get_mut(&line).ok_or("no such case")?;
        let (mut times, mut spent) = (Vec::new(), 0.0);
        while times.len() < 4 || spent < 0.05 {
            let start = clock();
            for part in parts.iter_mut() {
                part.run()?;
            }
            times.push(clock() - start);
            spent += times[times.len() - 1];
        }
        // The first run warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        println!("{} {}", times[0], times[times.len() / 2]);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn alone<'a>(
    processor: Processor<'a>,
    (op, inputs): &Part,
) -> Result<Alone<'a>, scrimp_run::RunError> {
    let inputs: Vec<(&[usize], DType)> = inputs
        .iter()
        .map(|shape| match shape.first() {
            Some(&INTEGERS) => (&shape[1..], DType::I64),
            _ => (&shape[..], DType::F32),
        })
        .collect();
    Alone::new(processor, op, &inputs)
}

/// A clock of the system: 1 is the wall's, 2 this process's processor time.
#[allow(unsafe_code, reason = "a call into the C library")]
fn seconds(clock: i32) -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    let mut time = Time {
        seconds: 0,
        nanoseconds: 0,
    };
    // SAFETY: writes the structure it is given.
    unsafe { clock_gettime(clock, &raw mut time) };
    time.seconds as f64 + time.nanoseconds as f64 * 1e-9
}
