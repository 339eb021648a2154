//! Random small networks: whatever the builder accepts can be trained, lowered and planned.

use proptest::prelude::*;
use scrimp_graph::{
    Binary, DType, Graph, GraphBuilder, GraphError, Init, Loss, Norm, Op, Optimizer, Reduction,
    Roofline, TensorId, Unary, Window, estimate, inference, lower, train,
};
use scrimp_plan::{Phase, Plan, check};

/// One random decision: which operator, on which tensors, with what attribute.
type Choice = (u8, usize, usize, usize);

fn attempt(
    b: &mut GraphBuilder,
    pool: &[TensorId],
    (kind, first, second, k): Choice,
) -> Result<TensorId, GraphError> {
    let x = pool[first % pool.len()];
    let y = pool[second % pool.len()];
    let shape = b.shape(x).to_vec();
    let rank = shape.len();
    let axis = k % rank.max(1);
    let functions = [
        Unary::Relu,
        Unary::LeakyRelu { slope: 0.1 },
        Unary::Gelu,
        Unary::Affine {
            scale: 2.0,
            shift: 1.0,
        },
        Unary::Clip { lo: 0.0, hi: 6.0 },
        Unary::Silu,
        Unary::Exp,
    ];
    let sliced = |end: usize, step: usize| {
        let mut op = (vec![0; rank], shape.clone(), vec![1; rank]);
        op.1[axis] = end;
        op.2[axis] = step;
        Op::Slice {
            start: op.0,
            end: op.1,
            step: op.2,
        }
    };
    match kind % 20 {
        0 => b.conv(
            "conv",
            x,
            2 + k % 3,
            Window::square(3).pad(1).stride(1 + k % 2),
            1,
            k % 3 == 0,
        ),
        1 => b.conv(
            "depthwise",
            x,
            shape.get(1).copied().unwrap_or(1),
            Window::square(3).same(),
            shape.get(1).copied().unwrap_or(1),
            false,
        ),
        2 => b.conv_transpose("up", x, 2, Window::square(2).stride(2), [0, 0], true),
        3 => b.batch_norm("bn", x),
        4 => b.unary("f", functions[k % functions.len()], x),
        5 => b.binary("add", Binary::Add, x, y),
        6 => b.binary("mul", Binary::Mul, x, y),
        7 => b.binary("sub", Binary::Sub, x, y),
        8 => b.max_pool("max", x, Window::square(2).stride(2)),
        9 => b.avg_pool("avg", x, Window::square(3).pad(1)),
        10 => b.linear("fc", x, 1 + k % 5, k % 2 == 0),
        11 => b.normalize(
            "norm",
            x,
            [
                Norm::Instance,
                Norm::Layer { axis },
                Norm::Group { groups: 2 },
            ][k % 3],
            1e-5,
        ),
        12 => b.concat("concat", axis, &[x, y]),
        13 => b.add1("slice", sliced(shape[axis], 1 + k % 2), &[x]),
        14 => b.flatten("flat", x),
        15 => b.transpose("t", x, &(0..rank).rev().collect::<Vec<_>>()),
        16 => b.dropout("drop", x, 0.5),
        17 => b.add1("softmax", Op::Softmax { axis }, &[x]),
        18 => b.add1(
            "mean",
            Op::Reduce {
                kind: Reduction::Mean,
                axes: vec![axis],
                keep_dims: true,
            },
            &[x],
        ),
        _ => {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            b.reshape("view", x, &reversed)
        }
    }
}

/// The network that the choices give; choices that don't fit are passed over.
fn network(choices: &[Choice]) -> Result<Graph, GraphError> {
    let mut b = GraphBuilder::new("random");
    let x = b.input("x", &[2, 4, 6, 6], DType::F32)?;
    let p = b.parameter("p", &[4, 1, 1], Init::Constant(1.0))?;
    let first = b.binary("first", Binary::Mul, x, p)?;
    let mut pool = vec![x, p, first];
    for &choice in choices {
        if let Ok(tensor) = attempt(&mut b, &pool, choice) {
            pool.push(tensor);
        }
    }
    let all = |b: &GraphBuilder, t: TensorId| Op::Reduce {
        kind: Reduction::Mean,
        axes: (0..b.shape(t).len()).collect(),
        keep_dims: false,
    };
    let op = all(&b, first);
    let mut loss = b.add1("loss", op, &[first])?;
    for &tensor in pool.iter().rev().take(3) {
        let op = all(&b, tensor);
        let part = b.add1("part", op, &[tensor])?;
        loss = b.binary("loss", Binary::Add, loss, part)?;
    }
    b.output(pool[pool.len() - 1]);
    b.output(loss);
    b.finish()
}

fn optimizers() -> impl Strategy<Value = Option<Optimizer>> {
    let (beta1, beta2, epsilon, weight_decay) = (0.9, 0.999, 1e-8, 0.0);
    prop_oneof![
        Just(None),
        Just(Some(Optimizer::Sgd {
            momentum: 0.0,
            weight_decay
        })),
        Just(Some(Optimizer::Sgd {
            momentum: 0.9,
            weight_decay
        })),
        Just(Some(Optimizer::Adam {
            beta1,
            beta2,
            epsilon,
            weight_decay
        })),
    ]
}

/// Lowers and checks the plan that keeps everything.
#[allow(clippy::unwrap_used, reason = "called by tests only")]
fn plan(graph: &Graph, phases: &cranelift_entity::SecondaryMap<scrimp_graph::NodeId, Phase>) {
    let costs = estimate(graph, &Roofline::default(), &|node| {
        64 * graph.node(node).inputs.len() as u64
    });
    let lowered = lower(graph, phases, &costs, "cpu").unwrap();
    let device = lowered.problem.sole_device().unwrap();
    let steps = Plan::keep_all(&lowered.problem, device).unwrap();
    let checked = check(&lowered.problem, steps).unwrap();
    assert_eq!(checked.recomputed(), 0);
    let views = graph
        .nodes()
        .values()
        .filter(|node| node.op.is_view())
        .count();
    assert_eq!(lowered.problem.tasks().len() + views, graph.nodes().len());
    assert!(
        graph
            .tensors()
            .keys()
            .all(|tensor| lowered.values[tensor].is_some())
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_networks_train_and_plan(
        choices in prop::collection::vec(any::<Choice>(), 1..25),
        optimizer in optimizers(),
    ) {
        let graph = network(&choices).unwrap();
        graph.validate().unwrap();
        let deployed = inference(&graph).unwrap();
        deployed.validate().unwrap();
        plan(&deployed, &cranelift_entity::SecondaryMap::with_default(Phase::Forward));
        // A view of a parameter as an output is the one thing that can't be.
        let training = train(&graph, Loss::Output, optimizer).unwrap();
        training.validate().unwrap();
        let outputs = training.graph.outputs().to_vec();
        let storages = scrimp_graph::Storages::new(&training.graph);
        let destroyed = outputs.iter().any(|&output| {
            let root = storages.root(output);
            training.updates.iter().any(|&(old, _)| old == root)
        });
        if !destroyed {
            plan(&training.graph, &training.phases);
            let double = training.graph.with_float(DType::F64);
            double.validate().unwrap();
            plan(&double, &training.phases);
        }
    }
}
