//! Built-in networks, by name: the ones that the papers measure, a GPT-2-shaped transformer, and a
//! small network for the digits example. One file per family; `options.rs` has what can be chosen,
//! `net.rs` what the families share.
//!
//! Images are the input `input`, f32 [batch, channels, height, width]; tokens are the input
//! `tokens`, i64 [batch, sequence]. The single output is the logits: [batch, classes], for
//! segmentation [batch, classes, height, width], for the transformer [batch·sequence, vocabulary]; for trunks it
//! is a loss, one number.

mod darknet;
mod densenet;
mod digits;
mod inception;
mod mobilenet;
mod net;
mod options;
mod plain;
mod resnet;
mod segmentation;
mod squeezenet;
mod transformer;
mod unet;
mod vgg;

use crate::graph::Graph;

use options::{Choices, OptionName};
pub use options::{NetworkError, NetworkOptions};

/// A built-in network: what it is and which options it has besides the batch size.
pub struct Network {
    /// What [`build`] takes.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Where the architecture is published.
    pub source: &'static str,
    defaults: Choices,
    build: fn(&str, &Choices) -> Result<Graph, NetworkError>,
}

impl Network {
    /// The names of the options that apply, in the order of [`NetworkOptions`], with their defaults.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        OptionName::ALL
            .iter()
            .filter_map(|&name| Some((name.as_str(), self.defaults.shown(name)?)))
            .collect()
    }
}

/// Options of a network that classifies images of this size.
const fn images(size: usize, classes: usize) -> Choices {
    Choices {
        image: Some([size, size]),
        classes: Some(classes),
        ..Choices::NONE
    }
}

/// Options of a network in its variant for the images of CIFAR-10.
const CIFAR: Choices = Choices {
    small: true,
    ..images(32, 10)
};

/// Options of a network that labels each pixel of a 416×608 image, 19 classes as in Cityscapes.
const SCENES: Choices = Choices {
    image: Some([416, 608]),
    classes: Some(19),
    ..Choices::NONE
};

