//! The report of a small plan that recomputes, swaps and overwrites; and of random ones: always
//! well-formed, without outside references, without unescaped names.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use cranelift_entity::EntityRef;
use scrimp::report::{
    Curve, EnergyCurve, EnergyPoint, FoundPoint, Losses, Point, ReportInput, TradeOff, energy,
    html, perfetto, perfetto_measured, svg_memory, tradeoff,
};
use scrimp::run::{RunTrace, StepTrace};
use scrimp::{History, stays};
use scrimp_plan::testing::{
    Shape, Unstructured, plan as random_plan, random_bytes, random_problem,
};
use scrimp_plan::*;
use scrimp_solve::Progress;
use std::collections::BTreeMap;
use std::time::Duration;

fn d(index: usize) -> DeviceId {
    DeviceId::new(index)
}

fn run(task: usize) -> Step {
    Step::Run {
        task: TaskId::new(task),
        device: d(0),
    }
}

fn free(value: usize) -> Step {
    Step::Free {
        value: ValueId::new(value),
        device: d(0),
    }
}

/// Three layers forward, three backward with workspace, an update of the weights; linked to a host.
fn problem() -> Problem {
    let mut parts = ProblemParts {
        name: "three layers".into(),
        ..ProblemParts::default()
    };
    for (name, computes, resident) in [("gpu", true, 1 << 20), ("host", false, 0)] {
        parts.devices.push(Device {
            computes,
            resident,
            ..Device::computing(name)
        });
    }
    for (from, to) in [(0, 1), (1, 0)] {
        parts.links.push(Link::new(d(from), d(to), 8e9, 1e-5));
    }
    let mut value = |name: &str, mib: u64, origin, keep| {
        parts.values.push(Value {
            name: name.into(),
            bytes: mib << 20,
            origin,
            keep,
        });
    };
    value("weights", 4, Origin::Given(d(0)), Keep::No);
    value("image <1> & \"more\"", 2, Origin::Given(d(0)), Keep::No);
    for (i, mib) in [8, 6, 4, 4, 6, 8, 4].into_iter().enumerate() {
        let keep = if i == 6 { Keep::On(d(0)) } else { Keep::No };
        value(
            &format!("output {i}"),
            mib,
            Origin::Task(TaskId::new(i)),
            keep,
        );
    }
    let mut task = |name: &str, phase, inputs: &[usize], output, milliseconds, mib: u64| {
        let seconds = f64::from(milliseconds) * 1e-3;
        parts.tasks.push(Task {
            name: name.into(),
            phase,
            inputs: inputs.iter().map(|&value| ValueId::new(value)).collect(),
            outputs: vec![ValueId::new(output)],
            overwrites: vec![],
            modes: vec![Mode {
                device: d(0),
                seconds,
                joules: 0.0,
                workspace: mib << 20,
                resident: 0,
            }],
            rerunnable: phase != Phase::Update,
        });
    };
    task("conv<1>", Phase::Forward, &[0, 1], 2, 3, 2);
    task("conv2", Phase::Forward, &[0, 2], 3, 2, 0);
    task("conv3", Phase::Forward, &[0, 3], 4, 2, 0);
    task("conv3 backward", Phase::Backward, &[3, 4], 5, 4, 2);
    task("conv2 backward", Phase::Backward, &[2, 3, 5], 6, 4, 2);
    task("conv1 backward", Phase::Backward, &[1, 2, 6], 7, 6, 2);
    task("update", Phase::Update, &[0, 7], 8, 1, 0);
    let pair = Overwrite {
        input: ValueId::new(0),
        output: ValueId::new(8),
    };
    parts.tasks[TaskId::new(6)].overwrites.push(pair);
    Problem::new(parts).unwrap()
}

/// Swaps conv2's output out and back, and makes conv1's again.
fn planned() -> Vec<Step> {
    let copy = |from, to| Step::Copy {
        value: ValueId::new(3),
        from: d(from),
        to: d(to),
    };
    let mut steps = vec![
        run(0),
        run(1),
        free(2),
        run(2),
        copy(0, 1),
        free(3),
        copy(1, 0),
    ];
    steps.push(Step::Free {
        value: ValueId::new(3),
        device: d(1),
    });
    steps.extend([
        run(3),
        free(4),
        run(0),
        run(4),
        free(3),
        free(5),
        run(5),
        free(1),
    ]);
    steps.extend([free(2), free(6), run(6), free(7)]);
    steps
}

