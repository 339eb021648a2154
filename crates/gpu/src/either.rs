//! A device in use, whatever its interface.

#![allow(unsafe_code, reason = "the host goes on while commands use its memory")]

use std::path::Path;

use crate::error::GpuError;
use crate::{cuda, opencl};

/// How a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interface {
    /// OpenCL, for GPUs of any vendor.
    OpenCl,
    /// CUDA, for those of NVIDIA.
    Cuda,
}

impl Interface {
    /// All of them.
    pub const ALL: [Interface; 2] = [Interface::OpenCl, Interface::Cuda];

    /// What precedes a device's number.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Interface::OpenCl => "opencl",
            Interface::Cuda => "cuda",
        }
    }
}

/// A device in use. Clones are the same.
#[derive(Clone, Debug)]
pub enum Context {
    /// Through OpenCL.
    OpenCl(opencl::Context),
    /// Through CUDA.
    Cuda(cuda::Context),
}

/// Memory of a device.
#[derive(Debug)]
pub enum Buffer {
    /// Through OpenCL.
    OpenCl(opencl::Buffer),
    /// Through CUDA.
    Cuda(cuda::Buffer),
}

/// A compiled program.
#[derive(Clone, Debug)]
pub enum Program {
    /// Through OpenCL.
    OpenCl(opencl::Program),
    /// Through CUDA.
    Cuda(cuda::Program),
}

/// A function of a program.
#[derive(Debug)]
pub enum Kernel {
    /// Through OpenCL.
    OpenCl(opencl::Kernel),
    /// Through CUDA.
    Cuda(cuda::Kernel),
}

/// Commands that run one after the other, beside those of other queues. A command begins after those before it in its
/// queue and after the events that it is given, which are of the same context.
#[derive(Debug)]
pub enum Queue {
    /// Through OpenCL.
    OpenCl(opencl::Queue),
    /// Through CUDA.
    Cuda(cuda::Queue),
}

/// A command that was given to a queue. Clones are the same command.
#[derive(Clone, Debug)]
pub enum Event {
    /// Through OpenCL.
    OpenCl(opencl::Event),
    /// Through CUDA.
    Cuda(cuda::Event),
}

/// Two numbers in main memory, into which a device copies.
#[derive(Debug)]
pub enum Answer {
    /// Anywhere.
    Plain([i64; 2]),
    /// In locked memory: the host needn't wait for the copy.
    Locked(cuda::Words),
}

/// What the vendor's libraries do that are installed, beside our kernels.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// Products of matrices.
    pub products: Option<cuda::Products>,
    /// Convolutions.
    pub convolutions: Option<cuda::Convolutions>,
}

impl Libraries {
    /// Their names and versions, as results depend on them; empty if there are none.
    #[must_use]
    pub fn described(&self) -> String {
        let products = self.products.iter();
        let products = products.map(|found| format!("/cublaslt {}", found.version()));
        let convolutions = self.convolutions.iter();
        let convolutions = convolutions.map(|found| format!("/cudnn {}", found.version()));
        products.chain(convolutions).collect()
    }
}

/// What a library was prepared to do.
#[derive(Debug)]
pub enum Call {
    /// A product of matrices.
    Product(cuda::PreparedProduct),
    /// A convolution.
    Convolution(cuda::PreparedConvolution),
}

impl Call {
    /// Bytes of workspace.
    #[must_use]
    pub fn workspace(&self) -> u64 {
        match self {
            Call::Product(product) => product.workspace,
            Call::Convolution(convolution) => convolution.workspace,
        }
    }
}