/// Every built-in network.
pub const NAMES: &[Network] = &[
    Network {
        name: "vgg16",
        summary: "VGG-16, configuration D: 13 convolutions, 3 fully connected layers",
        source: "Simonyan & Zisserman 2014, arXiv:1409.1556",
        defaults: Choices {
            dropout: Some(0.5),
            ..images(224, 1000)
        },
        build: |name, o| vgg::classifier(name, o, &vgg::D),
    },
    Network {
        name: "vgg19",
        summary: "VGG-19, configuration E: 16 convolutions, 3 fully connected layers",
        source: "Simonyan & Zisserman 2014, arXiv:1409.1556",
        defaults: Choices {
            dropout: Some(0.5),
            ..images(224, 1000)
        },
        build: |name, o| vgg::classifier(name, o, &vgg::E),
    },
    Network {
        name: "vgg16-trunk",
        summary: "VGG-16's convolutions and poolings alone, for images of any size; the output is a loss",
        source: "Simonyan & Zisserman 2014, arXiv:1409.1556, as in Xu et al. 2022 (SFT)",
        defaults: Choices {
            image: Some([224, 224]),
            ..Choices::NONE
        },
        build: |name, o| vgg::trunk(name, o, &vgg::D),
    },
    Network {
        name: "resnet18",
        summary: "ResNet-18: basic residual blocks",
        source: "He et al. 2015, arXiv:1512.03385",
        defaults: images(224, 1000),
        build: |name, o| resnet::resnet(name, o, resnet::BlockKind::Basic, [2, 2, 2, 2]),
    },
    Network {
        name: "resnet34",
        summary: "ResNet-34: basic residual blocks",
        source: "He et al. 2015, arXiv:1512.03385",
        defaults: images(224, 1000),
        build: |name, o| resnet::resnet(name, o, resnet::BlockKind::Basic, [3, 4, 6, 3]),
    },
    Network {
        name: "resnet50",
        summary: "ResNet-50: bottleneck residual blocks, stride on the 3×3 convolution",
        source: "He et al. 2015, arXiv:1512.03385",
        defaults: images(224, 1000),
        build: |name, o| resnet::resnet(name, o, resnet::BlockKind::Bottleneck, [3, 4, 6, 3]),
    },
    Network {
        name: "mobilenet",
        summary: "MobileNet v1: depthwise separable convolutions",
        source: "Howard et al. 2017, arXiv:1704.04861",
        defaults: Choices {
            dropout: Some(0.001),
            ..images(224, 1000)
        },
        build: mobilenet::build,
    },
    Network {
        name: "unet",
        summary: "XEngine's U-Net: three levels with instance normalization and transposed convolutions",
        source: "Schuler et al. 2022, XEngine, doi:10.1145/3568956, figure 5",
        defaults: Choices {
            image: Some([128, 128]),
            classes: Some(2),
            width: Some(120),
            ..Choices::NONE
        },
        build: unet::build,
    },
    Network {
        name: "unet-vgg",
        summary: "Checkmate's U-Net: VGG-16 encoder, upsampling and concatenation",
        source: "Jain et al. 2020, Checkmate, arXiv:1910.02653 (vgg_unet of keras-segmentation)",
        defaults: SCENES,
        build: segmentation::unet_vgg,
    },
    Network {
        name: "fcn8",
        summary: "FCN-8s on VGG-16",
        source: "Long et al. 2015, arXiv:1411.4038 (fcn_8_vgg of keras-segmentation)",
        defaults: Choices {
            dropout: Some(0.5),
            ..SCENES
        },
        build: segmentation::fcn8,
    },
    Network {
        name: "segnet",
        summary: "SegNet on VGG-16, with plain upsampling",
        source: "Badrinarayanan et al. 2015, arXiv:1511.00561 (vgg_segnet of keras-segmentation)",
        defaults: SCENES,
        build: segmentation::segnet,
    },
    Network {
        name: "darknet19",
        summary: "Darknet-19, YOLOv2's classifier",
        source: "Redmon & Farhadi 2016, arXiv:1612.08242, table 6",
        defaults: images(224, 1000),
        build: darknet::build,
    },
    Network {
        name: "darknet19-trunk",
        summary: "Darknet-19's convolutions and poolings alone, for images of any size; the output is a loss",
        source: "Redmon & Farhadi 2016, arXiv:1612.08242, as in Xu et al. 2022 (SFT)",
        defaults: images(224, 1000),
        build: darknet::trunk,
    },
    Network {
        name: "squeezenet",
        summary: "SqueezeNet 1.1: fire modules",
        source: "Iandola et al. 2016, arXiv:1602.07360",
        defaults: Choices {
            dropout: Some(0.5),
            ..images(224, 1000)
        },
        build: squeezenet::build,
    },
    Network {
        name: "inception-v3",
        summary: "Inception v3 without the auxiliary classifier",
        source: "Szegedy et al. 2015, arXiv:1512.00567",
        defaults: Choices {
            dropout: Some(0.5),
            ..images(299, 1000)
        },
        build: inception::build,
    },
    Network {
        name: "densenet121",
        summary: "DenseNet-121: growth 32, bottleneck layers",
        source: "Huang et al. 2016, arXiv:1608.06993",
        defaults: Choices {
            dropout: Some(0.0),
            ..images(224, 1000)
        },
        build: densenet::build,
    },
    Network {
        name: "plain20",
        summary: "Plain-20: ResNet-20 for CIFAR without the shortcuts",
        source: "He et al. 2015, arXiv:1512.03385, section 4.2",
        defaults: images(32, 10),
        build: plain::build,
    },
    Network {
        name: "vgg16-cifar",
        summary: "VGG-16 for 32×32: batch normalization, one linear layer",
        source: "Simonyan & Zisserman 2014, arXiv:1409.1556",
        defaults: CIFAR,
        build: |name, o| vgg::small(name, o, &vgg::D),
    },
    Network {
        name: "resnet18-cifar",
        summary: "ResNet-18 for 32×32: a first convolution of 3×3, no pooling before the blocks",
        source: "He et al. 2015, arXiv:1512.03385",
        defaults: CIFAR,
        build: |name, o| resnet::resnet(name, o, resnet::BlockKind::Basic, [2, 2, 2, 2]),
    },
    Network {
        name: "mobilenet-cifar",
        summary: "MobileNet v1 for 32×32: the first convolution doesn't shrink the image",
        source: "Howard et al. 2017, arXiv:1704.04861",
        defaults: CIFAR,
        build: mobilenet::build,
    },
    Network {
        name: "squeezenet-cifar",
        summary: "SqueezeNet 1.1 for 32×32: the first convolution doesn't shrink the image",
        source: "Iandola et al. 2016, arXiv:1602.07360",
        defaults: CIFAR,
        build: squeezenet::build,
    },
    Network {
        name: "inception-v3-cifar",
        summary: "Inception v3 for 32×32: the first convolutions don't shrink the image",
        source: "Szegedy et al. 2015, arXiv:1512.00567",
        defaults: CIFAR,
        build: inception::build,
    },
    Network {
        name: "transformer",
        summary: "GPT-2-shaped decoder: pre-normalization, causal attention, tied embeddings",
        source: "Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
        defaults: Choices {
            layers: Some(6),
            width: Some(384),
            heads: Some(6),
            sequence: Some(256),
            vocabulary: Some(8192),
            dropout: Some(0.1),
            ..Choices::NONE
        },
        build: transformer::build,
    },
    Network {
        name: "digits",
        summary: "a small residual network for 8×8 images of handwritten digits",
        source: "this project, after He et al. 2015",
        defaults: images(8, 10),
        build: digits::build,
    },
];

/// Build a network by name. Errors: an unknown name, an option that the network doesn't have or a
/// value that it can't take.
pub fn build(name: &str, options: &NetworkOptions) -> Result<Graph, NetworkError> {
    let found = NAMES.iter().find(|network| network.name == name);
    let network = found.ok_or_else(|| NetworkError::Unknown {
        name: name.to_owned(),
        known: NAMES.iter().map(|n| n.name).collect::<Vec<_>>().join(", "),
    })?;
    let choices = network.defaults.with(name, options)?;
    (network.build)(name, &choices)
}
