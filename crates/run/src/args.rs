//! The arguments of one operator. They are prepared as [`Bindings`], spans of a memory that are proved not to
//! overlap, and handed to a kernel as [`Args`], slices that the kernel takes once, by value.
//!
//! Only a launch turns spans into slices. Everything before it is the same for every memory.

#![allow(
    unsafe_code,
    reason = "the one place where proved spans of a memory become slices"
)]

use bytemuck::Pod;
use scrimp_graph::DType;
use std::ptr::NonNull;

use crate::arena::Arena;
use crate::error::RunError;
use crate::span::{ALIGN, Span};

/// An argument as its kernel sees it.
#[derive(Clone, Debug)]
pub struct Arg {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

impl Arg {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes()
    }
}

/// The types and shapes of a kernel's arguments, whatever memory they are in.
#[derive(Clone, Debug)]
pub struct Signature {
    pub inputs: Vec<Arg>,
    pub outputs: Vec<Arg>,
}

/// The arguments of one operator as spans of one memory. Outputs and workspace are disjoint from each other
/// and from every input, except that an input may be exactly an output (in place).
#[derive(Debug)]
pub struct Bindings {
    inputs: Vec<Span>,
    /// The output with which each input shares its memory, if any.
    in_place: Vec<Option<usize>>,
    outputs: Vec<Span>,
    workspace: Span,
    /// The smallest size of a memory that holds all spans.
    end: u64,
}

impl Bindings {
    /// Binds arguments to spans, each of which may be longer than its argument (storages are rounded up).
    /// Proves that the spans are disjoint, as the type requires, and aligned to [`ALIGN`].
    ///
    /// # Errors
    /// Spans overlap or aren't aligned, or one is too short.
    pub fn new(
        signature: &Signature,
        inputs: impl Iterator<Item = Span>,
        outputs: impl Iterator<Item = Span>,
        workspace: Span,
    ) -> Result<Bindings, RunError> {
        let inputs = bound("an input", &signature.inputs, inputs)?;
        let outputs = bound("an output", &signature.outputs, outputs)?;
        let in_place = sharing(&inputs, &outputs, workspace)?;
        let mut end = 0;
        for &span in inputs.iter().chain(&outputs).chain([&workspace]) {
            end = end.max(aligned_end(span)?);
        }
        Ok(Bindings {
            inputs,
            in_place,
            outputs,
            workspace,
            end,
        })
    }

    /// Fails unless a memory of this size holds all spans.
    pub fn within(&self, bytes: u64) -> Result<(), RunError> {
        if self.end <= bytes {
            return Ok(());
        }
        Err(RunError::WrongSize {
            what: "the memory of an operator's arguments".into(),
            found: bytes,
            expected: self.end,
        })
    }

    /// Inputs and outputs, and the workspace.
    pub fn spans(&self) -> ([&[Span]; 2], Span) {
        ([&self.inputs, &self.outputs], self.workspace)
    }

    /// The arguments for one launch of a kernel on a memory in which other spans are in use.
    ///
    /// # Safety
    /// As long as the arguments live, nothing else writes a byte of these spans or reads a byte of the
    /// outputs' or the workspace's. A checked layout proves this for its steps: spans that are used at the
    /// same time by runs or copies are disjoint wherever one of them is written.
    pub unsafe fn launch_beside<'a>(
        &'a self,
        signature: &'a Signature,
        arena: &'a Arena,
    ) -> Result<Args<'a>, RunError> {
        self.within(arena.bytes())?;
        let memory = Base(arena.base());
        let (inputs, outputs) = (
            Inputs {
                args: &signature.inputs,
                bindings: self,
                memory,
            },
            Outputs {
                args: &signature.outputs,
                bindings: self,
                memory,
            },
        );
        // SAFETY: the workspace is in bounds and disjoint from all inputs and outputs, as `new` proved.
        // Nothing outside of these arguments uses it, as the caller promises, and this is the only slice of
        // it.
        let workspace = unsafe { memory.write(self.workspace) };
        Ok(Args {
            inputs,
            outputs,
            workspace,
        })
    }
}

/// The prefix of each span that is as long as its argument.
fn bound(
    what: &str,
    args: &[Arg],
    spans: impl Iterator<Item = Span>,
) -> Result<Vec<Span>, RunError> {
    let each = args.iter().zip(spans);
    each.map(|(arg, span)| {
        span.prefix(arg.bytes()).ok_or_else(|| RunError::WrongSize {
            what: what.into(),
            found: span.bytes,
            expected: arg.bytes(),
        })
    })
    .collect()
}

/// The output with which each input shares its memory; an error if anything else overlaps.
fn sharing(
    inputs: &[Span],
    outputs: &[Span],
    workspace: Span,
) -> Result<Vec<Option<usize>>, RunError> {
    let overlap = |what: String| Err(RunError::Overlap { what });
    let mut in_place = vec![None; inputs.len()];
    for (o, &output) in outputs.iter().enumerate() {
        for (i, &input) in inputs.iter().enumerate() {
            if input == output && input.bytes > 0 {
                in_place[i] = Some(o);
            } else if input.overlaps(output) {
                return overlap(format!("output {o}"));
            }
        }
        if outputs[..o].iter().any(|other| other.overlaps(output)) {
            return overlap(format!("output {o}"));
        }
    }
    let mut tensors = inputs.iter().chain(outputs);
    if tensors.any(|tensor| workspace.overlaps(*tensor)) {
        return overlap("the workspace".into());
    }
    Ok(in_place)
}

