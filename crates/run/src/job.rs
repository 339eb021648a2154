//! What a node runs: one kernel, and before and after it the changes of format that it needs. These changes
//! are part of the operator, its time and its workspace.

#![allow(
    unsafe_code,
    reason = "launches beside copies, which a checked layout allows"
)]

use scrimp_gpu::Event;
use scrimp_graph::{DType, Op};
use std::sync::Arc;

use crate::arena::Arena;
use crate::args::{Arg, Bindings, Signature};
use crate::cpu::{Cpu, Kernel};
use crate::error::RunError;
use crate::format::{Change, Format, Operand, View, view};
use crate::gpu::{DeviceMemory, Gpu, Launched};
use crate::kernels::norm::Layout;
use crate::span::{ALIGN, Span};

/// An argument as the kernel sees it and, if the tensor has another format, the change from the one to the
/// other.
type Seen = (Arg, Option<Change>);

#[derive(Clone, Copy, Debug)]
enum Place {
    Input(usize),
    Output(usize),
    /// The workspace from this byte on.
    Workspace(u64),
}

#[derive(Debug)]
struct Step {
    op: Op,
    kernel: Kernel,
    signature: Signature,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// Bytes of the step's own workspace, which is the start of the node's.
    scratch: u64,
}

impl Step {
    /// The step that changes an argument from one format into another.
    fn change(change: &Change, dtype: DType, [from, to]: [Place; 2]) -> Step {
        let arg = |shape| vec![Arg { dtype, shape }];
        Step {
            op: Op::Transpose {
                perm: change.order.clone(),
            },
            kernel: Kernel::Native(Layout::Rows),
            signature: Signature {
                inputs: arg(change.rows.clone()),
                outputs: arg(change.stored()),
            },
            inputs: vec![from],
            outputs: vec![to],
            scratch: 0,
        }
    }
}

/// How a node is run, whatever memory its tensors are in.
#[derive(Debug, Default)]
pub(crate) struct Recipe {
    steps: Vec<Step>,
    workspace: u64,
}

