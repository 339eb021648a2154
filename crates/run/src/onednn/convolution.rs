//! Convolutions and their gradients.

use scrimp_graph::Window;
use scrimp_onednn::{Arg, Convolution, Desc, Direction, Engine, OneDnnError};
use std::sync::Arc;

use super::program::{Builder, Operand, Program};

/// A convolution or one of its gradients on tensors of these shapes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    direction: Direction,
    window: Window,
    groups: usize,
    x: Vec<usize>,
    w: Vec<usize>,
    y: Vec<usize>,
    bias: bool,
}

/// Channels per group below which the gradient of the input is a product of matrices without blocks.
/// Blocks of 16 would be mostly padding: 57 ms against 19 ms for the first layer of a ResNet.
const FEW_CHANNELS: usize = 8;

impl Conv {
    /// Shapes of x, w and y, whatever is computed from which.
    pub fn new(
        direction: Direction,
        window: &Window,
        groups: usize,
        [x, w, y]: [&[usize]; 3],
        bias: bool,
    ) -> Option<Conv> {
        (x.len() == 4).then(|| Conv {
            direction,
            window: *window,
            groups,
            x: x.to_vec(),
            w: w.to_vec(),
            y: y.to_vec(),
            bias,
        })
    }

    /// Whether images stay as they are; otherwise the library chooses their format.
    fn plain(&self) -> bool {
        let channels = self.x[1] / self.groups;
        let product = self.window.kernel == [1, 1] && self.groups == 1;
        let thin = self.direction == Direction::Data && self.groups == 1;
        product || thin && channels < FEW_CHANNELS
    }

    /// Shape of the weights as the library has it.
    fn weights(&self) -> Vec<usize> {
        match self.groups {
            1 => self.w.clone(),
            groups => {
                let mut shape = vec![groups, self.w[0] / groups];
                shape.extend(&self.w[1..]);
                shape
            }
        }
    }

    /// The program; `None` where the library has no good implementation.
    pub fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        let (weights, bias) = (self.weights(), [self.w[0]]);
        let (x, w, y) = (
            engine.dense(&self.x)?,
            engine.dense(&weights)?,
            engine.dense(&self.y)?,
        );
        let bias = match self.bias {
            true => Some(engine.dense(&bias)?),
            false => None,
        };
        let image = |shape: &[usize]| match self.plain() {
            true => engine.dense(shape),
            false => engine.any(shape),
        };
        let what = Convolution {
            source: &image(&self.x)?,
            weights: &engine.any(&weights)?,
            bias: bias.as_ref(),
            destination: &image(&self.y)?,
            stride: self.window.stride,
            dilation: self.window.dilation,
            pad_begin: self.window.pad_begin,
            pad_end: self.window.pad_end,
        };
        let Some(primitive) = engine.convolution(self.direction, &what)? else {
            return Ok(None);
        };
        let arguments = self.arguments([&x, &w, &y], bias.as_ref());
        Builder::new(engine).finish(primitive, &arguments)
    }

    /// The operator's arguments: where each is, and its format there.
    fn arguments<'d>(
        &self,
        [x, w, y]: [&'d Desc; 3],
        bias: Option<&'d Desc>,
    ) -> Vec<(Arg, Operand, &'d Desc)> {
        match self.direction {
            Direction::Forward => {
                let mut all = vec![
                    (Arg::Source, Operand::Input(0), x),
                    (Arg::Weights, Operand::Input(1), w),
                    (Arg::Destination, Operand::Output, y),
                ];
                all.extend(bias.map(|bias| (Arg::Bias, Operand::Input(2), bias)));
                all
            }
            Direction::Data => vec![
                (Arg::DestinationGrad, Operand::Input(0), y),
                (Arg::Weights, Operand::Input(1), w),
                (Arg::SourceGrad, Operand::Output, x),
            ],
            Direction::Weights => vec![
                (Arg::Source, Operand::Input(0), x),
                (Arg::DestinationGrad, Operand::Input(1), y),
                (Arg::WeightsGrad, Operand::Output, w),
            ],
        }
    }
}
