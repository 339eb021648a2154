//! The published instances: what the files state about their graphs is what the reader and the
//! checker find. Needs the folder named by `SCRIMP_INSTANCES`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests say what they skip, and fail by panicking"
)]

use cranelift_entity::EntityRef;
use scrimp_plan::file::{Content, read, read_text};
use scrimp_plan::*;
use std::path::{Path, PathBuf};

fn json_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            json_files(&path, found);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            found.push(path);
        }
    }
}

fn all() -> Option<Vec<PathBuf>> {
    let Some(folder) = std::env::var_os("SCRIMP_INSTANCES") else {
        eprintln!("skipped: SCRIMP_INSTANCES isn't set");
        return None;
    };
    let mut found = Vec::new();
    json_files(Path::new(&folder), &mut found);
    assert!(
        found.len() > 10,
        "too few instances in {}",
        folder.display()
    );
    Some(found)
}

/// How the names of files begin that no reader is for, and what the error must say of them: published
/// results and other JSON.
const NO_PROBLEMS: [(&str, &str); 5] = [
    ("xengine_tables.json", "published results"),
    ("sft_cc2022_fig8.json", "published results"),
    ("checkmate_code_baselines.json", "published results"),
    ("selected_names.json", "some other JSON"),
    ("node_tests_by_op.json", "some other JSON"),
];

#[test]
fn every_file_is_read_and_its_statistics_hold() {
    let mut counts = (0, 0, 0, 0);
    for path in all().unwrap_or_default() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let content = read(&read_text(&path).unwrap());
        if let Some((_, what)) = NO_PROBLEMS.iter().find(|(file, _)| name.starts_with(file)) {
            let message = content.unwrap_err().to_string();
            assert!(message.contains(what), "{name}: {message}");
            counts.2 += 1;
            continue;
        }
        match content.unwrap_or_else(|error| panic!("{name}: {error}")) {
            Content::Instance(instance) => {
                statistics(name, &instance);
                counts.0 += 1;
            }
            Content::Allocation(instance) => {
                if let Some(stated) = instance.max_load {
                    assert_eq!(max_load(&instance.intervals), stated, "{name}");
                }
                counts.1 += 1;
            }
            Content::Problem(problem, _) => {
                let device = problem.sole_device().unwrap();
                check(&problem, Plan::keep_all(&problem, device).unwrap()).unwrap();
                counts.3 += 1;
            }
        }
    }
    println!(
        "{} graphs, {} allocations, {} problems, {} others",
        counts.0, counts.1, counts.3, counts.2
    );
}

fn statistics(name: &str, instance: &Instance) {
    let (problem, stats) = (&instance.problem, &instance.stats);
    let here = DeviceId::new(0);
    let plan = Plan::keep_all(problem, here).unwrap();
    let checked =
        check(problem, plan).unwrap_or_else(|violations| panic!("{name}: {:?}", violations[0]));
    assert_eq!(checked.cost(), problem.base_cost(), "{name}");
    let makespan = simulate(&checked).makespan();
    match problem.devices()[here].concurrent {
        true => assert!(makespan <= checked.cost(), "{name}"),
        false => assert_eq!(makespan, checked.cost(), "{name}"),
    }
    assert!(checked.keeps_order() && checked.recomputed() == 0);
    let edges: usize = problem.tasks().values().map(|task| task.inputs.len()).sum();
    let same =
        |stated: Option<u64>, found: u64| assert_eq!(stated.unwrap_or(found), found, "{name}");
    same(stats.n, problem.tasks().len() as u64);
    same(stats.m, edges as u64);
    same(stats.peak_memory_no_remat, checked.peak(here));
    let working_set = |task: &Task| -> u64 {
        task.inputs
            .iter()
            .chain(&task.outputs)
            .map(|&value| problem.value(value).bytes)
            .sum()
    };
    same(
        stats.max_working_set,
        problem.tasks().values().map(working_set).max().unwrap(),
    );
    if let Some(total) = stats.total_cost {
        let energy: f64 = problem
            .tasks()
            .values()
            .map(|task| task.modes[0].joules)
            .sum();
        let found = if energy > 0.0 {
            energy
        } else {
            problem.base_cost()
        };
        assert!(
            (found - total).abs() <= 1e-9 * total,
            "{name}: {found} {total}"
        );
    }
}

fn max_load(intervals: &[Interval]) -> u64 {
    let at = |moment| {
        intervals
            .iter()
            .filter(move |i| i.start <= moment && moment < i.end)
    };
    intervals
        .iter()
        .map(|i| at(i.start).map(|i| i.bytes).sum())
        .max()
        .unwrap()
}

