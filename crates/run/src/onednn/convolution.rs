//! Convolutions and their gradients.

use scrimp_graph::Window;
use scrimp_onednn::{Arg, Convolution, Desc, Direction, Engine, OneDnnError};
use std::collections::HashMap;
use std::sync::Arc;

use super::program::{Builder, Program, Slot, image};
use crate::blocks::Blocks;
use crate::format::{Format, Operand};

/// oneDNN's descriptors of blocked layouts, by layout.
pub type Blocked = HashMap<Blocks, Desc>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    direction: Direction,
    window: Window,
    groups: usize,
    x: Vec<usize>,
    w: Vec<usize>,
    y: Vec<usize>,
    /// Formats of x, the weights and y.
    formats: [Format; 3],
    /// Whether there is a bias or, for the gradient of the weights, a sum.
    addend: bool,
}

/// With fewer channels the gradient of the input is ours. The library's blocks of 16 would be mostly padding, and its
/// product of matrices without blocks allocates memory of its own.
const FEW_CHANNELS: usize = 8;

impl Conv {
    /// The convolution of x with weights to y, whichever of the three is computed.
    pub fn new(
        direction: Direction,
        window: &Window,
        groups: usize,
        [x, y]: [Operand<'_>; 2],
        weights: Operand<'_>,
        addend: bool,
    ) -> Option<Conv> {
        let usable = x.shape.len() == 4 && weights.format != Format::ChannelsLast;
        let thin = direction == Direction::Data && groups == 1 && x.shape.get(1)? < &FEW_CHANNELS;
        (usable && !thin).then(|| Conv {
            direction,
            window: *window,
            groups,
            x: x.shape.to_vec(),
            w: weights.shape.to_vec(),
            y: y.shape.to_vec(),
            formats: [x.format, weights.format, y.format],
            addend,
        })
    }

    /// The format in which the library receives images: channels last if one of the images has them, rows if
    /// rows are best, otherwise the library's choice.
    fn image(&self, engine: &Engine, shape: &[usize]) -> Result<Desc, OneDnnError> {
        let product = self.window.kernel == [1, 1] && self.groups == 1;
        if self.formats.contains(&Format::ChannelsLast) {
            image(engine, shape, Format::ChannelsLast)
        } else if product {
            engine.dense(shape)
        } else {
            engine.any(shape)
        }
    }

    /// Shape of the weights as the library defines it.
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

    pub fn program(
        &self,
        engine: &Arc<Engine>,
        blocks: &Blocked,
    ) -> Result<Option<Program>, OneDnnError> {
        let (weights, bias) = (self.weights(), [self.w[0]]);
        let w = match self.formats[1] {
            Format::Blocks(of) => match blocks.get(&of) {
                Some(desc) => desc.duplicate()?,
                None => return Ok(None),
            },
            _ => engine.dense(&weights)?,
        };
        let x = image(engine, &self.x, self.formats[0])?;
        let y = image(engine, &self.y, self.formats[2])?;
        let adds = self.addend && self.direction == Direction::Weights;
        let bias = match self.addend && !adds {
            true => Some(engine.dense(&bias)?),
            false => None,
        };
        let what = Convolution {
            source: &self.image(engine, &self.x)?,
            weights: &engine.any(&weights)?,
            bias: bias.as_ref(),
            destination: &self.image(engine, &self.y)?,
            stride: self.window.stride,
            dilation: self.window.dilation,
            pad_begin: self.window.pad_begin,
            pad_end: self.window.pad_end,
        };
        let Some(primitive) = engine.convolution(self.direction, &what)? else {
            return Ok(None);
        };
        let arguments = self.arguments([&x, &w, &y], bias.as_ref());
        let mut builder = Builder::new(engine);
        if adds {
            builder.start_from(2);
            builder.add_sum(primitive, &arguments)?;
        } else {
            builder.add(primitive, &arguments)?;
        }
        Ok(builder.finish())
    }

    fn arguments<'d>(
        &self,
        [x, w, y]: [&'d Desc; 3],
        bias: Option<&'d Desc>,
    ) -> Vec<(Arg, Slot, &'d Desc)> {
        match self.direction {
            Direction::Forward => {
                let mut all = vec![
                    (Arg::Source, Slot::Input(0), x),
                    (Arg::Weights, Slot::Input(1), w),
                    (Arg::Destination, Slot::Output(0), y),
                ];
                all.extend(bias.map(|bias| (Arg::Bias, Slot::Input(2), bias)));
                all
            }
            Direction::Data => vec![
                (Arg::DestinationGrad, Slot::Input(0), y),
                (Arg::Weights, Slot::Input(1), w),
                (Arg::SourceGrad, Slot::Output(0), x),
            ],
            Direction::Weights => vec![
                (Arg::Source, Slot::Input(0), x),
                (Arg::DestinationGrad, Slot::Input(1), y),
                (Arg::WeightsGrad, Slot::Output(0), w),
            ],
        }
    }
}