/// The end of a span, which must be aligned.
fn aligned_end(span: Span) -> Result<u64, RunError> {
    let end = span
        .end()
        .filter(|_| span.offset.is_multiple_of(ALIGN as u64));
    end.ok_or_else(|| RunError::WrongPlan {
        reason: format!(
            "it has {} bytes at offset {}, which isn't a multiple of {ALIGN}",
            span.bytes, span.offset
        ),
    })
}

#[derive(Clone, Copy)]
struct Base(NonNull<u8>);

impl Base {
    /// # Safety
    /// The span is in the memory, which is alive, and nothing writes it while the slice lives.
    unsafe fn read<'a, T: Pod>(self, span: Span) -> &'a [T] {
        const { assert!(align_of::<T>() <= ALIGN) };
        // SAFETY: the memory is initialized from the start, and its base and spans are aligned to `ALIGN`.
        // The caller promises the rest.
        unsafe {
            let start = self.0.add(span.offset as usize).cast::<T>();
            std::slice::from_raw_parts(start.as_ptr(), span.bytes as usize / size_of::<T>())
        }
    }

    /// # Safety
    /// The span is in the memory, which is alive, and nothing else uses it while the slice lives.
    unsafe fn write<'a, T: Pod>(self, span: Span) -> &'a mut [T] {
        const { assert!(align_of::<T>() <= ALIGN) };
        // SAFETY: as in `read`.
        unsafe {
            let start = self.0.add(span.offset as usize).cast::<T>();
            std::slice::from_raw_parts_mut(start.as_ptr(), span.bytes as usize / size_of::<T>())
        }
    }
}

/// What a kernel receives. The kernel takes its outputs and its workspace out of it, once.
pub struct Args<'a> {
    pub inputs: Inputs<'a>,
    pub outputs: Outputs<'a>,
    /// Scratch memory with arbitrary contents.
    pub workspace: &'a mut [u8],
}

/// An input of an elementwise kernel.
pub enum Source<'a, T> {
    /// The input has memory of its own.
    From(&'a [T]),
    /// The input is in the output's memory, which holds the input's elements until they are overwritten.
    InPlace,
}

impl<T> Clone for Source<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Source<'_, T> {}

impl<'a, T> Source<'a, T> {
    /// These elements; `None` if they are in the output's memory.
    pub fn part(self, range: std::ops::Range<usize>) -> Option<&'a [T]> {
        match self {
            Source::From(x) => Some(&x[range]),
            Source::InPlace => None,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    args: &'a [Arg],
    bindings: &'a Bindings,
    memory: Base,
}

impl<'a> Inputs<'a> {
    pub fn count(self) -> usize {
        self.bindings.inputs.len()
    }

    pub fn shape(self, i: usize) -> &'a [usize] {
        &self.args[i].shape
    }

    /// An input that no output overwrites. If an output does overwrite it, this is an error, so a kernel that
    /// can't work in place refuses to.
    pub fn get<T: Pod>(self, i: usize) -> Result<&'a [T], RunError> {
        if self.bindings.in_place[i].is_some() {
            return Err(RunError::Overlap {
                what: format!("input {i}, which this operator can't overwrite,"),
            });
        }
        // SAFETY: the span is in bounds, as the launch checked. `Bindings::new` found no overlap with an
        // output or the workspace, and the launch's caller promised that nothing else writes the span.
        Ok(unsafe { self.memory.read(self.bindings.inputs[i]) })
    }

    /// An input that not every node of the operator has; otherwise like [`Inputs::get`].
    pub fn optional<T: Pod>(self, i: usize) -> Result<Option<&'a [T]>, RunError> {
        (i < self.count()).then(|| self.get(i)).transpose()
    }

    /// An input that output 0 may overwrite; an error if another output overwrites it.
    pub fn source<T: Pod>(self, i: usize) -> Result<Source<'a, T>, RunError> {
        match self.bindings.in_place[i] {
            Some(0) => Ok(Source::InPlace),
            _ => Ok(Source::From(self.get(i)?)),
        }
    }

    /// Makes output `o`, whose elements are `output`, start as a copy of input `i`. Nothing is copied if the
    /// two share their memory.
    pub fn copy_to<T: Pod>(self, i: usize, o: usize, output: &mut [T]) -> Result<(), RunError> {
        if self.bindings.in_place[i] != Some(o) {
            output.copy_from_slice(self.get(i)?);
        }
        Ok(())
    }
}

/// The outputs of a launch, which a kernel takes all at once.
pub struct Outputs<'a> {
    args: &'a [Arg],
    bindings: &'a Bindings,
    memory: Base,
}