/// Everything that the page shows, with a layout that stacks buffers without reuse.
fn page(base: &CheckedPlan, planned: &CheckedPlan, losses: bool) -> String {
    let mut top: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let stack = |buffer: &Buffer| {
        let top = top.entry(buffer.device).or_default();
        *top += buffer.bytes;
        *top - buffer.bytes
    };
    let offsets = planned.buffers().values().map(stack).collect();
    let layout = check_layout(planned, Layout { offsets }).unwrap();
    let series = [2.0, 1.5, f64::NAN, 1.0];
    let mut history = History::new(10.0);
    for (millis, cost) in [
        (1, None),
        (2, Some(18.0)),
        (30, Some(14.0)),
        (5000, Some(13.0)),
    ] {
        history.add(Progress {
            elapsed: Duration::from_millis(millis),
            cost,
            lower_bound: 11.0,
        });
    }
    html(&ReportInput {
        title: "three <layers>",
        method: "by hand",
        status: "as an example",
        capacities: &Capacities::bytes_of(DeviceId::from_u32(0), 24 << 20),
        numbers: &[("solve seconds".into(), "0".into())],
        base,
        planned,
        tiles: false,
        layout: Some(&layout),
        history: Some(&history),
        losses: losses.then_some(Losses {
            planned: &series,
            base: &series,
        }),
    })
}

/// The page without its styles and scripts.
fn body(page: &str) -> String {
    let mut rest = page.to_owned();
    for tag in ["style", "script"] {
        while let Some(start) = rest.find(&format!("<{tag}>")) {
            let end = rest.find(&format!("</{tag}>")).unwrap() + tag.len() + 3;
            rest.replace_range(start..end, "");
        }
    }
    rest.replace("><", ">\n<")
}

/// Checks that tags are nested, attributes quoted, and numbers are numbers.
fn well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, after) = piece
            .split_once('>')
            .unwrap_or_else(|| panic!("unclosed: {piece}"));
        assert!(!after.contains('>'), "stray > after {tag}");
        let name = tag.trim_matches('/').split(' ').next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag}");
        } else if !tag.ends_with('/') && !["!doctype", "meta"].contains(&name) {
            open.push(name);
        }
        for attribute in ["x=\"", "y=\"", "width=\"", "height=\"", " d=\""] {
            if let Some((_, value)) = tag.split_once(attribute) {
                let value = value.split('"').next().unwrap();
                assert!(!value.contains("NaN") && !value.contains("inf"), "{tag}");
            }
        }
        assert!(
            !tag.contains("width=\"-") && !tag.contains("height=\"-"),
            "{tag}"
        );
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(!text.contains("src=") && !text.contains("@import") && !text.contains("url("));
}

#[test]
fn the_page_of_a_small_plan() {
    let problem = problem();
    let base = check(&problem, Plan::keep_all(&problem, d(0)).unwrap()).unwrap();
    let planned = check(&problem, Plan { steps: planned() }).unwrap();
    let page = page(&base, &planned, true);
    well_formed(&body(&page));
    assert!(!page.contains("conv<1>") && page.contains("conv&lt;1&gt;"));
    assert!(
        !page.contains("://"),
        "the page refers to something outside"
    );
    insta::assert_snapshot!("page", body(&page));
    let picture = svg_memory(&base, &planned, d(0), Some(24 << 20));
    insta::assert_snapshot!("memory", body(&picture));
    let trace: serde_json::Value = serde_json::from_str(&perfetto(&planned)).unwrap();
    insta::assert_json_snapshot!("trace", trace);
}

