//! What the network families share: a builder with an initialization scheme, and the layers that
//! several of them use. Names follow torchvision's where torchvision has the network.

use super::options::{Choices, NetworkError, value_error};
use crate::builder::GraphBuilder;
use crate::dtype::DType;
use crate::error::GraphError;
use crate::graph::{Graph, Init, TensorId};
use crate::op::{Op, Reduction, Unary, Window};

/// How convolution weights start.
#[derive(Clone, Copy)]
pub(super) enum Scheme {
    /// Normal with variance 2/(out channels · kernel area): He et al. 2015, arXiv:1502.01852, eq. 14.
    FanOut,
    /// Normal with variance gain²/(in channels per group · kernel area): the same, eq. 10.
    FanIn {
        /// gain², 2 for relu, 2/(1 + slope²) for leaky relu.
        gain2: f64,
    },
    /// Uniform with that variance for gain² = 2.
    FanInUniform,
    /// Uniform in ±√(6/(fan in + fan out)): Glorot & Bengio 2010, eq. 16.
    Glorot,
    /// Normal with this standard deviation.
    Normal(f64),
}

impl Scheme {
    fn init(self, weight: [usize; 4]) -> Init {
        let area = (weight[2] * weight[3]) as f64;
        let fan_out = weight[0] as f64 * area;
        let fan_in = weight[1] as f64 * area;
        let normal = |variance: f64| Init::Normal {
            std: variance.sqrt(),
        };
        match self {
            Scheme::FanOut => normal(2.0 / fan_out),
            Scheme::FanIn { gain2 } => normal(gain2 / fan_in),
            Scheme::FanInUniform => Init::Uniform {
                bound: (6.0 / fan_in).sqrt(),
            },
            Scheme::Glorot => Init::Uniform {
                bound: (6.0 / (fan_in + fan_out)).sqrt(),
            },
            Scheme::Normal(std) => Init::Normal { std },
        }
    }
}

/// A network in the making.
pub(super) struct Net {
    /// For everything that has no shorthand here.
    pub(super) b: GraphBuilder,
    /// For the convolutions that follow.
    pub(super) scheme: Scheme,
    /// Added to the variances of the batch normalizations that follow.
    pub(super) epsilon: f64,
}

/// What building a layer gives.
pub(super) type Built = Result<TensorId, GraphError>;

impl Net {
    /// An empty network and its image input.
    pub(super) fn with_image(
        name: &str,
        choices: &Choices,
        channels: usize,
        scheme: Scheme,
    ) -> Result<(Net, TensorId), GraphError> {
        let [height, width] = choices.image.unwrap_or([1, 1]);
        let mut net = Net {
            b: GraphBuilder::new(name),
            scheme,
            epsilon: 1e-5,
        };
        let shape = [choices.batch, channels, height, width];
        let x = net.b.input("input", &shape, DType::F32)?;
        Ok((net, x))
    }

    /// The finished graph with one output.
    pub(super) fn finish(mut self, logits: TensorId) -> Result<Graph, GraphError> {
        self.b.output(logits);
        self.b.finish()
    }

    /// Convolution with this net's scheme; the bias starts at 0.
    pub(super) fn conv(
        &mut self,
        name: &str,
        x: TensorId,
        out: usize,
        window: Window,
        groups: usize,
        bias: bool,
    ) -> Built {
        let channels = self.b.shape(x)[1] / groups;
        let shape = [out, channels, window.kernel[0], window.kernel[1]];
        let init = self.scheme.init(shape);
        let mut inputs = vec![
            x,
            self.b.parameter(&format!("{name}.weight"), &shape, init)?,
        ];
        if bias {
            let bias = self
                .b
                .parameter(&format!("{name}.bias"), &[out], Init::Constant(0.0))?;
            inputs.push(bias);
        }
        self.b.add1(name, Op::Conv { window, groups }, &inputs)
    }

    /// Transposed convolution, without bias, kernel as large as the stride or larger, no padding.
    pub(super) fn conv_transpose(
        &mut self,
        name: &str,
        x: TensorId,
        out: usize,
        window: Window,
    ) -> Built {
        let [_, channels, height, width] = self.four(x);
        let shape = [channels, out, window.kernel[0], window.kernel[1]];
        let weight =
            self.b
                .parameter(&format!("{name}.weight"), &shape, self.scheme.init(shape))?;
        let size = |length: usize, axis: usize| {
            (length - 1)
                .saturating_mul(window.stride[axis])
                .saturating_add(window.kernel[axis])
        };
        let op = Op::ConvInputGrad {
            window,
            groups: 1,
            input_hw: [size(height, 0), size(width, 1)],
        };
        self.b.add1(name, op, &[x, weight])
    }