/// Keeps main memory locked until it is gone.
#[derive(Debug)]
pub struct Locked(#[allow(dead_code, reason = "it unlocks when it is dropped")] cuda::Locked);

impl Context {
    /// Takes the device of this number into use, counted as its interface lists them.
    ///
    /// # Errors
    /// The library isn't installed, there is no such device, it lacks something, or its driver fails.
    pub fn new(interface: Interface, number: usize) -> Result<Context, GpuError> {
        Ok(match interface {
            Interface::OpenCl => {
                let device = opencl::Driver::load(None)?.device(number)?;
                Context::OpenCl(opencl::Context::new(&device)?)
            }
            Interface::Cuda => {
                let device = cuda::Driver::load(None)?.device(number)?;
                Context::Cuda(cuda::Context::new(&device)?)
            }
        })
    }

    /// The interface.
    #[must_use]
    pub fn interface(&self) -> Interface {
        match self {
            Context::OpenCl(_) => Interface::OpenCl,
            Context::Cuda(_) => Interface::Cuda,
        }
    }

    /// The device's name, its driver and the number of its units: what times and results depend on.
    #[must_use]
    pub fn described(&self) -> String {
        match self {
            Context::OpenCl(context) => {
                let device = context.device();
                format!("{}/{}/{} units", device.name, device.driver, device.units)
            }
            Context::Cuda(context) => {
                let device = context.device();
                let (major, minor) = device.version();
                format!("{}/{major}.{minor}/{} units", device.name, device.units)
            }
        }
    }

    /// Whether it computes in 64 bits.
    #[must_use]
    pub fn computes_in_64_bits(&self) -> bool {
        match self {
            Context::OpenCl(context) => context.device().double,
            Context::Cuda(_) => true,
        }
    }

    /// Memory that a group of work items shares.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        match self {
            Context::OpenCl(context) => context.device().local_bytes,
            Context::Cuda(context) => context.device().local_bytes,
        }
    }

    /// Bytes of the largest buffer that its own memory can hold; `None` if it computes in main memory.
    #[must_use]
    pub fn own_memory(&self) -> Option<u64> {
        match self {
            Context::OpenCl(context) => {
                let device = context.device();
                let bytes = device.largest_buffer_bytes.min(device.memory_bytes);
                (device.kind != opencl::Kind::Cpu).then_some(bytes)
            }
            Context::Cuda(context) => Some(context.device().memory_bytes),
        }
    }

    /// Reserves memory with arbitrary contents.
    ///
    /// # Errors
    /// The device has no room.
    pub fn buffer(&self, bytes: u64) -> Result<Buffer, GpuError> {
        Ok(match self {
            Context::OpenCl(context) => Buffer::OpenCl(context.buffer(bytes)?),
            Context::Cuda(context) => Buffer::Cuda(context.buffer(bytes)?),
        })
    }

    /// A queue whose commands have timestamps.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn queue(&self) -> Result<Queue, GpuError> {
        Ok(match self {
            Context::OpenCl(context) => Queue::OpenCl(opencl::Queue::new(context)?),
            Context::Cuda(context) => Queue::Cuda(cuda::Queue::new(context)?),
        })
    }

    /// Compiles a source in the interface's language. With a folder, the result is kept there, and taken from there the
    /// next time; a folder that can't be read or written costs only time.
    ///
    /// # Errors
    /// The source doesn't compile, or the driver fails.
    pub fn program(&self, source: &str, folder: Option<&Path>) -> Result<Program, GpuError> {
        Ok(match self {
            Context::OpenCl(context) => {
                Program::OpenCl(opencl::Program::new(context, source, "", folder)?)
            }
            Context::Cuda(context) => Program::Cuda(cuda::Program::new(context, source, folder)?),
        })
    }

    /// The vendor's libraries, as far as they are installed.
    ///
    /// # Errors
    /// One is there and fails.
    pub fn libraries(&self) -> Result<Libraries, GpuError> {
        fn there<T>(found: Result<T, GpuError>) -> Result<Option<T>, GpuError> {
            match found {
                Ok(found) => Ok(Some(found)),
                Err(GpuError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        }
        match self {
            Context::OpenCl(_) => Ok(Libraries::default()),
            Context::Cuda(context) => Ok(Libraries {
                products: there(cuda::Products::new(context))?,
                convolutions: there(cuda::Convolutions::new(context))?,
            }),
        }
    }

    /// Two numbers for [`Queue::begin_answer`].
    ///
    /// # Errors
    /// The system doesn't lock more memory.
    pub fn answer(&self) -> Result<Answer, GpuError> {
        Ok(match self {
            Context::OpenCl(_) => Answer::Plain([0; 2]),
            Context::Cuda(context) => Answer::Locked(context.words()?),
        })
    }

    /// Locks main memory in its place where copies need that to run beside the host and beside kernels.
    ///
    /// # Errors
    /// The system doesn't lock that much.
    ///
    /// # Safety
    /// The memory lives until the guard is gone.
    pub unsafe fn lock(&self, start: *mut u8, bytes: u64) -> Result<Option<Locked>, GpuError> {
        match self {
            Context::Cuda(context) if bytes > 0 => {
                // SAFETY: the caller's promise.
                let locked = unsafe { context.lock(start, bytes)? };
                Ok(Some(Locked(locked)))
            }
            Context::Cuda(_) | Context::OpenCl(_) => Ok(None),
        }
    }
}

impl Buffer {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Buffer::OpenCl(buffer) => buffer.bytes(),
            Buffer::Cuda(buffer) => buffer.bytes(),
        }
    }
}