#[test]
fn several_devices_have_links_and_budgets() {
    let Some(files) = all() else { return };
    let path = files.iter().find(|path| {
        path.ends_with("xengine_test_ilp_multi_costs_very_tiny_linear_copy_costs.json")
    });
    let instance = read_instance(&read_text(path.unwrap()).unwrap()).unwrap();
    let problem = instance.problem;
    let (cpu, gpu) = (DeviceId::new(0), DeviceId::new(1));
    assert_eq!(instance.capacities.bytes(gpu), Some(5_000_000));
    let value = ValueId::new(0);
    assert_eq!(
        problem.copy_seconds(problem.link_between(cpu, gpu).unwrap(), value),
        3.0
    );
    assert_eq!(
        problem.copy_seconds(problem.link_between(gpu, cpu).unwrap(), value),
        8.0
    );
    // The published optimum: the first node on the CPU, its output copied, the second on the GPU.
    let run = |task, device| Step::Run {
        task: TaskId::new(task),
        device,
    };
    let steps = vec![
        run(0, cpu),
        Step::Copy {
            value,
            from: cpu,
            to: gpu,
        },
        run(1, gpu),
    ];
    let checked = check(&problem, Plan { steps }).unwrap();
    assert_eq!(simulate(&checked).makespan(), 5.0);
    assert_eq!(instance.published["optimal_total_cost"], 5);
}

#[test]
fn small_computers_page_to_a_memory_that_does_not_compute() {
    let Some(files) = all() else { return };
    let path = files
        .iter()
        .find(|path| path.ends_with("poet_resnet18_cifar_b1_a72_rpi4.json"));
    let problem = read_instance(&read_text(path.unwrap()).unwrap())
        .unwrap()
        .problem;
    assert_eq!(problem.units().seconds_per_unit(), Some(1.0));
    assert_eq!(problem.sole_device(), Some(DeviceId::new(0)));
    assert_eq!((problem.devices().len(), problem.links().len()), (2, 2));
    // 12,288 bytes at 24.5 MB/s and 18.5 µs; the file states the energy of that copy.
    let out = problem
        .link_between(DeviceId::new(0), DeviceId::new(1))
        .unwrap();
    let joules = problem.copy_joules(out, ValueId::new(0));
    assert!((joules - 7.801236306122449e-05).abs() < 1e-15);
    assert!((problem.copy_seconds(out, ValueId::new(0)) * 0.15 - joules).abs() < 1e-15);
}

/// The steps of a placement: each task in index order, its value right away copied to the host if another
/// device reads it, and from there to each device that does.
fn placed(problem: &Problem, device_of: &[DeviceId]) -> Plan {
    let (mut steps, host) = (Vec::new(), DeviceId::new(0));
    for (task, what) in problem.tasks().iter() {
        let home = device_of[task.index()];
        steps.push(Step::Run { task, device: home });
        for &value in &what.outputs {
            let readers = problem.consumers(value).iter();
            let mut readers: Vec<DeviceId> = readers.map(|t| device_of[t.index()]).collect();
            readers.sort();
            readers.dedup();
            readers.retain(|&device| device != home);
            if home != host && !readers.is_empty() {
                steps.push(Step::Copy {
                    value,
                    from: home,
                    to: host,
                });
            }
            for to in readers.into_iter().filter(|&to| to != host) {
                steps.push(Step::Copy {
                    value,
                    from: host,
                    to,
                });
            }
        }
    }
    Plan { steps }
}

#[test]
fn published_placements_on_a_host_and_accelerators_fit_and_take_no_longer_than_stated() {
    let mut seen = 0;
    for path in all().unwrap_or_default() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("latency_") {
            continue;
        }
        let instance = read_instance(&read_text(&path).unwrap()).unwrap();
        let greedy = &instance.published["greedy"];
        let placement = greedy["placement"].as_array().unwrap();
        let device =
            |code: &serde_json::Value| DeviceId::new((code.as_i64().unwrap() + 1) as usize);
        let devices: Vec<DeviceId> = placement.iter().map(device).collect();
        let problem = &instance.problem;
        let checked = check(problem, placed(problem, &devices)).unwrap();
        checked.within(&instance.capacities).unwrap();
        let devices = problem.devices().keys();
        let largest = devices.map(|device| checked.peak(device)).max();
        assert_eq!(largest, greedy["largest_bytes"].as_u64(), "{name}");
        // In the source's model, nothing on an accelerator overlaps.
        let makespan = simulate(&checked).makespan();
        let least = instance.published["critical_path_bound"].as_f64().unwrap();
        let most = greedy["latency"].as_f64().unwrap();
        assert!(
            least <= makespan && makespan <= most * (1.0 + 1e-6),
            "{name}: {makespan} {most}"
        );
        seen += 1;
    }
    println!("{seen} published placements");
}

#[test]
fn each_edge_of_a_scheduling_example_carries_its_own_data() {
    let Some(files) = all() else { return };
    let path = files
        .iter()
        .find(|path| path.ends_with("heft_topcuoglu2002.json"));
    let problem = read_instance(&read_text(path.unwrap()).unwrap())
        .unwrap()
        .problem;
    assert_eq!(problem.values().len(), 15);
    let link = problem
        .link_between(DeviceId::new(0), DeviceId::new(2))
        .unwrap();
    let seconds = |task: usize| -> Vec<f64> {
        let outputs = &problem.task(TaskId::new(task)).outputs;
        let seconds = outputs.iter().map(|&v| problem.copy_seconds(link, v));
        seconds.collect()
    };
    assert_eq!(seconds(0), [18.0, 12.0, 9.0, 11.0, 14.0]);
    assert_eq!(seconds(3), [27.0, 23.0]);
    assert!(problem.links().values().all(|link| link.concurrent));
    assert!(problem.tasks().values().all(|task| !task.rerunnable));
}