#[test]
fn a_stay_tells_its_wait_and_its_alternative() {
    let problem = problem();
    let planned = check(&problem, Plan { steps: planned() }).unwrap();
    let found = stays(&planned, &simulate(&planned), d(0));
    assert_eq!(found.len(), 1);
    let (stay, copy) = (&found[0], 1e-5 + f64::from(6 << 20) / 8e9);
    assert_eq!((stay.value, stay.memory), (ValueId::new(3), d(1)));
    // The copy out ends beside conv3. The copy back begins after it, and conv3's backward pass waits for it.
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} isn't {b}");
    let (sent, back) = (stay.sent.unwrap(), stay.back.unwrap());
    near(sent.0, 5e-3);
    near(sent.1, 5e-3 + copy);
    near(stay.left, 7e-3);
    near(back.1, 7e-3 + copy);
    near(stay.waited, copy);
    // conv2 reads conv1's output, which is gone by then.
    near(stay.again.unwrap(), 5e-3);
}

#[test]
fn pages_of_random_plans_are_well_formed() {
    for seed in 0..40 {
        let shape = Shape {
            several_devices: seed % 2 == 0,
            ..Shape::everything(30)
        };
        let problem = random_problem(seed, &shape);
        let bytes = random_bytes(seed, 2000);
        let u = &mut Unstructured::new(&bytes);
        let plans = [(); 2].map(|()| check(&problem, random_plan(u, &problem).unwrap()).unwrap());
        well_formed(&body(&page(&plans[0], &plans[1], false)));
        for device in problem.devices().keys() {
            well_formed(&body(&svg_memory(&plans[0], &plans[1], device, None)));
        }
        assert!(serde_json::from_str::<serde_json::Value>(&perfetto(&plans[1])).is_ok());
    }
}

/// `first` runs on the CPU alone; `near` is faster on the GPU, but its input isn't there; `far` is on the GPU.
fn two_devices() -> (Problem, Vec<Step>) {
    let mut parts = ProblemParts::default();
    for name in ["cpu", "gpu"] {
        parts.devices.push(Device::computing(name));
    }
    parts.links.push(Link::new(d(0), d(1), 1e6, 0.0));
    for (task, bytes) in [4_000_000, 1000, 1000].into_iter().enumerate() {
        parts.values.push(Value {
            name: format!("value {task}"),
            bytes,
            origin: Origin::Task(TaskId::new(task)),
            keep: Keep::Anywhere,
        });
    }
    let mut task = |name: &str, inputs: &[usize], seconds: &[f64]| {
        let modes = seconds.iter().enumerate().map(|(device, &seconds)| Mode {
            device: d(device),
            seconds,
            joules: 2.0,
            workspace: 0,
            resident: 0,
        });
        parts.tasks.push(Task {
            name: name.into(),
            phase: Phase::Forward,
            inputs: inputs.iter().map(|&value| ValueId::new(value)).collect(),
            outputs: vec![ValueId::new(parts.tasks.len())],
            overwrites: vec![],
            modes: modes.collect(),
            rerunnable: true,
        });
    };
    task("first", &[], &[1.0]);
    task("near", &[0], &[3.0, 1.0]);
    task("far", &[1], &[5.0, 2.0]);
    let on = |task: usize, device: usize| Step::Run {
        task: TaskId::new(task),
        device: d(device),
    };
    let copy = Step::Copy {
        value: ValueId::new(1),
        from: d(0),
        to: d(1),
    };
    (
        Problem::new(parts).unwrap(),
        vec![on(0, 0), on(1, 0), copy, on(2, 1)],
    )
}

