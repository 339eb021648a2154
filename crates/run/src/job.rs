//! What a node runs: one kernel, and before and after it the changes of format that it needs, which
//! are part of the operator, its time and its workspace.

use scrimp_graph::{DType, Op};

use crate::arena::Arena;
use crate::args::{Arg, Bindings};
use crate::cpu::{Cpu, Kernel};
use crate::error::RunError;
use crate::format::{Change, Format, Operand, View, view};
use crate::kernels::norm::Layout;
use crate::span::{ALIGN, Span};

/// An argument as the kernel sees it.
#[derive(Debug)]
struct Use {
    dtype: DType,
    /// From what the kernel sees to the tensor's memory, if that is another format.
    change: Option<Change>,
    shape: Vec<usize>,
}

impl Use {
    fn operand(&self) -> Operand<'_> {
        Operand {
            shape: &self.shape,
            dtype: self.dtype,
            format: Format::Rows,
        }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes() as usize
    }

    /// Workspace for the other format.
    fn change_bytes(&self) -> usize {
        match self.change {
            Some(_) => self.bytes().next_multiple_of(ALIGN),
            None => 0,
        }
    }
}

/// How a node is run, whatever memory its tensors are in.
#[derive(Debug)]
pub(crate) struct Recipe {
    op: Op,
    kernel: Kernel,
    inputs: Vec<Use>,
    outputs: Vec<Use>,
    /// The kernel's own workspace.
    scratch: usize,
}

impl Recipe {
    /// For an operator on arguments that shape inference accepted.
    pub fn new(cpu: &Cpu, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let kernel = cpu.kernel(op, inputs, outputs);
        if !matches!(kernel, Kernel::Native(_)) || any_order(op, inputs, outputs) {
            let plain = |operands: &[Operand<'_>]| operands.iter().map(as_it_is).collect();
            return Recipe {
                scratch: cpu.scratch(&kernel, op, inputs, outputs),
                op: op.clone(),
                kernel,
                inputs: plain(inputs),
                outputs: plain(outputs),
            };
        }
        let blocks = |operand: &Operand<'_>| matches!(operand.format, Format::Blocks(_));
        let blocks = inputs.iter().chain(outputs).any(blocks);
        match view(op, inputs, outputs).filter(|_| !blocks) {
            Some(view) => Recipe::last(cpu, view, inputs, outputs),
            None => Recipe::rows(cpu, op, inputs, outputs),
        }
    }

    /// In rows: what has another format is changed.
    fn rows(cpu: &Cpu, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let (plain_inputs, plain_outputs) = (in_rows(inputs), in_rows(outputs));
        let kernel = cpu.kernel(op, &plain_inputs, &plain_outputs);
        let uses = |operands: &[Operand<'_>]| {
            let changed = |operand: &Operand<'_>| Use {
                change: operand.format.change(operand.shape),
                ..as_it_is(operand)
            };
            operands.iter().map(changed).collect()
        };
        Recipe {
            scratch: cpu.scratch(&kernel, op, &plain_inputs, &plain_outputs),
            op: op.clone(),
            kernel,
            inputs: uses(inputs),
            outputs: uses(outputs),
        }
    }

    /// With channels last: what is in rows is changed, where that is something else.
    fn last(cpu: &Cpu, view: View, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let kernel = Kernel::Native(match view.columns {
            true => Layout::ChannelsLast,
            false => Layout::Rows,
        });
        let uses = |operands: &[Operand<'_>], shapes: Vec<Vec<usize>>| -> Vec<Use> {
            let each = operands.iter().zip(shapes);
            each.map(|(operand, shape)| Use {
                dtype: operand.dtype,
                change: Format::ChannelsLast
                    .change(operand.shape)
                    .filter(|_| operand.format == Format::Rows && Format::matters(operand.shape))
                    .map(|change| change.back()),
                shape,
            })
            .collect()
        };
        let (inputs, outputs) = (uses(inputs, view.inputs), uses(outputs, view.outputs));
        let scratch = {
            let inputs: Vec<_> = inputs.iter().map(Use::operand).collect();
            let outputs: Vec<_> = outputs.iter().map(Use::operand).collect();
            cpu.scratch(&kernel, &view.op, &inputs, &outputs)
        };
        Recipe {
            op: view.op,
            kernel,
            inputs,
            outputs,
            scratch,
        }
    }

