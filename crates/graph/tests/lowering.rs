//! Lowering: views, what is kept, what is overwritten, and what planning may therefore not do.

use scrimp_graph::networks::{self, NetworkOptions};
use scrimp_graph::{
    Binary, Costs, DType, Graph, GraphBuilder, GraphError, Init, Loss, Lowered, Op, Optimizer,
    Roofline, TrainingGraph, Unary, Window, estimate, lower, train,
};
use scrimp_plan::{Keep, Origin, Phase, Plan, Task, Value, ValueId, Violation, check};

const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};

fn lowered(graph: &Graph) -> Result<Lowered, GraphError> {
    let costs = estimate(graph, &Roofline::default(), &|_| 0);
    let phases = cranelift_entity::SecondaryMap::with_default(Phase::Forward);
    lower(graph, &phases, &costs, "cpu")
}

fn lowered_training(training: &TrainingGraph) -> Result<Lowered, GraphError> {
    let costs = estimate(&training.graph, &Roofline::default(), &|_| 0);
    lower(&training.graph, &training.phases, &costs, "cpu")
}

fn id(graph: &Graph, lowered: &Lowered, name: &str) -> ValueId {
    let tensor = graph
        .find(name)
        .unwrap_or_else(|| panic!("no tensor '{name}'"));
    lowered.values[tensor]
        .expand()
        .unwrap_or_else(|| panic!("no value for '{name}'"))
}

fn value<'a>(graph: &Graph, lowered: &'a Lowered, name: &str) -> &'a Value {
    lowered.problem.value(id(graph, lowered, name))
}

fn task<'a>(lowered: &'a Lowered, name: &str) -> &'a Task {
    let task = lowered
        .problem
        .tasks()
        .values()
        .find(|task| task.name == name);
    task.unwrap_or_else(|| panic!("no task '{name}'"))
}

/// The input and output that a task merges, by name.
fn overwritten(lowered: &Lowered, name: &str) -> Vec<(String, String)> {
    let name_of = |value| lowered.problem.value(value).name.clone();
    let pairs = task(lowered, name).overwrites.iter();
    pairs
        .map(|pair| (name_of(pair.input), name_of(pair.output)))
        .collect()
}

/// A chain of views of an input, of a parameter and of an activation.
fn views() -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("views");
    let x = b.input("x", &[2, 3, 5], DType::F32)?;
    let a = b.reshape("a", x, &[6, 5])?;
    let a = b.reshape("b", a, &[5, 6])?;
    let y = b.linear("y", a, 7, true)?;
    let c = b.reshape("c", y, &[35])?;
    let d = b.reshape("d", c, &[7, 5])?;
    let e = b.relu("e", d)?;
    b.output(d);
    b.output(e);
    b.finish()
}

#[test]
fn views_share_one_value_and_run_no_task() {
    let graph = views().unwrap();
    let low = lowered(&graph).unwrap();
    let names: Vec<&str> = low
        .problem
        .tasks()
        .values()
        .map(|task| &*task.name)
        .collect();
    assert_eq!(names, ["y", "e"]);
    assert_eq!(id(&graph, &low, "x"), id(&graph, &low, "b"));
    assert_eq!(id(&graph, &low, "y"), id(&graph, &low, "d"));
    // 35 floats are 140 bytes.
    assert_eq!(value(&graph, &low, "d").bytes, 192);
    // The output is a view, so its base stays.
    assert!(matches!(value(&graph, &low, "y").keep, Keep::On(_)));
    assert_eq!(overwritten(&low, "e"), []);
}

#[test]
fn given_values_are_kept_by_role() {
    let graph = views().unwrap();
    let low = lowered(&graph).unwrap();
    for (name, kept) in [("x", false), ("y.weight", true), ("y.bias", true)] {
        let value = value(&graph, &low, name);
        assert!(matches!(value.origin, Origin::Given(_)), "{name}");
        assert_eq!(value.keep != Keep::No, kept, "{name}");
    }
}

#[test]
fn an_input_asked_for_as_a_view_is_kept() {
    let mut b = GraphBuilder::new("input");
    let x = b.input("x", &[6], DType::F32).unwrap();
    let y = b.reshape("y", x, &[2, 3]).unwrap();
    let z = b.relu("z", y).unwrap();
    b.output(y);
    b.output(z);
    let graph = b.finish().unwrap();
    let low = lowered(&graph).unwrap();
    assert!(matches!(value(&graph, &low, "x").keep, Keep::On(_)));
    assert_eq!(overwritten(&low, "z"), []);
}

