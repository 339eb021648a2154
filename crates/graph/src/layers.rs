//! Layers: what networks are made of, with the parameters they need and PyTorch's initialization.
//!
//! Parameters are named `<layer>.weight` and `<layer>.bias`, running statistics `<layer>.running`.

use crate::builder::GraphBuilder;
use crate::error::GraphError;
use crate::graph::{Init, TensorId};
use crate::op::{Binary, Norm, Op, Unary, Window};
use crate::shape::{ShapeError, elements, norm_shapes};

impl GraphBuilder {
    /// `f(x)`
    pub fn unary(&mut self, name: &str, f: Unary, x: TensorId) -> Result<TensorId, GraphError> {
        self.add1(name, Op::Unary(f), &[x])
    }

    /// max(x, 0)
    pub fn relu(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        self.unary(name, Unary::Relu, x)
    }

    /// `f(a, b)` with broadcasting.
    pub fn binary(
        &mut self,
        name: &str,
        f: Binary,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, GraphError> {
        self.add1(name, Op::Binary(f), &[a, b])
    }

    /// The same elements in another shape; a view.
    pub fn reshape(
        &mut self,
        name: &str,
        x: TensorId,
        shape: &[usize],
    ) -> Result<TensorId, GraphError> {
        self.add1(
            name,
            Op::Reshape {
                shape: shape.to_vec(),
            },
            &[x],
        )
    }

    /// `[N, ..] -> [N, rest]`; a view.
    pub fn flatten(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let shape = self.shape(x);
        let rows = shape.first().copied().unwrap_or(1);
        let columns = elements(shape) / rows;
        self.reshape(name, x, &[rows, columns])
    }

    /// y's axis i is x's axis `perm[i]`.
    pub fn transpose(
        &mut self,
        name: &str,
        x: TensorId,
        perm: &[usize],
    ) -> Result<TensorId, GraphError> {
        self.add1(
            name,
            Op::Transpose {
                perm: perm.to_vec(),
            },
            &[x],
        )
    }

    /// Joins along an axis.
    pub fn concat(
        &mut self,
        name: &str,
        axis: usize,
        inputs: &[TensorId],
    ) -> Result<TensorId, GraphError> {
        self.add1(name, Op::Concat { axis }, inputs)
    }

    /// A convolution from x's channels to `out_channels`, weight uniform in ±1/√fan_in.
    pub fn conv(
        &mut self,
        name: &str,
        x: TensorId,
        out_channels: usize,
        window: Window,
        groups: usize,
        bias: bool,
    ) -> Result<TensorId, GraphError> {
        let op = Op::Conv { window, groups };
        let channels = self.channels(name, &op, x)?;
        if groups == 0 || !channels.is_multiple_of(groups) {
            let source = ShapeError::Attribute {
                field: "groups",
                value: groups.to_string(),
                remedy: format!("it must divide the {channels} input channels"),
            };
            return Err(GraphError::node(name, &op, source));
        }
        let per_group = channels / groups;
        let shape = [out_channels, per_group, window.kernel[0], window.kernel[1]];
        let init = fan_in_uniform(&shape[1..]);
        let mut inputs = vec![
            x,
            self.parameter(&format!("{name}.weight"), &shape, init.clone())?,
        ];
        if bias {
            inputs.push(self.parameter(&format!("{name}.bias"), &[out_channels], init)?);
        }
        self.add1(name, op, &inputs)
    }

    /// A transposed convolution: the input gradient of the convolution with this window, from x's
    /// channels to `out_channels`. Height and width of the output are (len − 1)·stride −
    /// pads + dilation·(kernel − 1) + 1 + `output_padding`.
    pub fn conv_transpose(
        &mut self,
        name: &str,
        x: TensorId,
        out_channels: usize,
        window: Window,
        output_padding: [usize; 2],
        bias: bool,
    ) -> Result<TensorId, GraphError> {
        let mut op = Op::ConvInputGrad {
            window,
            groups: 1,
            input_hw: [0, 0],
        };
        let channels = self.channels(name, &op, x)?;
        let hw = transposed_size(self.shape(x), &window, output_padding);
        if let (Op::ConvInputGrad { input_hw, .. }, Some(hw)) = (&mut op, hw) {
            *input_hw = hw;
        }
        let shape = [channels, out_channels, window.kernel[0], window.kernel[1]];
        let init = fan_in_uniform(&shape[1..]);
        let weight = self.parameter(&format!("{name}.weight"), &shape, init.clone())?;
        let y = self.add1(name, op, &[x, weight])?;
        if !bias {
            return Ok(y);
        }
        let bias = self.parameter(&format!("{name}.bias"), &[out_channels, 1, 1], init)?;
        self.binary(&format!("{name}.add"), Binary::Add, y, bias)
    }

    /// `x[.., in] -> y[.., out]` with a weight stored as [out, in], uniform in ±1/√in.
    pub fn linear(
        &mut self,
        name: &str,
        x: TensorId,
        out_features: usize,
        bias: bool,
    ) -> Result<TensorId, GraphError> {
        let features = self.shape(x).last().copied().unwrap_or(1);
        let init = fan_in_uniform(&[features]);
        let weight = self.parameter(
            &format!("{name}.weight"),
            &[out_features, features],
            init.clone(),
        )?;
        let mut inputs = vec![x, weight];
        if bias {
            inputs.push(self.parameter(&format!("{name}.bias"), &[out_features], init)?);
        }
        self.add1(
            name,
            Op::MatMul {
                trans_a: false,
                trans_b: true,
            },
            &inputs,
        )
    }

    /// Batch normalization with scale 1, shift 0, running mean 0 and variance 1, PyTorch's momentum
    /// of 0.1 and epsilon of 1e-5.
    pub fn batch_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let op = Op::BatchNorm {
            epsilon: 1e-5,
            momentum: 0.1,
        };
        let channels = self.channels(name, &op, x)?;
        let scale = self.parameter(&format!("{name}.weight"), &[channels], Init::Constant(1.0))?;
        let shift = self.parameter(&format!("{name}.bias"), &[channels], Init::Constant(0.0))?;
        let running = self.state(
            &format!("{name}.running"),
            &[2, channels],
            Init::Floats(
                (0..2 * channels)
                    .map(|i| f32::from(i >= channels))
                    .collect(),
            ),
        )?;
        self.add1(name, op, &[x, scale, shift, running])
    }

