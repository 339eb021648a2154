//! Programs: primitives that run one after another on an operator's arguments and in its workspace.

use scrimp_onednn::{Arg, Buffer, Desc, Engine, MOST_ARGUMENTS, OneDnnError, Primitive};
use std::sync::Arc;

use crate::args::{Args, Source};
use crate::error::RunError;
use crate::format::Format;
use crate::span::ALIGN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    Input(usize),
    /// Some bytes of an input that isn't overwritten.
    Part {
        input: usize,
        start: usize,
        bytes: usize,
    },
    /// An output of the operator; the first output lies where the overwritten input is, if there is one.
    Output(usize),
    Piece(usize),
}

#[derive(Debug)]
struct Invocation {
    primitive: Primitive,
    slots: Vec<(Arg, Slot)>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    bytes: usize,
}

pub fn image(engine: &Engine, shape: &[usize], format: Format) -> Result<Desc, OneDnnError> {
    match (format, shape) {
        (Format::ChannelsLast, &[_, c, h, w]) => engine.strided(shape, &[h * w * c, 1, w * c, c]),
        _ => engine.dense(shape),
    }
}

/// Index of the scratchpad, which every primitive uses in turn.
const SCRATCH: usize = 0;

/// Primitives in order, with their arguments.
#[derive(Debug)]
pub struct Program {
    invocations: Vec<Invocation>,
    pieces: Vec<Piece>,
    /// The input as which output 0 starts.
    sum: Option<usize>,
}

const MOST_OUTPUTS: usize = 3;

impl Program {
    pub fn workspace(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| piece.start + piece.bytes)
            .max()
            .unwrap_or(0)
    }

    /// The format in which a convolution among the primitives wants its weights, or writes their gradient.
    pub fn weights(&self) -> Option<&Desc> {
        let invocations = self.invocations.iter();
        invocations
            .flat_map(|invocation| {
                [Arg::Weights, Arg::WeightsGrad].map(|arg| invocation.primitive.desc(arg))
            })
            .find_map(|desc| desc)
    }

    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.invocations
            .iter()
            .map(|invocation| invocation.primitive.name())
    }

    /// Compiles what hasn't been, so that the first run takes no longer than others.
    pub fn compile(&self) -> Result<(), OneDnnError> {
        let mut invocations = self.invocations.iter();
        invocations.try_for_each(|invocation| invocation.primitive.compile())
    }

    pub fn run(&self, args: Args<'_>) -> Result<(), RunError> {
        let Args {
            inputs,
            outputs: written,
            workspace,
        } = args;
        let workspace = Buffer::writing(workspace);
        let mut outputs = [workspace.part(0, 0); MOST_OUTPUTS];
        for (o, memory) in written.slices::<u8>().enumerate() {
            if let (0, Some(sum)) = (o, self.sum) {
                inputs.copy_to(sum, 0, memory)?;
            }
            outputs[o] = Buffer::writing(memory);
        }
        for invocation in &self.invocations {
            let mut buffers = [(Arg::Scratchpad, workspace.part(0, 0)); MOST_ARGUMENTS];
            for ((arg, slot), buffer) in invocation.slots.iter().zip(&mut buffers) {
                let memory = match *slot {
                    Slot::Input(i) => match inputs.source(i)? {
                        Source::From(memory) => Buffer::reading(memory),
                        Source::InPlace => outputs[0],
                    },
                    Slot::Part {
                        input,
                        start,
                        bytes,
                    } => Buffer::reading(inputs.get(input)?).part(start, bytes),
                    Slot::Output(o) => outputs[o],
                    Slot::Piece(piece) => {
                        let piece = self.pieces[piece];
                        workspace.part(piece.start, piece.bytes)
                    }
                };
                *buffer = (*arg, memory);
            }
            invocation
                .primitive
                .execute(&buffers[..invocation.slots.len()])?;
        }
        Ok(())
    }
}

pub struct Builder<'a> {
    engine: &'a Arc<Engine>,
    invocations: Vec<Invocation>,
    pieces: Vec<usize>,
    /// Whether the library had no usable implementation for a change of format.
    stuck: bool,
    sum: Option<usize>,
}

impl<'a> Builder<'a> {
    pub fn new(engine: &'a Arc<Engine>) -> Builder<'a> {
        Builder {
            engine,
            invocations: Vec::new(),
            pieces: vec![0],
            stuck: false,
            sum: None,
        }
    }

    fn push(&mut self, primitive: Primitive, mut slots: Vec<(Arg, Slot)>) {
        if primitive.scratchpad() > 0 {
            self.pieces[SCRATCH] = self.pieces[SCRATCH].max(primitive.scratchpad());
            slots.push((Arg::Scratchpad, Slot::Piece(SCRATCH)));
        }
        self.invocations.push(Invocation { primitive, slots });
    }

    /// Adds a piece of the workspace for a tensor.
    pub fn piece(&mut self, desc: &Desc) -> Slot {
        self.pieces.push(desc.bytes());
        Slot::Piece(self.pieces.len() - 1)
    }

    fn reorder(
        &mut self,
        [from, to]: [&Desc; 2],
        [source, destination]: [Slot; 2],
        adds: bool,
    ) -> Result<(), OneDnnError> {
        match self.engine.reorder(from, to, adds)? {
            Some(reorder) => self.push(
                reorder,
                vec![(Arg::Source, source), (Arg::Destination, destination)],
            ),
            None => self.stuck = true,
        }
        Ok(())
    }

    /// Has output 0 start as a copy of this input, unless it overwrites it.
    pub fn start_from(&mut self, input: usize) {
        self.sum = Some(input);
    }

    /// Adds a primitive, with the place of each argument and its format there. If the primitive wants another
    /// format, an input is changed before it and an output after it.
    pub fn add(
        &mut self,
        primitive: Primitive,
        arguments: &[(Arg, Slot, &Desc)],
    ) -> Result<(), OneDnnError> {
        self.place(primitive, arguments, false)
    }

    /// Like [`Builder::add`], but what the primitive computes is added to what the outputs hold.
    pub fn add_sum(
        &mut self,
        primitive: Primitive,
        arguments: &[(Arg, Slot, &Desc)],
    ) -> Result<(), OneDnnError> {
        self.place(primitive, arguments, true)
    }

    fn place(
        &mut self,
        primitive: Primitive,
        arguments: &[(Arg, Slot, &Desc)],
        adds: bool,
    ) -> Result<(), OneDnnError> {
        let mut slots = Vec::new();
        let mut after = Vec::new();
        for &(arg, slot, here) in arguments {
            let Some(there) = primitive.desc(arg) else {
                continue;
            };
            let output = matches!(slot, Slot::Output(_));
            if here == there && !(adds && output) {
                slots.push((arg, slot));
                continue;
            }
            let piece = self.piece(there);
            if output {
                after.push((there.duplicate()?, here, [piece, slot]));
            } else {
                self.reorder([here, there], [slot, piece], false)?;
            }
            slots.push((arg, piece));
        }
        self.push(primitive, slots);
        for (there, here, slots) in after {
            self.reorder([&there, here], slots, adds)?;
        }
        Ok(())
    }

    /// The program of what was added; `None` if the library can't do that well.
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
            invocations: self.invocations,
            pieces,
            sum: self.sum,
        })
    }
}
