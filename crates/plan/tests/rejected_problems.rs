//! Problems that break one invariant each, and the error that must name it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::ProblemError as E;
use scrimp_plan::*;

/// Spoils the small problem and returns the error.
fn error(spoil: impl FnOnce(&mut ProblemParts)) -> E {
    let mut parts = parts();
    spoil(&mut parts);
    Problem::new(parts).expect_err("the problem was spoiled")
}

macro_rules! rejects {
    ($name:ident, $pattern:pat, $spoil:expr) => {
        #[test]
        fn $name() {
            let error = error($spoil);
            assert!(matches!(error, $pattern), "{error:?}");
            assert!(!error.to_string().contains("task task"), "{error}");
        }
    };
}

#[test]
fn the_small_problem_is_valid() {
    let problem = problem();
    assert_eq!(problem.consumers(v(1)), [t(0), t(1)]);
    assert_eq!(
        (problem.overwriter(v(0)), problem.producer(v(4))),
        (Some(t(2)), Some(t(2)))
    );
    assert_eq!(
        (problem.sole_device(), problem.base_cost()),
        (Some(d(0)), 6.0)
    );
    // The weight, whose buffer the new one takes, and the resident bytes.
    assert_eq!(problem.chain(v(0)).collect::<Vec<_>>(), [v(0), v(4)]);
    assert_eq!(problem.fixed(d(0)).collect::<Vec<_>>(), [v(0)]);
    assert_eq!(problem.fixed_bytes(d(0)), 18);
}

rejects!(no_tasks, E::NoTasks, |p| {
    p.tasks.clear();
    p.values.clear();
});
rejects!(no_computing_device, E::NoComputingDevice, |p| p.devices
    [d(0)]
.computes =
    false);
rejects!(too_many_devices, E::TooManyDevices { count: 103 }, |p| {
    for i in 0..100 {
        p.devices.push(Device {
            name: format!("more {i}"),
            ..p.devices[d(1)].clone()
        });
    }
});
rejects!(duplicate_device, E::DuplicateDevice { .. }, |p| p.devices
    [d(1)]
.name =
    "gpu".into());
rejects!(unknown_device_of_a_mode, E::UnknownDevice { .. }, |p| p
    .tasks[t(0)]
.modes[0]
    .device =
    d(3));
rejects!(unknown_device_of_a_link, E::UnknownDevice { .. }, |p| p
    .links[LinkId::from_u32(0)]
.to =
    d(9));
rejects!(
    unknown_device_of_a_given_value,
    E::UnknownDevice { .. },
    |p| {
        p.values[v(1)].origin = Origin::Given(d(3));
    }
);
rejects!(
    unknown_device_of_a_kept_value,
    E::UnknownDevice { .. },
    |p| p.values[v(4)].keep = Keep::On(d(3))
);
rejects!(unknown_task, E::UnknownTask { .. }, |p| {
    p.values.push(Value {
        origin: Origin::Task(t(7)),
        ..p.values[v(1)].clone()
    });
});
rejects!(unknown_input, E::UnknownValue { .. }, |p| p.tasks[t(0)]
    .inputs
    .push(v(9)));
rejects!(
    negative_latency,
    E::BadCost {
        field: "latency",
        ..
    },
    |p| p.links[LinkId::from_u32(0)].latency = -1.0
);
rejects!(
    negative_copy_seconds,
    E::BadCost {
        field: "seconds",
        ..
    },
    |p| {
        p.links[LinkId::from_u32(0)].seconds.insert(v(0), -1.0);
    }
);
rejects!(
    nan_seconds,
    E::BadCost {
        field: "seconds",
        ..
    },
    |p| p.tasks[t(0)].modes[0].seconds = f64::NAN
);
rejects!(
    negative_seconds,
    E::BadCost {
        field: "seconds",
        ..
    },
    |p| p.tasks[t(0)].modes[0].seconds = -1.0
);
rejects!(
    huge_seconds,
    E::BadCost {
        field: "seconds",
        ..
    },
    |p| p.tasks[t(0)].modes[0].seconds = 1e31
);
rejects!(
    infinite_joules,
    E::BadCost {
        field: "joules",
        ..
    },
    |p| p.tasks[t(0)].modes[0].joules = f64::INFINITY
);
rejects!(no_modes, E::NoModes { .. }, |p| p.tasks[t(0)].modes.clear());
rejects!(two_modes_for_one_device, E::ModeOrder { .. }, |p| {
    let mode = p.tasks[t(0)].modes[0].clone();
    p.tasks[t(0)].modes.push(mode);
});
rejects!(mode_on_memory, E::ModeOnMemory { .. }, |p| p.tasks[t(0)]
    .modes[0]
    .device =
    d(1));
rejects!(repeated_input, E::Repeated { .. }, |p| p.tasks[t(0)]
    .inputs
    .push(v(1)));
rejects!(repeated_output, E::Repeated { .. }, |p| p.tasks[t(0)]
    .outputs
    .push(v(2)));
rejects!(input_that_is_output, E::Repeated { .. }, |p| p.tasks[t(0)]
    .inputs
    .push(v(2)));
rejects!(output_of_another_task, E::WrongOrigin { .. }, |p| p.tasks
    [t(0)]
.outputs
.push(v(3)));
rejects!(output_that_is_given, E::WrongOrigin { .. }, |p| p.tasks
    [t(1)]
.outputs
.push(v(0)));
rejects!(not_written, E::NotWritten { .. }, |p| p.tasks[t(0)]
    .outputs
    .clear());
