//! The built-in networks have the published numbers of parameters and the stated shapes.

use scrimp_graph::networks::{NAMES, NetworkError, NetworkOptions, build};
use scrimp_graph::{Graph, Role};

fn parameters(graph: &Graph) -> usize {
    let trained = graph
        .given()
        .filter(|(_, t)| matches!(t.role, Role::Parameter(_)));
    trained.map(|(_, t)| t.elements()).sum()
}

fn logits(graph: &Graph) -> Vec<usize> {
    graph.tensor(graph.outputs()[0]).shape.clone()
}

/// Counts of torchvision, Keras (mobilenet, trainable) and the GPT-2 release; the others are sums
/// over the layers of their papers' tables.
#[test]
fn parameter_counts() {
    let counts = [
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("mobilenet", 4_231_976),
        ("squeezenet", 1_235_496),
        ("inception-v3", 23_834_568),
        ("densenet121", 7_978_856),
        ("plain20", 269_722),
        ("vgg16-cifar", 14_724_042),
        ("resnet18-cifar", 11_173_962),
        ("mobilenet-cifar", 3_217_226),
    ];
    for (name, expected) in counts {
        let graph = build(name, &NetworkOptions::default()).unwrap();
        assert_eq!(parameters(&graph), expected, "{name}");
    }
}

#[test]
fn gpt2_small() {
    let options = NetworkOptions {
        batch: 1,
        layers: Some(12),
        width: Some(768),
        heads: Some(12),
        sequence: Some(1024),
        vocabulary: Some(50257),
        ..Default::default()
    };
    let graph = build("transformer", &options).unwrap();
    assert_eq!(parameters(&graph), 124_439_808);
    assert_eq!(logits(&graph), [1024, 50257]);
}

#[test]
fn output_shapes() {
    let expected: [(&str, &[usize]); 8] = [
        ("resnet50", &[8, 1000]),
        ("unet", &[8, 2, 128, 128]),
        ("unet-vgg", &[8, 19, 208, 304]),
        ("segnet", &[8, 19, 208, 304]),
        ("fcn8", &[8, 19, 424, 616]),
        ("darknet19", &[8, 1000]),
        ("transformer", &[2048, 8192]),
        ("digits", &[8, 10]),
    ];
    for (name, shape) in expected {
        let graph = build(name, &NetworkOptions::default()).unwrap();
        assert_eq!(logits(&graph), shape, "{name}");
    }
}

#[test]
fn every_network_has_one_input_and_one_output() {
    for network in NAMES {
        let graph = build(network.name, &NetworkOptions::default()).unwrap();
        let inputs: Vec<_> = graph
            .given()
            .filter(|(_, t)| t.role == Role::Input)
            .collect();
        assert_eq!(inputs.len(), 1, "{}", network.name);
        assert_eq!(graph.outputs().len(), 1, "{}", network.name);
        assert_eq!(inputs[0].1.shape[0], 8, "{}", network.name);
    }
}

#[test]
fn other_image_sizes() {
    for (name, size) in [
        ("vgg16", 32),
        ("vgg16", 512),
        ("vgg16", 448),
        ("squeezenet", 225),
        ("inception-v3", 128),
    ] {
        let options = NetworkOptions {
            image: Some([size, size]),
            batch: 1,
            ..Default::default()
        };
        assert_eq!(
            logits(&build(name, &options).unwrap()),
            [1, 1000],
            "{name} {size}"
        );
    }
}

#[test]
fn wrong_options() {
    let wrong = |name: &str, options: NetworkOptions| build(name, &options).unwrap_err();
    let base = NetworkOptions::default;
    assert!(matches!(wrong("vgg", base()), NetworkError::Unknown { .. }));
    let error = wrong(
        "resnet18",
        NetworkOptions {
            heads: Some(2),
            ..base()
        },
    );
    assert!(
        matches!(
            error,
            NetworkError::NotAnOption {
                option: "heads",
                ..
            }
        ),
        "{error}"
    );
    let values = [
        ("resnet18", NetworkOptions { batch: 0, ..base() }, "batch"),
        (
            "resnet18",
            NetworkOptions {
                classes: Some(usize::MAX),
                ..base()
            },
            "classes",
        ),
        (
            "vgg16",
            NetworkOptions {
                image: Some([100, 224]),
                ..base()
            },
            "image",
        ),
        (
            "transformer",
            NetworkOptions {
                heads: Some(5),
                ..base()
            },
            "heads",
        ),
        (
            "transformer",
            NetworkOptions {
                dropout: Some(1.0),
                ..base()
            },
            "dropout",
        ),
        (
            "transformer",
            NetworkOptions {
                dropout: Some(f64::NAN),
                ..base()
            },
            "dropout",
        ),
        // Every layer takes time and memory, whatever its sizes.
        (
            "transformer",
            NetworkOptions {
                layers: Some(1_000_000),
                ..base()
            },
            "layers",
        ),
    ];
    for (name, options, field) in values {
        let error = wrong(name, options);
        assert!(
            matches!(error, NetworkError::Value { option, .. } if option == field),
            "{error}"
        );
    }
    let tiny = NetworkOptions {
        image: Some([2, 2]),
        ..base()
    };
    assert!(matches!(
        wrong("squeezenet", tiny),
        NetworkError::Graph { .. }
    ));
    let huge = NetworkOptions {
        batch: 1 << 24,
        image: Some([1 << 24, 1 << 24]),
        ..base()
    };
    assert!(matches!(
        wrong("resnet18", huge),
        NetworkError::Graph { .. }
    ));
}