#[test]
fn the_page_says_what_runs_where_and_why() {
    let (problem, steps) = two_devices();
    let planned = check(&problem, Plan { steps }).unwrap();
    let tasks: Vec<TaskId> = problem.tasks().keys().collect();
    let base = check(&problem, Plan::from_runs(&problem, d(0), &tasks).unwrap()).unwrap();
    let page = body(&page(&base, &planned, false));
    well_formed(&page);
    for part in [
        "What runs where, and why",
        "no other device can run it",
        "its inputs are here: copying them to gpu would take 4.00 s",
        "no other device is faster",
        "cpu → gpu",
        "4 J",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(
        !page.contains("What waits elsewhere"),
        "both devices compute"
    );
    let trace = perfetto(&planned);
    assert!(trace.contains("\"joules\":2.0"), "{trace}");
}

#[test]
fn the_page_of_energy() {
    let (problem, _) = two_devices();
    let tasks: Vec<TaskId> = problem.tasks().keys().collect();
    let base = check(&problem, Plan::from_runs(&problem, d(0), &tasks).unwrap()).unwrap();
    let point = |joules, seconds, proven| EnergyPoint {
        joules,
        seconds,
        proven,
        recomputed: 1,
        copied: 1 << 20,
    };
    let curve = |name: &str, points, note: Option<&str>| EnergyCurve {
        name: name.into(),
        points,
        note: note.map(Into::into),
    };
    let page = energy(
        &base,
        &[
            curve(
                "50 %",
                vec![point(6.0, 9.5, 9.0), point(7.0, 9.0, 9.0)],
                None,
            ),
            curve("<10 %>", vec![], Some("no plan")),
        ],
    );
    well_formed(&body(&page));
    for part in ["7.000 J", "9.50 s", "<b>&lt;10 %&gt;</b>: no plan"] {
        assert!(page.contains(part), "{part}");
    }
    // Without any plan there is a page, too.
    well_formed(&body(&energy(&base, &[])));
}

#[test]
fn the_page_of_a_sweep() {
    let point = |budget, overhead: Option<f64>| Point {
        budget,
        found: overhead.map(|overhead| FoundPoint {
            peak: budget - 1,
            overhead,
            bound: overhead / 2.0,
            recomputed: 3,
            seconds: 0.25,
        }),
    };
    let curves: Vec<Curve> = (0..10u32)
        .map(|k| Curve {
            name: format!("planner <{k}>"),
            points: vec![
                point(100, Some(0.0)),
                point(60, (k > 0).then_some(f64::from(k))),
                point(80, Some(f64::from(k) / 4.0)),
            ],
            note: (k == 9).then(|| "a & b".into()),
        })
        .collect();
    let units = Units {
        memory: "abstract".into(),
        ..Units::default()
    };
    let input = TradeOff {
        title: "three <layers>",
        line: "3 tasks",
        units: &units,
        base_peak: 100,
        floor: 50,
        curves: &curves,
    };
    let page = tradeoff(&input);
    well_formed(&body(&page));
    assert!(
        !page.contains("://"),
        "the page refers to something outside"
    );
    insta::assert_snapshot!("tradeoff", body(&page));
    // No plans, no budgets, no planners: still a page.
    for curves in [
        vec![],
        vec![Curve {
            points: vec![],
            ..curves[0].clone()
        }],
    ] {
        let input = TradeOff {
            base_peak: 0,
            floor: 0,
            curves: &curves,
            ..input
        };
        well_formed(&body(&tradeoff(&input)));
    }
}

#[test]
fn a_measured_trace_has_measured_times() {
    let problem = problem();
    let plan = Plan::keep_all(&problem, d(0)).unwrap();
    let planned = check(&problem, plan).unwrap();
    let runs = planned
        .steps()
        .iter()
        .enumerate()
        .filter_map(|(step, what)| match what {
            Step::Run { task, .. } => Some(RunTrace {
                step,
                task: *task,
                start: step as f64,
                seconds: 0.5,
            }),
            _ => None,
        });
    let measured = StepTrace {
        seconds: 20.0,
        runs: runs.collect(),
        ..StepTrace::default()
    };
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (simulated, trace) = (
        read(&perfetto(&planned)),
        read(&perfetto_measured(&planned, &measured)),
    );
    assert_eq!(simulated["otherData"]["times"], "simulated");
    assert_eq!(trace["otherData"]["times"], "measured");
    let spans = |trace: &serde_json::Value| -> Vec<f64> {
        let events = trace["traceEvents"].as_array().unwrap().iter();
        events
            .filter(|event| event["ph"] == "X")
            .map(|event| event["dur"].as_f64().unwrap())
            .collect()
    };
    assert_eq!(spans(&trace), [500_000.0; 7]);
    assert_eq!(spans(&simulated).len(), 7);
    assert_ne!(spans(&simulated), spans(&trace));
}
