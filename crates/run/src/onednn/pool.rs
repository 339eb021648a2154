//! Poolings and their gradients. The gradient of a max pooling finds the largest elements again in its own
//! workspace, so that nothing has to be saved for it.

use scrimp_graph::Window;
use scrimp_onednn::{Arg, Engine, OneDnnError, Pooling, PoolingShape};
use std::sync::Arc;

use super::program::{Builder, Program, Slot, image};
use crate::format::{Format, Operand};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// x -> y
    Forward,
    /// dy -> dx; for the maximum, x, dy -> dx.
    Backward,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    kind: Pooling,
    way: Way,
    window: Window,
    x: Vec<usize>,
    y: Vec<usize>,
    /// Formats of x, of y or its gradient, and of x's gradient.
    formats: [Format; 3],
}

impl Pool {
    /// The pooling of x to y, whatever is computed.
    pub fn new(kind: Pooling, way: Way, window: &Window, [x, y]: [Operand<'_>; 2]) -> Option<Pool> {
        (x.shape.len() == 4).then(|| Pool {
            kind,
            way,
            window: *window,
            x: x.shape.to_vec(),
            y: y.shape.to_vec(),
            formats: [x.format, y.format, x.format],
        })
    }

    pub fn of_max_gradient(window: &Window, [x, dy, dx]: [Operand<'_>; 3]) -> Option<Pool> {
        let pool = Pool::new(Pooling::Max, Way::Backward, window, [x, dy])?;
        let formats = [x.format, dy.format, dx.format];
        Some(Pool { formats, ..pool })
    }

    pub fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        let last = self.formats.contains(&Format::ChannelsLast);
        let inside = match last {
            true => Format::ChannelsLast,
            false => Format::Rows,
        };
        let (source, destination) = (
            image(engine, &self.x, inside)?,
            image(engine, &self.y, inside)?,
        );
        let shape = PoolingShape {
            kind: self.kind,
            source: &source,
            destination: &destination,
            kernel: self.window.kernel,
            stride: self.window.stride,
            dilation: self.window.dilation,
            pad_begin: self.window.pad_begin,
            pad_end: self.window.pad_end,
        };
        let (x, y, dx) = (
            image(engine, &self.x, self.formats[0])?,
            image(engine, &self.y, self.formats[1])?,
            image(engine, &self.x, self.formats[2])?,
        );
        let mut builder = Builder::new(engine);
        if self.way == Way::Forward {
            let Some(pooling) = engine.pooling(&shape, false)? else {
                return Ok(None);
            };
            let arguments = [
                (Arg::Source, Slot::Input(0), &x),
                (Arg::Destination, Slot::Output(0), &y),
            ];
            builder.add(pooling, &arguments)?;
            return Ok(builder.finish());
        }
        let Some(gradient) = engine.pooling_gradient(&shape)? else {
            return Ok(None);
        };
        if self.kind != Pooling::Max {
            let arguments = [
                (Arg::DestinationGrad, Slot::Input(0), &y),
                (Arg::SourceGrad, Slot::Output(0), &dx),
            ];
            builder.add(gradient, &arguments)?;
            return Ok(builder.finish());
        }
        let (Some(pooling), Some(places)) =
            (engine.pooling(&shape, true)?, gradient.desc(Arg::Workspace))
        else {
            return Ok(None);
        };
        let maxima = builder.piece(&destination);
        let kept = builder.piece(places);
        let places = places.duplicate()?;
        let arguments = [
            (Arg::Source, Slot::Input(0), &x),
            (Arg::Destination, maxima, &destination),
            (Arg::Workspace, kept, &places),
        ];
        builder.add(pooling, &arguments)?;
        let arguments = [
            (Arg::DestinationGrad, Slot::Input(1), &y),
            (Arg::Workspace, kept, &places),
            (Arg::SourceGrad, Slot::Output(0), &dx),
        ];
        builder.add(gradient, &arguments)?;
        Ok(builder.finish())
    }
}