impl Recipe {
    /// The recipe for an operator on arguments that shape inference accepted.
    pub fn new(cpu: &Cpu, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let kernel = cpu.kernel(op, inputs, outputs);
        if !matches!(kernel, Kernel::Native(_)) || any_order(op, inputs, outputs) {
            let scratch = cpu.scratch(&kernel, op, inputs, outputs);
            let plain = |operands: &[Operand<'_>]| operands.iter().map(as_it_is).collect();
            return Recipe::of(op.clone(), kernel, scratch, plain(inputs), plain(outputs));
        }
        let blocks = |operand: &Operand<'_>| matches!(operand.format, Format::Blocks(_));
        let blocks = inputs.iter().chain(outputs).any(blocks);
        match view(op, inputs, outputs).filter(|_| !blocks) {
            Some(view) => Recipe::last(cpu, view, inputs, outputs),
            None => Recipe::rows(cpu, op, inputs, outputs),
        }
    }

    /// The recipe for an operator on a GPU, where every tensor is in rows.
    pub fn on_gpu(
        device: &Gpu,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
    ) -> Recipe {
        let (kernel, workspace) = match device.program(op, inputs, outputs) {
            Ok(program) => {
                let workspace = program.workspace;
                (Kernel::Gpu(Arc::new(program)), workspace)
            }
            Err(error) => (Kernel::Failed(error), 0),
        };
        let plain = |operands: &[Operand<'_>]| operands.iter().map(as_it_is).collect();
        Recipe::of(
            op.clone(),
            kernel,
            workspace as usize,
            plain(inputs),
            plain(outputs),
        )
    }

    /// Runs the kernel on rows, and changes arguments that have another format.
    fn rows(cpu: &Cpu, op: &Op, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let (plain_inputs, plain_outputs) = (in_rows(inputs), in_rows(outputs));
        let kernel = cpu.kernel(op, &plain_inputs, &plain_outputs);
        let scratch = cpu.scratch(&kernel, op, &plain_inputs, &plain_outputs);
        let seen = |operands: &[Operand<'_>]| {
            let changed = |operand: &Operand<'_>| {
                let (arg, _) = as_it_is(operand);
                (arg, operand.format.change(operand.shape))
            };
            operands.iter().map(changed).collect()
        };
        Recipe::of(op.clone(), kernel, scratch, seen(inputs), seen(outputs))
    }

    /// Runs the kernel with channels last, and changes arguments in rows where the two formats differ.
    fn last(cpu: &Cpu, view: View, inputs: &[Operand<'_>], outputs: &[Operand<'_>]) -> Recipe {
        let kernel = Kernel::Native(match view.columns {
            true => Layout::ChannelsLast,
            false => Layout::Rows,
        });
        let physical = |operands: &[Operand<'_>], shapes: &[Vec<usize>]| -> Vec<Seen> {
            let each = operands.iter().zip(shapes);
            each.map(|(operand, shape)| {
                let dtype = operand.dtype;
                let shape = shape.clone();
                let change = Format::ChannelsLast
                    .change(operand.shape)
                    .filter(|_| operand.format == Format::Rows && Format::matters(operand.shape))
                    .map(|change| change.back());
                (Arg { dtype, shape }, change)
            })
            .collect()
        };
        let (reads, writes) = (
            physical(inputs, &view.inputs),
            physical(outputs, &view.outputs),
        );
        let scratch = cpu.scratch(&kernel, &view.op, &as_rows(&reads), &as_rows(&writes));
        Recipe::of(view.op, kernel, scratch, reads, writes)
    }

    /// A kernel, preceded by the changes of what it reads and followed by the changes of what it writes.
    fn of(op: Op, kernel: Kernel, scratch: usize, inputs: Vec<Seen>, outputs: Vec<Seen>) -> Recipe {
        let scratch = aligned(scratch as u64);
        let mut workspace = scratch;
        let mut place = |arg: &Arg| {
            let start = workspace;
            workspace += aligned(arg.bytes());
            Place::Workspace(start)
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut reads: (Vec<Arg>, Vec<Place>) = Default::default();
        for (i, (arg, change)) in inputs.into_iter().enumerate() {
            let mut at = Place::Input(i);
            if let Some(change) = change {
                let seen = place(&arg);
                before.push(Step::change(&change.back(), arg.dtype, [at, seen]));
                at = seen;
            }
            reads.0.push(arg);
            reads.1.push(at);
        }
        let mut writes: (Vec<Arg>, Vec<Place>) = Default::default();
        for (o, (arg, change)) in outputs.into_iter().enumerate() {
            let mut at = Place::Output(o);
            if let Some(change) = change {
                let seen = place(&arg);
                after.push(Step::change(&change, arg.dtype, [seen, at]));
                at = seen;
            }
            writes.0.push(arg);
            writes.1.push(at);
        }
        let mut steps = before;
        steps.push(Step {
            op,
            kernel,
            signature: Signature {
                inputs: reads.0,
                outputs: writes.0,
            },
            inputs: reads.1,
            outputs: writes.1,
            scratch,
        });
        steps.extend(after);
        Recipe { steps, workspace }
    }

    /// Bytes of workspace: the kernel's own, and the arguments whose format is changed.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// The kernels that run the node, changes of format included, for tests.
    #[cfg(test)]
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.steps.iter().map(|step| &step.kernel)
    }

    /// The job on tensors in this memory, each span of which is at least as long as its tensor, with a
    /// workspace of [`Recipe::workspace`] bytes.
    ///
    /// # Errors
    /// A piece of memory is too short, or overlaps another where it must not; a library can't compile its kernel.
    pub fn job(
        self: &Arc<Recipe>,
        inputs: &[Span],
        outputs: &[Span],
        workspace: Span,
    ) -> Result<Job, RunError> {
        if workspace.bytes < self.workspace {
            return Err(RunError::WrongSize {
                what: "the workspace".into(),
                found: workspace.bytes,
                expected: self.workspace,
            });
        }
        let span = |place: &Place| match *place {
            Place::Input(i) => inputs[i],
            Place::Output(o) => outputs[o],
            Place::Workspace(start) => Span {
                offset: workspace.offset + start,
                bytes: workspace.bytes - start,
            },
        };
        let bind = |step: &Step| {
            if let Kernel::OneDnn(program) = &step.kernel {
                program.compile()?;
            }
            let scratch = Span {
                bytes: step.scratch,
                ..workspace
            };
            let (inputs, outputs) = (step.inputs.iter().map(span), step.outputs.iter().map(span));
            Bindings::new(&step.signature, inputs, outputs, scratch)
        };
        Ok(Job {
            bindings: self.steps.iter().map(bind).collect::<Result<_, _>>()?,
            recipe: self.clone(),
        })
    }
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN as u64)
}

