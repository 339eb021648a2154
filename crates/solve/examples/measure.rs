//! Plans an instance and prints one line: `measure FILE BUDGET [fixed|free] [SECONDS] [METHOD]`.
//! A budget up to 1 is a share of the peak without planning.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a development tool"
)]
use scrimp_plan::*;
use scrimp_solve::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let d: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&a[1]).unwrap()).unwrap();
    let mut parts = ProblemParts::default();
    let device = parts.devices.push(Device {
        name: "d".into(),
        capacity: None,
        computes: true,
        resident: 0,
    });
    let outs: Vec<u64> = d["outputs"]
        .as_array()
        .map(|o| o.iter().map(|x| x.as_u64().unwrap()).collect())
        .unwrap_or_default();
    for (k, n) in d["nodes"].as_array().unwrap().iter().enumerate() {
        let k = k as u32;
        let phase = if n["is_backward"].as_bool() == Some(true) {
            Phase::Backward
        } else {
            Phase::Forward
        };
        parts.tasks.push(Task {
            name: String::new(),
            phase,
            inputs: vec![],
            outputs: vec![ValueId::from_u32(k)],
            overwrites: vec![],
            modes: vec![Mode {
                device,
                seconds: n["cost"].as_f64().unwrap(),
                joules: 0.0,
                workspace: 0,
            }],
            rerunnable: true,
        });
        parts.values.push(Value {
            name: String::new(),
            bytes: n["memory"].as_f64().unwrap() as u64,
            origin: Origin::Task(TaskId::from_u32(k)),
            keep: if outs.contains(&u64::from(k)) {
                Keep::Anywhere
            } else {
                Keep::No
            },
        });
    }
    for e in d["edges"].as_array().unwrap() {
        let v = TaskId::from_u32(e[1].as_u64().unwrap() as u32);
        parts.tasks[v]
            .inputs
            .push(ValueId::from_u32(e[0].as_u64().unwrap() as u32));
    }
    let p = Problem::new(parts).unwrap();
    let peak = check(&p, Plan::keep_all(&p, device).unwrap())
        .unwrap()
        .peak(device);
    let b: f64 = a[2].parse().unwrap();
    let b = if b <= 1.0 {
        (b * peak as f64).floor()
    } else {
        b
    } as u64;
    let p = p.with_capacity(device, Some(b));
    let options = Options {
        order: a.get(3).map_or(Order::Fixed, |s| s.parse().unwrap()),
        time_limit: Duration::from_secs_f64(a.get(4).map_or(5.0, |s| s.parse().unwrap())),
        method: a.get(5).map_or(Method::Search, |s| s.parse().unwrap()),
        seed: a.get(6).map_or(0, |s| s.parse().unwrap()),
        ..Options::default()
    };
    let base = p.base_cost();
    let pct = |c: f64| 100.0 * (c / base - 1.0);
    let mut last = f64::MAX;
    let mut when = 0.0;
    let r = solve(&p, &options, &mut |x| {
        if let Some(c) = x.cost {
            if std::env::var("V").is_ok() {
                println!("   {:.3} {:.4}", x.elapsed.as_secs_f64(), pct(c));
            }
            if c < last {
                last = c;
                when = x.elapsed.as_secs_f64();
            }
        }
    });
    let name = a[1].rsplit('/').next().unwrap();
    match r {
        Ok(s) => println!(
            "{name:44} {b:>12} {:.4} % bound {:.4} % found {when:.2} s of {:.2} s, recomputed {} peak {}{}",
            pct(s.cost),
            pct(s.lower_bound),
            s.elapsed.as_secs_f64(),
            s.plan.recomputed(),
            s.plan.peak(device),
            if s.optimal { " optimal" } else { "" }
        ),
        Err(e) => println!("{name:44} {b:>12} {e}"),
    }
}