impl Program {
    /// The kernel of this name.
    ///
    /// # Errors
    /// The program has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        Ok(match self {
            Program::OpenCl(program) => Kernel::OpenCl(program.kernel(name)?),
            Program::Cuda(program) => Kernel::Cuda(program.kernel(name)?),
        })
    }
}

impl Answer {
    /// The numbers.
    #[must_use]
    pub fn numbers(&self) -> &[i64] {
        match self {
            Answer::Plain(numbers) => numbers,
            Answer::Locked(words) => words.get(),
        }
    }

    fn numbers_mut(&mut self) -> &mut [i64] {
        match self {
            Answer::Plain(numbers) => numbers,
            Answer::Locked(words) => words.get_mut(),
        }
    }
}

impl Queue {
    /// Runs `groups` groups of `items` work items of a kernel on a buffer, which is its first argument.
    ///
    /// # Errors
    /// The driver refuses, or the kernel takes other arguments.
    ///
    /// # Safety
    /// With these arguments the kernel stays within the buffer, and no other command uses at the same time what it
    /// writes.
    pub unsafe fn launch(
        &self,
        kernel: &Kernel,
        buffer: &Buffer,
        arguments: &[Vec<u8>],
        [groups, items]: [usize; 2],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        Ok(match (self, kernel, buffer) {
            (Queue::OpenCl(queue), Kernel::OpenCl(kernel), Buffer::OpenCl(buffer)) => {
                let bytes = arguments.iter().map(|bytes| opencl::Value::Bytes(bytes));
                let values: Vec<_> = [opencl::Value::Buffer(buffer)]
                    .into_iter()
                    .chain(bytes)
                    .collect();
                let after = Event::opencl(after)?;
                // SAFETY: the caller's promise.
                Event::OpenCl(unsafe { queue.launch(kernel, &values, groups, items, &after)? })
            }
            (Queue::Cuda(queue), Kernel::Cuda(kernel), Buffer::Cuda(buffer)) => {
                let after = Event::cuda(after)?;
                // SAFETY: the caller's promise.
                Event::Cuda(unsafe {
                    queue.launch(kernel, buffer, arguments, groups, items, &after)?
                })
            }
            _ => return Err(GpuError::Mixed),
        })
    }

    /// Has a library do what it was prepared to do; `at` are the places in the buffer of the two factors, of what is
    /// added, of the result and of the workspace.
    ///
    /// # Errors
    /// The library or the driver fails.
    ///
    /// # Safety
    /// The buffer has room for all of it there, and no other command uses at the same time what this one writes.
    pub unsafe fn call(
        &self,
        call: &Call,
        buffer: &Buffer,
        at: [u64; 5],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        let (Queue::Cuda(queue), Buffer::Cuda(buffer)) = (self, buffer) else {
            return Err(GpuError::Mixed);
        };
        let after = Event::cuda(after)?;
        Ok(Event::Cuda(match call {
            // SAFETY: the caller's promise.
            Call::Product(one) => unsafe { queue.multiply(one, buffer, at, &after)? },
            // SAFETY: as above.
            Call::Convolution(one) => unsafe { queue.convolve(one, buffer, at, &after)? },
        }))
    }