/// Whether our kernel takes the arguments as they are: either all are in rows, or the operator is an update,
/// which goes element by element through tensors of one shape and one format.
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

/// An argument that the kernel takes in its own format.
fn as_it_is(operand: &Operand<'_>) -> Seen {
    let arg = Arg {
        dtype: operand.dtype,
        shape: operand.shape.to_vec(),
    };
    (arg, None)
}

/// Arguments in the format that a kernel sees, rows.
fn as_rows(seen: &[Seen]) -> Vec<Operand<'_>> {
    fn operand((arg, _): &Seen) -> Operand<'_> {
        Operand {
            shape: &arg.shape,
            dtype: arg.dtype,
            format: Format::Rows,
        }
    }
    seen.iter().map(operand).collect()
}

/// A node that is ready to run on certain memory.
#[derive(Debug, Default)]
pub(crate) struct Job {
    recipe: Arc<Recipe>,
    bindings: Vec<Bindings>,
}

impl Job {
    /// Runs the node. Call this inside [`Cpu::enter`].
    ///
    /// # Safety
    /// Meanwhile nothing else writes a byte of the node's arguments, or reads a byte of its outputs or its
    /// workspace.
    pub unsafe fn run_on_cpu(&self, cpu: &Cpu, arena: &Arena) -> Result<(), RunError> {
        for (step, bindings) in self.recipe.steps.iter().zip(&self.bindings) {
            // SAFETY: the caller's promise.
            let args = unsafe { bindings.launch_beside(&step.signature, arena)? };
            cpu.run(&step.kernel, &step.op, args)?;
        }
        Ok(())
    }

    /// Runs the node, and waits until it is done.
    ///
    /// # Safety
    /// As for [`Job::run_on_cpu`].
    pub unsafe fn run_on_gpu(&self, device: &Gpu, memory: &DeviceMemory) -> Result<(), RunError> {
        // SAFETY: the caller's promise, and nothing returns before the node is done.
        let launched = unsafe { self.begin_on_gpu(device, memory, &[])? };
        let flushed = memory.flush().map_err(RunError::from);
        launched
            .map_or(Ok(()), |launched| launched.finish())
            .and(flushed)
    }

    /// Gives the node to the device, to run after all before it and after these events; nothing if it launches
    /// nothing.
    ///
    /// # Safety
    /// As for [`Job::run_on_cpu`], until the node is done, but for what runs before it or waits for it.
    pub unsafe fn begin_on_gpu(
        &self,
        device: &Gpu,
        memory: &DeviceMemory,
        after: &[Event],
    ) -> Result<Option<Launched>, RunError> {
        // A node in rows is one step; a node that needs no work is none.
        let Some((step, bindings)) = self.recipe.steps.iter().zip(&self.bindings).next() else {
            return Ok(None);
        };
        match &step.kernel {
            Kernel::Gpu(program) => {
                bindings.within(memory.bytes())?;
                let (spans, workspace) = bindings.spans();
                // SAFETY: the spans are in the memory, and as long as the program was made for, as the
                // bindings proved. The caller promises the rest.
                unsafe { device.begin(program, memory, spans, workspace, after) }
            }
            Kernel::Failed(error) => Err(error.clone()),
            Kernel::Native(_) | Kernel::OneDnn(_) => Err(RunError::WrongPlan {
                reason: "a kernel is for another device".into(),
            }),
        }
    }
}
