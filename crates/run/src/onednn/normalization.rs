//! The gradients of a layer normalization.

use scrimp_onednn::{Arg, Engine, LayerNormalization, OneDnnError};
use std::sync::Arc;

use super::program::{Builder, Program, Slot};

/// Length of the longest row. The library unrolls its loop over a row completely, so the code is as long as
/// the row. Compared with ours, rows of 64 take a quarter of the time, rows of 1536 four fifths, of 4096 nine
/// tenths, of 8192 the same.
const LONGEST: usize = 4096;

/// `x, stats, scale, dy -> dx, dscale, dshift` on rows. dx may be in dy's memory, as the library promises, or
/// in x's: the library writes an element only after its last read of the one in the same place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormGrad {
    rows: usize,
    length: usize,
    epsilon: u32,
}

impl LayerNormGrad {
    /// The gradients for a tensor of this shape, whose axes from `axis` on form one row; `None` if rows are
    /// too long.
    pub fn new(axis: usize, epsilon: f64, shape: &[usize]) -> Option<LayerNormGrad> {
        let (rows, length) = shape.split_at(axis);
        let norm = LayerNormGrad {
            rows: rows.iter().product(),
            length: length.iter().product(),
            epsilon: (epsilon as f32).to_bits(),
        };
        (norm.length <= LONGEST).then_some(norm)
    }

    pub fn program(&self, engine: &Arc<Engine>) -> Result<Option<Program>, OneDnnError> {
        let rows = engine.dense(&[self.rows, self.length])?;
        let (each_row, row) = (engine.dense(&[self.rows])?, engine.dense(&[self.length])?);
        let what = LayerNormalization {
            rows: &rows,
            statistics: &each_row,
            epsilon: f32::from_bits(self.epsilon),
        };
        let Some(gradients) = engine.layer_normalization_gradient(&what)? else {
            return Ok(None);
        };
        let bytes = each_row.bytes();
        let statistics = |start| Slot::Part {
            input: 1,
            start,
            bytes,
        };
        let arguments = [
            (Arg::Source, Slot::Input(0), &rows),
            (Arg::Mean, statistics(0), &each_row),
            (Arg::Variance, statistics(bytes), &each_row),
            (Arg::Scale, Slot::Input(2), &row),
            // The library wants a shift, though no gradient depends on it.
            (Arg::Shift, Slot::Input(2), &row),
            (Arg::DestinationGrad, Slot::Input(3), &rows),
            (Arg::SourceGrad, Slot::Output(0), &rows),
            (Arg::ScaleGrad, Slot::Output(1), &row),
            (Arg::ShiftGrad, Slot::Output(2), &row),
        ];
        let mut builder = Builder::new(engine);
        builder.add(gradients, &arguments)?;
        Ok(builder.finish())
    }
}