    /// Begins to copy a buffer's bytes from `start` on to the host. There is no command for no bytes.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    ///
    /// # Safety
    /// Until the command is done, `to` lives and nobody else uses it.
    pub unsafe fn begin_read(
        &self,
        from: &Buffer,
        start: u64,
        to: &mut [u8],
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        match (self, from) {
            (Queue::OpenCl(queue), Buffer::OpenCl(from)) => {
                // SAFETY: the caller's promise.
                let event = unsafe { queue.begin_read(from, start, to, &Event::opencl(after)?)? };
                Ok(event.map(Event::OpenCl))
            }
            (Queue::Cuda(queue), Buffer::Cuda(from)) => {
                // SAFETY: the caller's promise.
                let event = unsafe { queue.begin_read(from, start, to, &Event::cuda(after)?)? };
                Ok(event.map(Event::Cuda))
            }
            _ => Err(GpuError::Mixed),
        }
    }

    /// Begins to copy a buffer's bytes from `start` on to an answer.
    ///
    /// # Errors
    /// As for [`Queue::begin_read`].
    ///
    /// # Safety
    /// Until the command is done, the answer lives.
    pub unsafe fn begin_answer(
        &self,
        from: &Buffer,
        start: u64,
        answer: &mut Answer,
    ) -> Result<Option<Event>, GpuError> {
        let bytes = bytemuck::cast_slice_mut(answer.numbers_mut());
        // SAFETY: the caller's promise.
        unsafe { self.begin_read(from, start, bytes, &[]) }
    }

    /// Begins to copy bytes of the host to a buffer's bytes from `start` on. There is no command for no bytes.
    ///
    /// # Errors
    /// As for [`Queue::begin_read`].
    ///
    /// # Safety
    /// Until the command is done, `from` lives and nobody writes it.
    pub unsafe fn begin_write(
        &self,
        from: &[u8],
        to: &Buffer,
        start: u64,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        match (self, to) {
            (Queue::OpenCl(queue), Buffer::OpenCl(to)) => {
                // SAFETY: the caller's promise.
                let event = unsafe { queue.begin_write(from, to, start, &Event::opencl(after)?)? };
                Ok(event.map(Event::OpenCl))
            }
            (Queue::Cuda(queue), Buffer::Cuda(to)) => {
                // SAFETY: the caller's promise.
                let event = unsafe { queue.begin_write(from, to, start, &Event::cuda(after)?)? };
                Ok(event.map(Event::Cuda))
            }
            _ => Err(GpuError::Mixed),
        }
    }

    /// Whether the driver may read what is copied to the device as soon as it is told of the copy, and not only when the
    /// copy runs. OpenCL leaves that to the driver, and NVIDIA's does it. CUDA does it with memory that isn't locked.
    #[must_use]
    pub fn reads_at_once(&self) -> bool {
        matches!(self, Queue::OpenCl(_))
    }