rejects!(cycle, E::ReadBeforeWritten { .. }, |p| p.tasks[t(0)]
    .inputs
    .push(v(3)));
rejects!(overwritten_value_not_read, E::OverwriteNotOwn { .. }, |p| p
    .tasks[t(2)]
.inputs
.retain(|&i| i != v(0)));
rejects!(
    overwriting_value_not_written,
    E::OverwriteNotOwn { .. },
    |p| p.tasks[t(2)].overwrites[0].output = v(2)
);
rejects!(repeated_overwrite, E::OverwriteRepeated { .. }, |p| {
    let pair = Overwrite {
        input: v(3),
        output: v(4),
    };
    p.tasks[t(2)].overwrites.push(pair);
});
rejects!(overwrite_of_another_size, E::OverwriteSize { .. }, |p| p
    .values[v(4)]
.bytes =
    9);
rejects!(overwritten_twice, E::OverwrittenTwice { .. }, |p| {
    p.tasks[t(1)].inputs.push(v(0));
    p.tasks[t(1)].overwrites.push(Overwrite {
        input: v(0),
        output: v(3),
    });
});
rejects!(
    read_after_overwritten,
    E::ReadAfterOverwritten { .. },
    |p| {
        p.values.push(Value {
            origin: Origin::Task(t(3)),
            ..p.values[v(2)].clone()
        });
        p.tasks.push(Task {
            inputs: vec![v(0)],
            outputs: vec![v(5)],
            ..p.tasks[t(1)].clone()
        });
    }
);
rejects!(overwritten_and_kept, E::OverwrittenKept { .. }, |p| p
    .values[v(0)]
.keep =
    Keep::Anywhere);
rejects!(sizes_that_overflow, E::TooManyBytes { .. }, |p| {
    p.values[v(1)].bytes = u64::MAX;
    p.values[v(2)].bytes = u64::MAX;
});
rejects!(resident_bytes_that_overflow, E::TooManyBytes { .. }, |p| {
    p.devices[d(2)].resident = u64::MAX
});
rejects!(workspace_that_overflows, E::TooManyBytes { .. }, |p| p
    .tasks[t(0)]
.modes[0]
    .workspace =
    u64::MAX);
rejects!(unknown_value_of_a_link, E::UnknownValue { .. }, |p| {
    p.links[LinkId::from_u32(0)].seconds.insert(v(9), 1.0);
});
rejects!(link_loop, E::LinkLoop { .. }, |p| p.links
    [LinkId::from_u32(0)]
.to = d(0));
rejects!(duplicate_link, E::DuplicateLink { .. }, |p| {
    let link = p.links[LinkId::from_u32(0)].clone();
    p.links.push(link);
});
rejects!(queue_of_a_link_that_shares_one, E::BadQueue { .. }, |p| {
    p.links.push(Link {
        queue: Some(LinkId::from_u32(1)),
        ..Link::new(d(0), d(2), 1.0, 0.0)
    });
    p.links[LinkId::from_u32(1)].queue = Some(LinkId::from_u32(0));
});
rejects!(queue_of_a_later_link, E::BadQueue { .. }, |p| p.links
    [LinkId::from_u32(0)]
.queue =
    Some(LinkId::from_u32(1)));
rejects!(queue_of_no_link, E::BadQueue { .. }, |p| p.links
    [LinkId::from_u32(1)]
.queue =
    Some(LinkId::from_u32(9)));
rejects!(
    negative_energy_of_copies,
    E::BadCost {
        field: "joules",
        ..
    },
    |p| p.links[LinkId::from_u32(0)].joules = -1.0
);
rejects!(
    endless_energy_of_bytes,
    E::BadCost {
        field: "joules_per_byte",
        ..
    },
    |p| p.links[LinkId::from_u32(0)].joules_per_byte = 1e30
);
rejects!(zero_bandwidth, E::BadBandwidth { .. }, |p| p.links
    [LinkId::from_u32(0)]
.bandwidth = 0.0);
rejects!(infinite_bandwidth, E::BadBandwidth { .. }, |p| p.links
    [LinkId::from_u32(0)]
.bandwidth =
    f64::INFINITY);
rejects!(
    endless_copy,
    E::BadCost {
        field: "bandwidth",
        ..
    },
    |p| p.links[LinkId::from_u32(0)].bandwidth = 1e-300
);
rejects!(concurrent_memory, E::ConcurrentMemory { .. }, |p| {
    p.devices[d(1)].concurrent = true
});
rejects!(concurrent_link_in_a_queue, E::ConcurrentQueue { .. }, |p| {
    p.links[LinkId::from_u32(0)].concurrent = true;
    p.links[LinkId::from_u32(1)].queue = Some(LinkId::from_u32(0));
});
rejects!(group_of_an_unknown_task, E::BadGroup { .. }, |p| {
    p.together = vec![vec![t(0), t(99)]]
});
rejects!(task_in_two_groups, E::BadGroup { .. }, |p| {
    p.together = vec![vec![t(0)], vec![t(1), t(0)]]
});
rejects!(
    group_without_a_device,
    E::GroupWithoutDevice { group: 0 },
    |p| {
        p.devices[d(1)].computes = true;
        p.tasks[t(1)].modes[0].device = d(1);
        p.together = vec![vec![t(0), t(1)]];
    }
);
rejects!(task_bytes_that_overflow, E::TooManyBytes { .. }, |p| {
    p.tasks[t(0)].modes[0].resident = u64::MAX
});
