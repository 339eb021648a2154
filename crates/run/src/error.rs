//! What can go wrong while preparing or running a graph.

use scrimp_graph::DType;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error of the runtime. Every message names what is wrong and what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The operating system didn't give the memory.
    #[error(
        "could not reserve {bytes} bytes of memory; lower the budget or free memory on this machine"
    )]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
    },
    /// A folder has no room for the file that a plan needs.
    #[error(
        "the plan needs a file of {needed} bytes in '{folder}', where only {available} are free; name a folder on a larger disk, or free {} bytes there",
        needed - available
    )]
    SwapRoom {
        /// The folder.
        folder: String,
        /// Bytes of the file.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// A folder can't hold a file that is used as memory.
    #[error("'{folder}' can't hold a file to swap to: {reason}; name another folder")]
    SwapFolder {
        /// The folder.
        folder: String,
        /// Why.
        reason: String,
    },
    /// A file that is used as memory failed during a step.
    #[error(
        "{doing} the swap file in '{folder}' failed at byte {offset}: {reason}; the run ends here, so check that disk or name a folder on another one"
    )]
    SwapFile {
        /// The folder.
        folder: String,
        /// Reading or writing.
        doing: &'static str,
        /// Where in the file.
        offset: u64,
        /// What the operating system said.
        reason: String,
    },
    /// A thread of a step panicked, which is a defect.
    #[error("internal error, please report: {who} stopped in the middle of a step: {reason}")]
    Panicked {
        /// Who worked.
        who: String,
        /// The panic's message.
        reason: String,
    },
    /// The pool of worker threads could not be started.
    #[error("could not start {threads} worker threads: {reason}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the thread pool said.
        reason: String,
    },
    /// No kernel for an operator with these element types or ranks.
    #[error("no CPU kernel for {op}: {reason}")]
    Unsupported {
        /// The operator's name.
        op: String,
        /// What is not supported.
        reason: String,
    },
    /// A label or index lies outside the axis it selects from.
    #[error("{op} reads index {index}, which is outside 0..{length}; check the labels or tokens")]
    IndexOutOfRange {
        /// The operator's name.
        op: &'static str,
        /// The offending index.
        index: i64,
        /// Length of the axis.
        length: usize,
    },
    /// The memory handed to a kernel doesn't have the size that the operator needs.
    #[error("{what} has {found} bytes, but {expected} are needed")]
    WrongSize {
        /// Which piece of memory.
        what: String,
        /// Bytes handed over.
        found: u64,
        /// Bytes needed.
        expected: u64,
    },
    /// An operator has more or fewer outputs than its kernel writes.
    #[error("the operator has {found} outputs, but its kernel writes {expected}")]
    WrongOutputs {
        /// Outputs of the operator.
        found: usize,
        /// Outputs of the kernel.
        expected: usize,
    },
    /// Two pieces of memory overlap that a kernel may not share.
    #[error("{what} overlaps another buffer of the same operator")]
    Overlap {
        /// Which piece of memory.
        what: String,
    },
    /// Data of the wrong length or type for a tensor.
    #[error(
        "tensor {tensor:?} has {expected} elements of type {dtype:?}, but {found} of type {given} were given"
    )]
    WrongData {
        /// The tensor's name.
        tensor: String,
        /// Elements of the tensor.
        expected: usize,
        /// Type of the tensor.
        dtype: DType,
        /// Elements given.
        found: usize,
        /// Type given.
        given: &'static str,
    },
    /// The plan's problem isn't that of the graph, or isn't for one CPU.
    #[error("the plan doesn't belong to this graph and device: {reason}; plan again")]
    WrongPlan {
        /// What doesn't fit.
        reason: String,
    },
    /// Data in a file can't be read during a step.
    #[error("{reason}")]
    Data {
        /// The file, and why.
        reason: String,
    },
    /// An operation can't be applied to a tensor.
    #[error("tensor {tensor:?} {problem}")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The work was asked to stop before it was done.
    #[error("stopped before all operators were measured; nothing was written")]
    Stopped,
    /// oneDNN isn't available, or failed.
    #[error(transparent)]
    OneDnn(#[from] scrimp_onednn::OneDnnError),
    /// A GPU isn't available, or failed.
    #[error(transparent)]
    Gpu(#[from] scrimp_gpu::GpuError),
    /// A node failed.
    #[error("node {node:?}: {source}")]
    Node {
        /// The node's name.
        node: String,
        /// Why.
        source: Box<RunError>,
    },
}

impl RunError {
    /// Adds the name of the node that an error comes from.
    pub(crate) fn in_node(node: &str, source: RunError) -> RunError {
        RunError::Node {
            node: node.into(),
            source: Box::new(source),
        }
    }
}

/// Calls `f`. A panic becomes an error, so that those who wait for this thread can end, too.
pub(crate) fn unless_panicked(
    who: &str,
    f: impl FnOnce() -> Result<(), RunError>,
) -> Result<(), RunError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(RunError::Panicked {
            who: who.into(),
            reason: text.unwrap_or("a panic without a message").into(),
        })
    })
}

/// For functions that read tensors into files.
impl From<RunError> for std::io::Error {
    fn from(error: RunError) -> std::io::Error {
        std::io::Error::other(error)
    }
}
