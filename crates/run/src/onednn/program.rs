//! Programs: primitives that run one after another on an operator's arguments and in its workspace.

use scrimp_onednn::{Arg, Buffer, Desc, Engine, MOST_ARGUMENTS, OneDnnError, Primitive};
use std::sync::Arc;

use crate::args::{Args, Source};
use crate::error::RunError;
use crate::format::Format;
use crate::span::ALIGN;

/// Where an argument of a primitive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An input of the operator.
    Input(usize),
    /// Some bytes of an input that isn't overwritten.
    Part {
        input: usize,
        start: usize,
        bytes: usize,
    },
    /// An output of the operator; the first is where an input is that is overwritten.
    Output(usize),
    /// A piece of the workspace.
    Piece(usize),
}

#[derive(Debug)]
struct Step {
    primitive: Primitive,
    places: Vec<(Arg, Place)>,
}

/// Start and length of a piece of the workspace.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    bytes: usize,
}

/// An image in a format.
pub fn image(engine: &Engine, shape: &[usize], format: Format) -> Result<Desc, OneDnnError> {
    match (format, shape) {
        (Format::ChannelsLast, &[_, c, h, w]) => engine.strided(shape, &[h * w * c, 1, w * c, c]),
        _ => engine.dense(shape),
    }
}

/// The scratchpad, which every step uses in turn.
const SCRATCH: usize = 0;

/// Primitives in order, with their arguments.
#[derive(Debug)]
pub struct Program {
    steps: Vec<Step>,
    pieces: Vec<Piece>,
}

/// Most outputs of one operator.
const MOST_OUTPUTS: usize = 3;

impl Program {
    /// Bytes of workspace.
    pub fn workspace(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| piece.start + piece.bytes)
            .max()
            .unwrap_or(0)
    }

    /// How a convolution among the primitives has its weights, or their gradient.
    pub fn weights(&self) -> Option<&Desc> {
        let steps = self.steps.iter();
        steps
            .flat_map(|step| [Arg::Weights, Arg::WeightsGrad].map(|arg| step.primitive.desc(arg)))
            .find_map(|desc| desc)
    }

    /// The implementations' names in order.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.primitive.name())
    }

    /// Runs all primitives on the operator's arguments.
    pub fn run(&self, args: Args<'_>) -> Result<(), RunError> {
        let Args {
            inputs,
            outputs: written,
            workspace,
        } = args;
        let workspace = Buffer::writing(workspace);
        let mut outputs = [workspace.part(0, 0); MOST_OUTPUTS];
        for (output, memory) in outputs.iter_mut().zip(written.slices::<u8>()) {
            *output = Buffer::writing(memory);
        }
        for step in &self.steps {
            let mut buffers = [(Arg::Scratchpad, workspace.part(0, 0)); MOST_ARGUMENTS];
            for ((arg, place), buffer) in step.places.iter().zip(&mut buffers) {
                let memory = match *place {
                    Place::Input(i) => match inputs.source(i)? {
                        Source::From(memory) => Buffer::reading(memory),
                        Source::InPlace => outputs[0],
                    },
                    Place::Part {
                        input,
                        start,
                        bytes,
                    } => Buffer::reading(inputs.get(input)?).part(start, bytes),
                    Place::Output(o) => outputs[o],
                    Place::Piece(piece) => {
                        let piece = self.pieces[piece];
                        workspace.part(piece.start, piece.bytes)
                    }
                };
                *buffer = (*arg, memory);
            }
            step.primitive.execute(&buffers[..step.places.len()])?;
        }
        Ok(())
    }
}

/// Puts a program together.
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

    fn push(&mut self, primitive: Primitive, mut places: Vec<(Arg, Place)>) {
        if primitive.scratchpad() > 0 {
            self.pieces[SCRATCH] = self.pieces[SCRATCH].max(primitive.scratchpad());
            places.push((Arg::Scratchpad, Place::Piece(SCRATCH)));
        }
        self.steps.push(Step { primitive, places });
    }

    /// A new piece of the workspace for a tensor.
    pub fn piece(&mut self, desc: &Desc) -> Place {
        self.pieces.push(desc.bytes());
        Place::Piece(self.pieces.len() - 1)
    }

    fn reorder(
        &mut self,
        [from, to]: [&Desc; 2],
        [source, destination]: [Place; 2],
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

    /// Adds a primitive; each argument comes with where it is and its format there. Where the primitive
    /// wants another format, the argument is put into it before, or out of it after.
    pub fn add(
        &mut self,
        primitive: Primitive,
        arguments: &[(Arg, Place, &Desc)],
    ) -> Result<(), OneDnnError> {
        let mut places = Vec::new();
        let mut after = Vec::new();
        for &(arg, place, here) in arguments {
            let Some(there) = primitive.desc(arg) else {
                continue;
            };
            if here == there {
                places.push((arg, place));
                continue;
            }
            let piece = self.piece(there);
            if let Place::Output(_) = place {
                after.push((there.duplicate()?, here, [piece, place]));
            } else {
                self.reorder([here, there], [place, piece])?;
            }
            places.push((arg, piece));
        }
        self.push(primitive, places);
        for (there, here, places) in after {
            self.reorder([&there, here], places)?;
        }
        Ok(())
    }

    /// The program of what was added; `None` where the library can't do that well.
    pub fn finish(self) -> Option<Program> {
        if self.stuck {
            return None;
        }
        let mut start = 0;
        let pieces = self.pieces.iter().map(|&bytes| {
            let piece = Piece { start, bytes };
            start += bytes.next_multiple_of(ALIGN);
            piece
        });
        let pieces = pieces.collect();
        Some(Program {
            steps: self.steps,
            pieces,
        })
    }
}
