//! Runs one operator by itself, again and again on the same memory, for comparisons with other libraries.

use scrimp_graph::{DType, Op, infer};
use std::sync::Arc;

use crate::arena::Arena;
use crate::cpu::Library;
use crate::error::RunError;
use crate::format::{Format, Operand, arguments};
use crate::job::Job;
use crate::memory::Memory;
use crate::processor::Processor;
use crate::span::{ALIGN, Span};

/// An operator on memory of its own, ready to run. Images are in the device's format.
#[derive(Debug)]
pub struct Alone<'a> {
    processor: Processor<'a>,
    memory: Memory,
    job: Job,
    name: String,
}

impl<'a> Alone<'a> {
    /// Prepares an operator on inputs of these shapes and types. Floats are between 0 and 1, integers 0 or 1.
    ///
    /// # Errors
    /// The operator doesn't take such shapes, or there isn't enough memory.
    pub fn new(
        processor: Processor<'a>,
        op: &Op,
        inputs: &[(&[usize], DType)],
    ) -> Result<Alone<'a>, RunError> {
        Alone::overwriting(processor, op, inputs, op.overwrites())
    }

    /// The same with outputs in the memory of inputs: pairs of an input's and an output's index.
    pub(super) fn overwriting(
        processor: Processor<'a>,
        op: &Op,
        inputs: &[(&[usize], DType)],
        pairs: &[(usize, usize)],
    ) -> Result<Alone<'a>, RunError> {
        let refused = |reason: String| RunError::Unsupported {
            op: op.kind().into(),
            reason,
        };
        let outputs = infer(op, inputs).map_err(|error| refused(error.to_string()))?;
        let outputs: Vec<_> = outputs.iter().map(|(s, dtype)| (&s[..], *dtype)).collect();
        let format = match processor {
            Processor::Cpu(cpu) if cpu.library() == Library::OneDnn => Format::ChannelsLast,
            _ => Format::Rows,
        };
        let (reads, writes) = arguments(op, inputs, &outputs, format);
        let recipe = processor.recipe_of(op, &reads, &writes).unwrap_or_default();
        let recipe = Arc::new(recipe);
        let bytes =
            |one: &Operand<'_>| one.shape.iter().product::<usize>() as u64 * one.dtype.bytes();
        let mut end = 0;
        let mut place = |bytes: u64| {
            let offset = end;
            end += bytes.next_multiple_of(ALIGN as u64);
            offset
        };
        let mut places = |operands: &[Operand<'_>]| -> Vec<u64> {
            operands.iter().map(|one| place(bytes(one))).collect()
        };
        let (read_at, mut written_at) = (places(&reads), places(&writes));
        for &(input, output) in pairs {
            written_at[output] = read_at[input];
        }
        let (workspace, scratch) = (recipe.workspace(), place(recipe.workspace()));
        let mut arena = Arena::new(end)?;
        for (one, &offset) in reads.iter().zip(&read_at) {
            fill(one.dtype, arena.bytes_at_mut(offset, bytes(one)));
        }
        let spans = |operands: &[Operand<'_>], places: &[u64]| -> Result<Vec<Span>, RunError> {
            let each = operands.iter().zip(places);
            each.map(|(one, &offset)| arena.span(offset, bytes(one), "an argument"))
                .collect()
        };
        let (read, written) = (spans(&reads, &read_at)?, spans(&writes, &written_at)?);
        let scratch = match workspace {
            0 => Span::EMPTY,
            _ => arena.span(scratch, workspace, "the workspace")?,
        };
        let job = recipe.job(&read, &written, scratch)?;
        Ok(Alone {
            processor,
            memory: Memory::holding(processor, arena)?,
            job,
            name: op.kind().into(),
        })
    }

    /// Runs the operator once.
    ///
    /// # Errors
    /// The kernel fails.
    pub fn run(&mut self) -> Result<(), RunError> {
        let (processor, job, memory) = (self.processor, &self.job, &mut self.memory);
        processor
            .enter(|| processor.run(job, memory))
            .map_err(|error| RunError::in_node(&self.name, error))
    }
}

fn fill(dtype: DType, memory: &mut [u8]) {
    let value = |i: usize| ((i * 7919) % 1009) as f64 / 1009.0;
    match dtype {
        DType::F32 => {
            let floats = bytemuck::cast_slice_mut::<u8, f32>(memory).iter_mut();
            floats.enumerate().for_each(|(i, x)| *x = value(i) as f32);
        }
        DType::F64 => {
            let floats = bytemuck::cast_slice_mut::<u8, f64>(memory).iter_mut();
            floats.enumerate().for_each(|(i, x)| *x = value(i));
        }
        DType::I64 => {
            let ints = bytemuck::cast_slice_mut::<u8, i64>(memory).iter_mut();
            ints.enumerate().for_each(|(i, x)| *x = (i % 2) as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Cpu;
    use scrimp_graph::Window;

    #[test]
    fn an_operator_runs_again_and_wrong_shapes_are_refused() {
        let cpu = Cpu::new(1).expect("threads start");
        let op = Op::Conv {
            window: Window::square(3).pad(1),
            groups: 1,
        };
        let (x, w) = (
            (&[1, 8, 6, 6][..], DType::F32),
            (&[8, 8, 3, 3][..], DType::F32),
        );
        let processor = Processor::Cpu(&cpu);
        let mut alone = Alone::new(processor, &op, &[x, w]).expect("valid");
        alone.run().expect("it runs");
        alone.run().expect("and again");
        assert!(Alone::new(processor, &op, &[x, x]).is_err());
    }
}