    /// Layer, group or instance normalization with scale 1 and shift 0.
    pub fn normalize(
        &mut self,
        name: &str,
        x: TensorId,
        norm: Norm,
        epsilon: f64,
    ) -> Result<TensorId, GraphError> {
        let (_, shape) = norm_shapes(self.shape(x), norm)
            .map_err(|source| GraphError::node(name, &Op::NormStats { norm }, source))?;
        let scale = self.parameter(&format!("{name}.weight"), &shape, Init::Constant(1.0))?;
        let shift = self.parameter(&format!("{name}.bias"), &shape, Init::Constant(0.0))?;
        self.normalize_with(name, x, norm, epsilon, scale, shift)
    }

    /// Layer, group or instance normalization with this scale and shift.
    pub fn normalize_with(
        &mut self,
        name: &str,
        x: TensorId,
        norm: Norm,
        epsilon: f64,
        scale: TensorId,
        shift: TensorId,
    ) -> Result<TensorId, GraphError> {
        let stats = self.add1(&format!("{name}.stats"), Op::NormStats { norm }, &[x])?;
        self.add1(
            name,
            Op::NormApply {
                norm,
                epsilon,
                activation: None,
            },
            &[x, stats, scale, shift],
        )
    }

    /// Layer normalization over the last axis, epsilon 1e-5.
    pub fn layer_norm(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let axis = self.shape(x).len().saturating_sub(1);
        self.normalize(name, x, Norm::Layer { axis }, 1e-5)
    }

    /// Maximum over windows.
    pub fn max_pool(
        &mut self,
        name: &str,
        x: TensorId,
        window: Window,
    ) -> Result<TensorId, GraphError> {
        self.add1(name, Op::MaxPool { window }, &[x])
    }

    /// Mean over windows; padding counts, as in PyTorch.
    pub fn avg_pool(
        &mut self,
        name: &str,
        x: TensorId,
        window: Window,
    ) -> Result<TensorId, GraphError> {
        self.add1(
            name,
            Op::AvgPool {
                window,
                count_pad: true,
            },
            &[x],
        )
    }

    /// `[N,C,H,W] -> [N,C,1,1]`: mean over height and width.
    pub fn global_avg_pool(&mut self, name: &str, x: TensorId) -> Result<TensorId, GraphError> {
        let op = Op::Reduce {
            kind: crate::op::Reduction::Mean,
            axes: vec![2, 3],
            keep_dims: true,
        };
        self.add1(name, op, &[x])
    }

    /// Dropout with a stream of its own, from the step's seed.
    pub fn dropout(&mut self, name: &str, x: TensorId, p: f64) -> Result<TensorId, GraphError> {
        let seed = self.seed()?;
        let stream = self.node_count() as u64;
        let op = Op::Dropout {
            p,
            stream,
            place: None,
        };
        self.add1(name, op, &[x, seed])
    }

    /// Rows of a new table [count, width], normal with standard deviation `std`; returns the rows
    /// and the table.
    pub fn embedding(
        &mut self,
        name: &str,
        indices: TensorId,
        count: usize,
        width: usize,
        std: f64,
    ) -> Result<(TensorId, TensorId), GraphError> {
        let init = Init::Normal { std };
        let table = self.parameter(&format!("{name}.weight"), &[count, width], init)?;
        Ok((
            self.add1(name, Op::Gather { axis: 0 }, &[table, indices])?,
            table,
        ))
    }

    fn channels(&self, name: &str, op: &Op, x: TensorId) -> Result<usize, GraphError> {
        self.shape(x).get(1).copied().ok_or_else(|| {
            let source = ShapeError::Rank {
                input: 0,
                expected: "at least 2 ([N,C,..])".into(),
                found: self.shape(x).to_vec(),
            };
            GraphError::node(name, op, source)
        })
    }
}

/// PyTorch's default for weights and biases: uniform in ±1/√fan_in.
fn fan_in_uniform(fan_in: &[usize]) -> Init {
    let fan_in: f64 = fan_in.iter().map(|&len| len as f64).product();
    Init::Uniform {
        bound: 1.0 / fan_in.max(1.0).sqrt(),
    }
}

/// Height and width of a transposed convolution's output, if they fit an integer.
fn transposed_size(shape: &[usize], window: &Window, extra: [usize; 2]) -> Option<[usize; 2]> {
    let axis = |axis: usize| -> Option<usize> {
        let len = *shape.get(2 + axis)?;
        let span = window.kernel[axis]
            .checked_sub(1)?
            .checked_mul(window.dilation[axis])?;
        len.checked_sub(1)?
            .checked_mul(window.stride[axis])?
            .checked_add(span)?
            .checked_add(1)?
            .checked_add(extra[axis])?
            .checked_sub(window.pad_begin[axis].checked_add(window.pad_end[axis])?)
    };
    Some([axis(0)?, axis(1)?])
}