/// conv → relu → (pool, view → add twice the same) and so on: who may overwrite what.
#[test]
fn elementwise_operators_overwrite_what_nobody_else_reads() {
    let mut b = GraphBuilder::new("inplace");
    let x = b.input("x", &[1, 4, 8, 8], DType::F32).unwrap();
    let given = b.relu("of an input", x).unwrap();
    let conv = b
        .conv("conv", given, 4, Window::square(1), 1, false)
        .unwrap();
    let flat = b.reshape("flat", conv, &[4, 64]).unwrap();
    let relu = b.relu("through a view", flat).unwrap();
    let square = b.binary("same twice", Binary::Mul, relu, relu).unwrap();
    let bias = b.parameter("bias", &[64], Init::Constant(0.0)).unwrap();
    let second = b.binary("second slot", Binary::Add, bias, square).unwrap();
    let two = b.relu("two readers", second).unwrap();
    let both = b.binary("both read", Binary::Sub, second, two).unwrap();
    b.output(both);
    let graph = b.finish().unwrap();
    let low = lowered(&graph).unwrap();
    let pair = |a: &str, b: &str| vec![(a.to_owned(), b.to_owned())];
    assert_eq!(overwritten(&low, "of an input"), []);
    assert_eq!(
        overwritten(&low, "through a view"),
        pair("conv", "through a view")
    );
    assert_eq!(overwritten(&low, "same twice"), []);
    assert_eq!(
        overwritten(&low, "second slot"),
        pair("same twice", "second slot")
    );
    assert_eq!(overwritten(&low, "two readers"), []);
    assert_eq!(
        overwritten(&low, "both read"),
        pair("two readers", "both read")
    );
}

fn small_training(optimizer: Optimizer) -> Result<TrainingGraph, GraphError> {
    let mut b = GraphBuilder::new("net");
    let x = b.input("x", &[4, 3, 16, 16], DType::F32)?;
    let x = b.conv("conv1", x, 8, Window::square(3), 1, true)?;
    let x = b.batch_norm("bn", x)?;
    let x = b.relu("relu", x)?;
    let x = b.conv("conv2", x, 8, Window::square(3), 1, true)?;
    let x = b.flatten("flat", x)?;
    let x = b.linear("fc", x, 10, true)?;
    b.output(x);
    train(&b.finish()?, Loss::CrossEntropy, Some(optimizer))
}

#[test]
fn updates_overwrite_parameters_and_state() {
    let training = small_training(SGD).unwrap();
    let low = lowered_training(&training).unwrap();
    let graph = &training.graph;
    let update = task(&low, "update(conv1.weight)");
    assert_eq!((update.phase, update.rerunnable), (Phase::Update, false));
    let own = |a: &str| (a.to_owned(), format!("{a}'"));
    assert_eq!(
        overwritten(&low, "update(conv1.weight)"),
        [own("conv1.weight"), own("conv1.weight.velocity")]
    );
    assert_eq!(overwritten(&low, "bn.running'"), [own("bn.running")]);
    assert_eq!(value(graph, &low, "conv1.weight").keep, Keep::No);
    assert!(matches!(
        value(graph, &low, "conv1.weight'").keep,
        Keep::On(_)
    ));
    assert!(matches!(
        value(graph, &low, "bn.running'").keep,
        Keep::On(_)
    ));
    assert_eq!(value(graph, &low, "labels").keep, Keep::No);
    // The gradient of batch normalization and relu, one node, replaces the gradient it comes from.
    assert_eq!(
        overwritten(&low, "grad(bn.x,scale,shift)"),
        [("grad(relu)".into(), "grad(conv1)".into())]
    );
}

#[test]
fn a_step_keeps_parameters_running_statistics_and_the_loss() {
    let training = small_training(SGD).unwrap();
    let low = lowered_training(&training).unwrap();
    let kept: u64 = low
        .problem
        .values()
        .values()
        .filter(|v| v.keep != Keep::No)
        .map(|v| v.bytes)
        .sum();
    let given: u64 = low
        .problem
        .values()
        .values()
        .filter(|v| matches!(v.origin, Origin::Given(_)))
        .map(|v| v.bytes)
        .sum();
    let not_kept: u64 = ["x", "labels", "hyper"]
        .map(|n| value(&training.graph, &low, n).bytes)
        .iter()
        .sum();
    assert_eq!(kept, given - not_kept + 64);
}