impl<'a> Outputs<'a> {
    pub fn shape(&self, o: usize) -> &'a [usize] {
        &self.args[o].shape
    }

    pub fn dtype(&self, o: usize) -> DType {
        self.args[o].dtype
    }

    /// The elements of each output. An input that an output overwrites can only be read through that output.
    pub fn slices<T: Pod>(self) -> impl ExactSizeIterator<Item = &'a mut [T]> {
        let each = self.bindings.outputs.iter();
        // SAFETY: the spans are in bounds, as the launch checked, and disjoint from one another, from the
        // inputs that can be read and from the workspace, as `Bindings::new` proved. This call consumes the
        // only handle on them, and the launch's caller promised that nothing else uses them.
        each.map(move |output| unsafe { self.memory.write(*output) })
    }

    /// The elements of each output of an operator that has `N` outputs.
    ///
    /// # Errors
    /// There are more or fewer outputs.
    pub fn take<T: Pod, const N: usize>(self) -> Result<[&'a mut [T]; N], RunError> {
        let mut slices = self.slices();
        if slices.len() != N {
            return Err(RunError::WrongOutputs {
                found: slices.len(),
                expected: N,
            });
        }
        Ok(std::array::from_fn(|_| slices.next().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signature with so many inputs and outputs of four floats each.
    fn floats(inputs: usize, outputs: usize) -> Signature {
        let four = Arg {
            dtype: DType::F32,
            shape: vec![4],
        };
        Signature {
            inputs: vec![four.clone(); inputs],
            outputs: vec![four; outputs],
        }
    }

    fn bind(inputs: &[u64], outputs: &[u64], scratch: u64) -> Result<Bindings, RunError> {
        let span = |bytes| move |&offset: &u64| Span { offset, bytes };
        let signature = floats(inputs.len(), outputs.len());
        let (inputs, outputs) = (inputs.iter().map(span(64)), outputs.iter().map(span(64)));
        Bindings::new(&signature, inputs, outputs, span(32)(&scratch))
    }

    impl Bindings {
        fn launch<'a>(
            &'a self,
            signature: &'a Signature,
            arena: &'a mut Arena,
        ) -> Result<Args<'a>, RunError> {
            // SAFETY: the arena is borrowed exclusively as long as the arguments live.
            unsafe { self.launch_beside(signature, arena) }
        }
    }

    #[test]
    fn what_a_kernel_writes_is_nothing_else_of_its_arguments() {
        bind(&[0, 0, 64], &[128, 192], 256).expect("disjoint");
        bind(&[0, 64], &[0, 128], 192).expect("in place");
        for (inputs, outputs, scratch) in [
            (&[0][..], &[64, 64][..], 128),
            (&[0], &[64], 64),
            (&[0], &[64], 0),
        ] {
            let error = bind(inputs, outputs, scratch).expect_err("it overlaps");
            assert!(matches!(error, RunError::Overlap { .. }), "{error}");
        }
        let shifted = bind(&[0], &[8], 64).expect_err("it overlaps, shifted");
        assert!(matches!(shifted, RunError::Overlap { .. }), "{shifted}");
        let unaligned = bind(&[0], &[72], 128).expect_err("an odd offset");
        assert!(
            matches!(unaligned, RunError::WrongPlan { .. }),
            "{unaligned}"
        );
    }

    #[test]
    fn a_kernel_takes_its_outputs_and_its_workspace_once() {
        let (bindings, signature) = (bind(&[0, 64], &[64, 128], 192), floats(2, 2));
        let bindings = bindings.expect("in place");
        let mut arena = Arena::new(224).expect("memory");
        let memory = bytemuck::cast_slice_mut::<u8, f32>(arena.bytes_at_mut(0, 16));
        memory.copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
        let args = bindings.launch(&signature, &mut arena).expect("it fits");
        assert!(args.inputs.get::<f32>(1).is_err(), "overwritten");
        assert!(matches!(args.inputs.source::<f32>(1), Ok(Source::InPlace)));
        let [first, second] = args.outputs.take::<f32, _>().expect("two");
        first.fill(5.0);
        args.inputs.copy_to(0, 1, second).expect("elsewhere");
        args.inputs.copy_to(1, 0, first).expect("in place");
        args.workspace.fill(7);
        assert_eq!(
            (first, second),
            (&mut [5.0; 4][..], &mut [1.0, 2.0, 3.0, 4.0][..])
        );
    }

    #[test]
    fn a_launch_needs_the_memory_and_the_outputs_it_was_prepared_for() {
        let (bindings, signature) = (bind(&[0], &[64], 128), floats(1, 1));
        let bindings = bindings.expect("disjoint");
        let mut small = Arena::new(159).expect("memory");
        let error = bindings.launch(&signature, &mut small).err();
        assert!(
            matches!(error, Some(RunError::WrongSize { .. })),
            "{error:?}"
        );
        let mut arena = Arena::new(160).expect("memory");
        let outputs = bindings
            .launch(&signature, &mut arena)
            .expect("it fits")
            .outputs;
        assert!(outputs.take::<f32, 2>().is_err(), "there is one");
    }
}