    /// Bytes of workspace: the kernel's own, and the arguments in the other format.
    pub fn workspace(&self) -> u64 {
        let changes = self.inputs.iter().chain(&self.outputs);
        let changes: usize = changes.map(Use::change_bytes).sum();
        (self.scratch.next_multiple_of(ALIGN) + changes) as u64
    }

    /// What runs it, for tests.
    #[cfg(test)]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The job on tensors in this memory, each at least as long as its tensor, and a workspace of
    /// [`Recipe::workspace`] bytes.
    ///
    /// # Errors
    /// Memory that is too short, or overlaps where it mustn't.
    pub fn job(
        &self,
        inputs: &[Span],
        outputs: &[Span],
        workspace: Span,
        name: &str,
    ) -> Result<Job, RunError> {
        let mut rest = workspace;
        let mut take = |bytes: usize| {
            let (span, more) = rest
                .split(bytes.next_multiple_of(ALIGN) as u64)
                .ok_or_else(|| RunError::WrongSize {
                    what: format!("the workspace of {name}"),
                    found: workspace.bytes,
                    expected: bytes as u64,
                })?;
            rest = more;
            Ok::<Span, RunError>(span)
        };
        let scratch = take(self.scratch)?;
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut reads = Vec::new();
        for (one, &span) in self.inputs.iter().zip(inputs) {
            let Some(change) = &one.change else {
                reads.push(Arg::new(one.dtype, &one.shape, span, name)?);
                continue;
            };
            let seen = take(one.bytes())?;
            reads.push(Arg::new(one.dtype, &one.shape, seen, name)?);
            before.push(Step::change(&change.back(), one.dtype, [span, seen])?);
        }
        let mut writes = Vec::new();
        for (one, &span) in self.outputs.iter().zip(outputs) {
            let Some(change) = &one.change else {
                writes.push(Arg::new(one.dtype, &one.shape, span, name)?);
                continue;
            };
            let seen = take(one.bytes())?;
            writes.push(Arg::new(one.dtype, &one.shape, seen, name)?);
            after.push(Step::change(change, one.dtype, [seen, span])?);
        }
        let mut steps = before;
        steps.push(Step {
            op: self.op.clone(),
            kernel: self.kernel.clone(),
            bindings: Bindings::new(reads, writes, scratch)?,
        });
        steps.extend(after);
        Ok(Job { steps })
    }
}

/// Whether our kernel takes the arguments as they are: all in rows, or an update, which goes through
/// tensors of one shape element by element, in one format.
fn any_order(op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> bool {
    let mut all = inputs.iter().chain(outputs);
    match op {
        Op::Update(_) => {
            let first = inputs[0];
            let alike = |one: &Operand<'_>| one.format == first.format;
            all.filter(|one| one.shape == first.shape).all(alike)
        }
        _ => all.all(|one| one.format == Format::Rows),
    }
}

fn in_rows<'a>(operands: &[Operand<'a>]) -> Vec<Operand<'a>> {
    let rows = |one: &Operand<'a>| Operand {
        format: Format::Rows,
        ..*one
    };
    operands.iter().map(rows).collect()
}

fn as_it_is(operand: &Operand<'_>) -> Use {
    Use {
        dtype: operand.dtype,
        change: None,
        shape: operand.shape.to_vec(),
    }
}

/// A kernel on its arguments.
#[derive(Debug)]
struct Step {
    op: Op,
    kernel: Kernel,
    bindings: Bindings,
}

impl Step {
    /// From one format into another.
    fn change(change: &Change, dtype: DType, [from, to]: [Span; 2]) -> Result<Step, RunError> {
        let from = Arg::new(dtype, &change.rows, from, "a change of format")?;
        let to = Arg::new(dtype, &change.stored(), to, "a change of format")?;
        Ok(Step {
            op: Op::Transpose {
                perm: change.order.clone(),
            },
            kernel: Kernel::Native(Layout::Rows),
            bindings: Bindings::new(vec![from], vec![to], Span::EMPTY)?,
        })
    }
}

/// A node, ready to run.
#[derive(Debug, Default)]
pub(crate) struct Job {
    steps: Vec<Step>,
}

impl Job {
    /// Runs it; call it inside [`Cpu::enter`].
    pub fn run(&self, cpu: &Cpu, arena: &mut Arena) -> Result<(), RunError> {
        for step in &self.steps {
            cpu.run(&step.kernel, &step.op, &step.bindings, arena)?;
        }
        Ok(())
    }
}