    /// Batch normalization with this net's epsilon.
    pub(super) fn batch_norm(&mut self, name: &str, x: TensorId) -> Built {
        let channels = self.b.shape(x)[1];
        let scale =
            self.b
                .parameter(&format!("{name}.weight"), &[channels], Init::Constant(1.0))?;
        let shift = self
            .b
            .parameter(&format!("{name}.bias"), &[channels], Init::Constant(0.0))?;
        let start: Vec<f32> = (0..2 * channels)
            .map(|i| f32::from(u8::from(i >= channels)))
            .collect();
        let running = format!("{name}.running");
        let running = self
            .b
            .state(&running, &[2, channels], Init::Floats(start.into()))?;
        let op = Op::BatchNorm {
            epsilon: self.epsilon,
            momentum: 0.1,
        };
        self.b.add1(name, op, &[x, scale, shift, running])
    }

    /// Fully connected layer with these first weights; the bias starts at 0.
    pub(super) fn linear(&mut self, name: &str, x: TensorId, out: usize, init: Init) -> Built {
        let features = self.b.shape(x)[1];
        let weight = self
            .b
            .parameter(&format!("{name}.weight"), &[out, features], init)?;
        let bias = self
            .b
            .parameter(&format!("{name}.bias"), &[out], Init::Constant(0.0))?;
        let op = Op::MatMul {
            trans_a: false,
            trans_b: true,
        };
        self.b.add1(name, op, &[x, weight, bias])
    }

    /// `f(x)`, named.
    pub(super) fn unary(&mut self, name: &str, f: Unary, x: TensorId) -> Built {
        self.b.unary(name, f, x)
    }

    /// Dropout, or nothing where the probability is 0.
    pub(super) fn dropout(&mut self, name: &str, x: TensorId, choices: &Choices) -> Built {
        match choices.dropout {
            Some(p) if p > 0.0 => self.b.dropout(name, x, p),
            _ => Ok(x),
        }
    }

    /// Max pooling by 2.
    pub(super) fn halve(&mut self, name: &str, x: TensorId) -> Built {
        self.b.max_pool(name, x, Window::square(2).stride(2))
    }

    /// Max pooling whose last window may hang over the end (PyTorch's ceil_mode).
    pub(super) fn max_pool_ceil(&mut self, name: &str, x: TensorId, mut window: Window) -> Built {
        for axis in 0..2 {
            let length = self.b.shape(x)[2 + axis];
            let free = length.saturating_sub(window.kernel[axis]);
            let over = free % window.stride[axis];
            window.pad_end[axis] = if over == 0 {
                0
            } else {
                window.stride[axis] - over
            };
        }
        self.b.max_pool(name, x, window)
    }

    /// Mean over height and width: [N,C,H,W] → [N,C].
    pub(super) fn pool_features(&mut self, name: &str, x: TensorId) -> Built {
        let pooled = self.b.global_avg_pool(name, x)?;
        self.b.flatten(&format!("{name}.flat"), pooled)
    }

    /// Σ x² / count: a loss that needs no labels.
    pub(super) fn mean_square(&mut self, name: &str, x: TensorId) -> Built {
        let squares = self.unary(&format!("{name}.squares"), Unary::Pow { exponent: 2.0 }, x)?;
        let mean = Op::Reduce {
            kind: Reduction::Mean,
            axes: vec![0, 1, 2, 3],
            keep_dims: false,
        };
        self.b.add1(name, mean, &[squares])
    }

    /// A tensor's four dimensions.
    pub(super) fn four(&self, x: TensorId) -> [usize; 4] {
        let shape = self.b.shape(x);
        [shape[0], shape[1], shape[2], shape[3]]
    }
}

/// Adds the network's name to what went wrong.
pub(super) fn named<T>(network: &str, result: Result<T, GraphError>) -> Result<T, NetworkError> {
    result.map_err(|source| NetworkError::Graph {
        network: network.to_owned(),
        source: Box::new(source),
    })
}

/// Height and width must be multiples of `factor`.
pub(super) fn whole_multiple(
    network: &str,
    choices: &Choices,
    factor: usize,
) -> Result<(), NetworkError> {
    let [height, width] = choices.image.unwrap_or([factor, factor]);
    if height.is_multiple_of(factor) && width.is_multiple_of(factor) {
        return Ok(());
    }
    let requirement = format!("height and width must be multiples of {factor}");
    Err(value_error(
        network,
        "image",
        format!("{height}x{width}"),
        requirement,
    ))
}
