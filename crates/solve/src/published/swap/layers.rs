//! What kind of layer a task is, for the methods whose rules ask for it.

use super::maps::Maps;
use crate::error::SolveError;

/// The kind of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layer {
    /// A convolution.
    Convolution,
    /// A product with a matrix of weights.
    Linear,
    /// Batch, layer, group or local response normalization.
    Normalization,
    /// An elementwise function of one input.
    Activation,
    /// Pooling.
    Pooling,
    /// Anything else, or unknown.
    #[default]
    Other,
}

/// Parts of names and what they stand for.
const PARTS: &[(&str, Layer)] = &[
    ("conv", Layer::Convolution),
    ("linear", Layer::Linear),
    ("dense", Layer::Linear),
    ("gemm", Layer::Linear),
    ("matmul", Layer::Linear),
    ("mm", Layer::Linear),
    ("fc", Layer::Linear),
    ("norm", Layer::Normalization),
    ("bn", Layer::Normalization),
    ("lrn", Layer::Normalization),
    ("relu", Layer::Activation),
    ("gelu", Layer::Activation),
    ("silu", Layer::Activation),
    ("sigmoid", Layer::Activation),
    ("tanh", Layer::Activation),
    ("clip", Layer::Activation),
    ("activation", Layer::Activation),
    ("pool", Layer::Pooling),
];

impl Layer {
    /// The kind that a task's name tells: the part of the name that stands last decides, so that
    /// `conv1_bn_relu` is an activation.
    #[must_use]
    pub fn of_name(name: &str) -> Layer {
        let name = name.to_ascii_lowercase();
        let found = PARTS
            .iter()
            .filter_map(|&(part, layer)| Some((name.rfind(part)?, layer)));
        found
            .max_by_key(|&(at, _)| at)
            .map_or(Layer::Other, |(_, layer)| layer)
    }
}

/// The layers of a problem's tasks.
pub(super) struct Layers(Vec<Layer>);

impl Layers {
    /// As the caller told them, or else as the names tell.
    pub(super) fn new(maps: &Maps<'_, '_>, told: Option<&[Layer]>) -> Layers {
        let tasks = 0..maps.graph.tasks.len();
        Layers(match told {
            Some(told) => tasks
                .map(|task| told.get(task).copied().unwrap_or_default())
                .collect(),
            None => tasks.map(|task| Layer::of_name(maps.name(task))).collect(),
        })
    }

    pub(super) fn of(&self, task: usize) -> Layer {
        self.0[task]
    }

    /// The forward convolutions; an error if there are none.
    pub(super) fn convolutions(&self, maps: &Maps<'_, '_>) -> Result<Vec<usize>, SolveError> {
        let tasks = maps.graph.tasks.iter().enumerate();
        let forward = tasks.filter(|(_, task)| task.forward).map(|(id, _)| id);
        let found: Vec<usize> = forward
            .filter(|&id| self.of(id) == Layer::Convolution)
            .collect();
        if found.is_empty() {
            let what = "no forward task is a convolution, by its operator or its name";
            return Err(SolveError::unsupported(maps.graph.method.name(), what));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_layer() {
        for (name, layer) in [
            ("_convolution/0", Layer::Convolution),
            ("layer1_Conv2dLayer", Layer::Convolution),
            ("cudnn_batch_norm/2", Layer::Normalization),
            ("conv_dw_1_bn", Layer::Normalization),
            ("conv_dw_1_relu", Layer::Activation),
            ("max_pool2d/3", Layer::Pooling),
            ("addmm/12", Layer::Linear),
            ("layer0_InputLayer", Layer::Other),
        ] {
            assert_eq!(Layer::of_name(name), layer, "{name}");
        }
    }
}