/// The old parameter is gone after its update, so running a reader again can't be right: the
/// sequence is refused, and so is a plan that does it all the same.
#[test]
fn nothing_can_be_recomputed_from_an_updated_parameter() {
    let training = small_training(SGD).unwrap();
    let low = lowered_training(&training).unwrap();
    let device = low.problem.sole_device().unwrap();
    let find = |name: &str| {
        low.problem
            .tasks()
            .iter()
            .find(|(_, t)| t.name == name)
            .unwrap()
            .0
    };
    let mut order: Vec<_> = low.problem.tasks().keys().collect();
    let update = order
        .iter()
        .position(|&t| t == find("update(conv2.weight)"))
        .unwrap();
    order.insert(update + 1, find("conv2"));
    assert!(Plan::from_runs(&low.problem, device, &order).is_err());

    let mut plan = Plan::keep_all(&low.problem, device).unwrap();
    let runs = |step: &scrimp_plan::Step, task| matches!(step, scrimp_plan::Step::Run { task: t, .. } if *t == task);
    let again = *plan
        .steps
        .iter()
        .find(|step| runs(step, find("conv2")))
        .unwrap();
    let update = plan
        .steps
        .iter()
        .position(|step| runs(step, find("update(conv2.weight)")))
        .unwrap();
    plan.steps.insert(update + 1, again);
    let violations = check(&low.problem, plan).unwrap_err();
    let weight = id(&training.graph, &low, "conv2.weight");
    let missing = violations.iter().any(|violation| {
        matches!(violation, Violation::InputAbsent { value, step, .. } if *value == weight && *step == update + 1)
    });
    assert!(missing, "{violations:?}");
    assert!(
        low.problem
            .tasks()
            .values()
            .all(|t| t.rerunnable == (t.phase != Phase::Update))
    );
}

#[test]
fn an_output_that_an_update_destroys_is_refused() {
    let mut b = GraphBuilder::new("destroyed");
    let p = b.parameter("p", &[1, 1], Init::Constant(1.0)).unwrap();
    let view = b.reshape("view", p, &[1]).unwrap();
    let loss = b.unary("loss", Unary::Tanh, view).unwrap();
    b.output(view);
    b.output(loss);
    let training = train(&b.finish().unwrap(), Loss::Output, Some(SGD)).unwrap();
    let error = lowered_training(&training).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "output 'view' shares the storage of 'p', which an update overwrites; copy it, or don't ask for it"
    );
}

#[test]
fn bad_costs_are_refused() {
    let graph = views().unwrap();
    let mut costs = Costs::default();
    costs.nodes[graph.nodes().keys().next_back().unwrap()].seconds = f64::NAN;
    let phases = cranelift_entity::SecondaryMap::with_default(Phase::Forward);
    assert!(matches!(
        lower(&graph, &phases, &costs, "cpu"),
        Err(GraphError::Problem(_))
    ));
}

/// One update writes both halves of the state; sizes of overwritten pairs agree for odd shapes too.
#[test]
fn adam_updates_three_tensors_in_place() {
    let adam = Optimizer::Adam {
        beta1: 0.9,
        beta2: 0.99,
        epsilon: 1e-8,
        weight_decay: 0.1,
    };
    let training = small_training(adam).unwrap();
    let low = lowered_training(&training).unwrap();
    assert_eq!(task(&low, "update(fc.bias)").overwrites.len(), 3);
}

/// Peaks in MiB of a step without a plan, all gradients kept, parameters not counted. PyTorch's
/// malloc peak for the same forward and backward is 703.9 MiB.
#[test]
fn resnet50_needs_no_more_than_pytorch() {
    let options = NetworkOptions {
        batch: 8,
        image: Some([224, 224]),
        ..NetworkOptions::default()
    };
    let graph = networks::build("resnet50", &options).unwrap();
    let training = train(&graph, Loss::CrossEntropy, None).unwrap();
    let low = lowered_training(&training).unwrap();
    let device = low.problem.sole_device().unwrap();
    let plan = check(&low.problem, Plan::keep_all(&low.problem, device).unwrap()).unwrap();
    let mib = (plan.peak(device) - low.problem.fixed_bytes(device)) as f64 / f64::from(1 << 20);
    assert!((600.0..=703.9).contains(&mib), "{mib} MiB");
}

#[test]
fn dead_outputs_and_unused_updates_do_not_matter() {
    let mut b = GraphBuilder::new("unread");
    let x = b.input("x", &[2, 6], DType::F32).unwrap();
    let y = b.linear("fc", x, 6, false).unwrap();
    let stats = Op::NormStats {
        norm: scrimp_graph::Norm::Batch,
    };
    let stats = b.add1("stats", stats, &[y]).unwrap();
    let running = b.state("running", &[2, 6], Init::Constant(0.0)).unwrap();
    b.add1(
        "new",
        Op::RunningStats {
            momentum: 0.1,
            count: 2,
        },
        &[stats, running],
    )
    .unwrap();
    b.output(y);
    let graph = b.finish().unwrap();
    let low = lowered(&graph).unwrap();
    assert_eq!(low.problem.tasks().len(), 3);
    let device = low.problem.sole_device().unwrap();
    check(&low.problem, Plan::keep_all(&low.problem, device).unwrap()).unwrap();
}
