//! Programs: primitives that run one after another on an operator's arguments and in its workspace.

use scrimp_onednn::{Arg, Buffer, Desc, Engine, OneDnnError, Primitive};
use std::sync::Arc;

use crate::arena::{ALIGN, Args};
use crate::error::RunError;

/// Where an argument of a primitive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input of the operator.
    Input(usize),
    /// The operator's only output.
    Output,
    /// A piece of the workspace.
    Piece(usize),
}

#[derive(Debug)]
struct Step {
    primitive: Primitive,
    operands: Vec<(Arg, Operand)>,
}

/// Start and length of a piece of the workspace.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    bytes: usize,
}

/// The scratchpad, which every step uses in turn.
const SCRATCH: usize = 0;

/// Primitives in order, with their arguments.
#[derive(Debug)]
pub struct Program {
    steps: Vec<Step>,
    pieces: Vec<Piece>,
}

/// Most arguments of one primitive.
const MOST: usize = 6;

impl Program {
    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| piece.start + piece.bytes)
            .max()
            .unwrap_or(0)
    }

    /// The implementations' names in order.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.primitive.name())
    }

    /// Runs all primitives on the operator's arguments.
    pub fn run(&self, args: &Args) -> Result<(), RunError> {
        let workspace = Buffer::writing(args.workspace());
        let output = Buffer::writing(bytemuck::cast_slice_mut(args.output::<f32>(0)));
        for step in &self.steps {
            let mut buffers = [(Arg::Scratchpad, workspace.part(0, 0)); MOST];
            for ((arg, operand), buffer) in step.operands.iter().zip(&mut buffers) {
                let memory = match *operand {
                    Operand::Input(i) => {
                        Buffer::reading(bytemuck::cast_slice(args.input::<f32>(i)?))
                    }
                    Operand::Output => output,
                    Operand::Piece(piece) => {
                        let piece = self.pieces[piece];
                        workspace.part(piece.start, piece.bytes)
                    }
                };
                *buffer = (*arg, memory);
            }
            step.primitive.execute(&buffers[..step.operands.len()])?;
        }
        Ok(())
    }
}

/// Puts a program together around one primitive.
pub struct Builder<'a> {
    engine: &'a Arc<Engine>,
    steps: Vec<Step>,
    /// Sizes of the pieces.
    pieces: Vec<usize>,
    /// Whether there was no usable implementation for a change of format.
    stuck: bool,
}

impl<'a> Builder<'a> {
    /// Nothing yet.
    pub fn new(engine: &'a Arc<Engine>) -> Builder<'a> {
        Builder {
            engine,
            steps: Vec::new(),
            pieces: vec![0],
            stuck: false,
        }
    }

    fn push(&mut self, primitive: Primitive, mut operands: Vec<(Arg, Operand)>) {
        if primitive.scratchpad() > 0 {
            self.pieces[SCRATCH] = self.pieces[SCRATCH].max(primitive.scratchpad());
            operands.push((Arg::Scratchpad, Operand::Piece(SCRATCH)));
        }
        self.steps.push(Step {
            primitive,
            operands,
        });
    }

    fn piece(&mut self, desc: &Desc) -> Operand {
        self.pieces.push(desc.bytes());
        Operand::Piece(self.pieces.len() - 1)
    }

    fn reorder(
        &mut self,
        [from, to]: [&Desc; 2],
        [source, destination]: [Operand; 2],
    ) -> Result<(), OneDnnError> {
        match self.engine.reorder(from, to)? {
            Some(reorder) => self.push(
                reorder,
                vec![(Arg::Source, source), (Arg::Destination, destination)],
            ),
            None => self.stuck = true,
        }
        Ok(())
    }

    /// The program of this primitive: each argument comes with where it is and its format there. Where
    /// the primitive wants another format, the argument is put into it before, or out of it after.
    /// `None` where the library can't do that well.
    pub fn finish(
        mut self,
        primitive: Primitive,
        arguments: &[(Arg, Operand, &Desc)],
    ) -> Result<Option<Program>, OneDnnError> {
        let mut operands = Vec::new();
        let mut after = None;
        for &(arg, operand, here) in arguments {
            let Some(there) = primitive.desc(arg) else {
                continue;
            };
            if here == there {
                operands.push((arg, operand));
                continue;
            }
            let piece = self.piece(there);
            if operand == Operand::Output {
                after = Some((self.engine.reorder(there, here)?, piece));
            } else {
                self.reorder([here, there], [operand, piece])?;
            }
            operands.push((arg, piece));
        }
        self.push(primitive, operands);
        match after {
            Some((Some(reorder), piece)) => self.push(
                reorder,
                vec![(Arg::Source, piece), (Arg::Destination, Operand::Output)],
            ),
            Some((None, _)) => self.stuck = true,
            None => {}
        }
        if self.stuck {
            return Ok(None);
        }
        let mut start = 0;
        let pieces = self.pieces.iter().map(|&bytes| {
            let piece = Piece { start, bytes };
            start += bytes.next_multiple_of(ALIGN);
            piece
        });
        let pieces = pieces.collect();
        Ok(Some(Program {
            steps: self.steps,
            pieces,
        }))
    }
}