    /// Begins to fill so many bytes of a buffer from `start` on. There is no command for no bytes.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    pub fn begin_fill(
        &self,
        to: &Buffer,
        start: u64,
        bytes: u64,
        byte: u8,
        after: &[Event],
    ) -> Result<Option<Event>, GpuError> {
        match (self, to) {
            (Queue::OpenCl(queue), Buffer::OpenCl(to)) => {
                let event = queue.begin_fill(to, start, bytes, byte, &Event::opencl(after)?)?;
                Ok(event.map(Event::OpenCl))
            }
            (Queue::Cuda(queue), Buffer::Cuda(to)) => {
                let event = queue.begin_fill(to, start, bytes, byte, &Event::cuda(after)?)?;
                Ok(event.map(Event::Cuda))
            }
            _ => Err(GpuError::Mixed),
        }
    }

    /// Copies a buffer's bytes from `start` on to the host, and waits until they are there.
    ///
    /// # Errors
    /// The buffer has fewer bytes, or the driver fails.
    pub fn read(&self, from: &Buffer, start: u64, to: &mut [u8]) -> Result<(), GpuError> {
        // SAFETY: the call returns when the command is done.
        self.until(unsafe { self.begin_read(from, start, to, &[])? })
    }

    /// Copies bytes of the host to a buffer's bytes from `start` on, and waits until they are there.
    ///
    /// # Errors
    /// As for [`Queue::read`].
    pub fn write(&self, from: &[u8], to: &Buffer, start: u64) -> Result<(), GpuError> {
        // SAFETY: the call returns when the command is done.
        self.until(unsafe { self.begin_write(from, to, start, &[])? })
    }

    /// Fills so many bytes of a buffer from `start` on, and waits until that is done.
    ///
    /// # Errors
    /// As for [`Queue::read`].
    pub fn fill(&self, to: &Buffer, start: u64, bytes: u64, byte: u8) -> Result<(), GpuError> {
        self.until(self.begin_fill(to, start, bytes, byte, &[])?)
    }

    /// Waits for a command of this queue.
    fn until(&self, event: Option<Event>) -> Result<(), GpuError> {
        event.map_or(Ok(()), |event| {
            let flushed = self.flush();
            // Also if that fails, since the command may have begun.
            event.wait().and(flushed)
        })
    }

    /// Hands all commands to the device, which commands of other queues that wait for them need.
    ///
    /// # Errors
    /// The driver fails.
    pub fn flush(&self) -> Result<(), GpuError> {
        match self {
            Queue::OpenCl(queue) => queue.flush(),
            // A stream needs no telling.
            Queue::Cuda(_) => Ok(()),
        }
    }

    /// The next launch begins, by the device's clock, when the device comes to it. By CUDA it otherwise begins when the
    /// command before it ended, unless it waits for events: what the driver needs between the two is part of it.
    pub fn pause(&self) {
        if let Queue::Cuda(queue) = self {
            queue.pause();
        }
    }

    /// Waits until all commands are done.
    ///
    /// # Errors
    /// One failed.
    pub fn finish(&self) -> Result<(), GpuError> {
        match self {
            Queue::OpenCl(queue) => queue.finish(),
            Queue::Cuda(queue) => queue.finish(),
        }
    }

    /// Whether commands of this queue may wait for an event: it is of the same context.
    #[must_use]
    pub fn knows(&self, event: &Event) -> bool {
        match (self, event) {
            (Queue::OpenCl(queue), Event::OpenCl(event)) => queue.knows(event),
            (Queue::Cuda(queue), Event::Cuda(event)) => queue.knows(event),
            _ => false,
        }
    }
}

impl Event {
    /// Waits until the command is done. Its queue was flushed.
    ///
    /// # Errors
    /// It failed.
    pub fn wait(&self) -> Result<(), GpuError> {
        match self {
            Event::OpenCl(event) => event.wait(),
            Event::Cuda(event) => event.wait(),
        }
    }

    /// Whether the command is known to be done; OpenCL isn't asked.
    ///
    /// # Errors
    /// It failed.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        match self {
            Event::OpenCl(_) => Ok(false),
            Event::Cuda(event) => event.is_done(),
        }
    }

    /// When the command began and ended, in nanoseconds of the device's clock. Only after it is done.
    ///
    /// # Errors
    /// It isn't done, or the driver keeps no times.
    pub fn times(&self) -> Result<[i64; 2], GpuError> {
        match self {
            Event::OpenCl(event) => Ok(event.times()?.map(|time| time as i64)),
            Event::Cuda(event) => event.times(),
        }
    }

    fn opencl(events: &[Event]) -> Result<Vec<opencl::Event>, GpuError> {
        let one = |event: &Event| match event {
            Event::OpenCl(event) => Ok(event.clone()),
            Event::Cuda(_) => Err(GpuError::Mixed),
        };
        events.iter().map(one).collect()
    }

    fn cuda(events: &[Event]) -> Result<Vec<cuda::Event>, GpuError> {
        let one = |event: &Event| match event {
            Event::Cuda(event) => Ok(event.clone()),
            Event::OpenCl(_) => Err(GpuError::Mixed),
        };
        events.iter().map(one).collect()
    }
}
