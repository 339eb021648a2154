//! Products of matrices by cuBLASLt, with workspace of ours.

#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use super::context::{Buffer, Context};
use super::ffi::{self, Found, Status, cublaslt::Api};
use super::object::Object;
use super::{Event, Queue};
use crate::error::{GpuError, Library, unless_failed};
use crate::loading::Loaded;

struct Loading(Api);

static LOADED: Loaded<Loading> = Loaded::none();

/// cuBLASLt on a device. Clones are the same.
#[derive(Clone, Debug)]
pub struct Products(Arc<Inner>);

struct Inner {
    api: &'static Api,
    library: Object,
    context: Context,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuBLASLt")
    }
}

/// The library's documentation asks for workspace that is aligned to so many bytes; some algorithms refuse any other.
const WORKSPACE_ALIGN: u64 = 256;

/// What is added to a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// Nothing.
    Nothing,
    /// A number for each column.
    PerColumn,
    /// A number for each element, of all batches.
    PerElement,
}

/// c = a·b + added for each of some batches, in 32 bits; all matrices are stored by rows.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of c.
    pub rows: usize,
    /// Columns of c.
    pub columns: usize,
    /// Columns of a and rows of b.
    pub depth: usize,
    /// Whether a and b are stored as their transposes.
    pub transposed: [bool; 2],
    /// How many products.
    pub batches: usize,
    /// Elements from one batch's a and b to the next one's; 0 if it is the same.
    pub steps: [usize; 2],
    /// What is added.
    pub added: Added,
}

/// A product that the library has an algorithm for.
#[derive(Debug)]
pub struct PreparedProduct {
    products: Products,
    /// The description, in which the address of what is added is set before each run.
    what: Mutex<Object>,
    /// Of the library's first and second factor and the result.
    layouts: [Object; 3],
    algorithm: [u64; 8],
    /// Bytes of workspace.
    pub workspace: u64,
    /// Those that the library uses, from the first place that is aligned for it.
    used: u64,
    added: Added,
}

fn done(call: &'static str, status: Status) -> Result<(), GpuError> {
    unless_failed(Library::CublasLt, call, status)
}

fn load() -> Result<&'static Api, GpuError> {
    let load = |library, _: &_| Ok(Loading(Api::of(library)?));
    Ok(&LOADED.load(Library::CublasLt, None, load)?.0)
}

impl Products {
    /// The version that is installed.
    ///
    /// # Errors
    /// The library isn't there, can't be loaded, or is too old.
    pub fn installed() -> Result<usize, GpuError> {
        // SAFETY: no arguments.
        Ok(unsafe { (load()?.version)() })
    }

    /// Loads the library where it is installed.
    ///
    /// # Errors
    /// It isn't there, or fails.
    pub fn new(context: &Context) -> Result<Products, GpuError> {
        let api = load()?;
        context.api()?;
        // SAFETY: the answer is one handle, for the context that is current.
        let library = Object::new(
            Library::CublasLt,
            "cublasLtCreate",
            |handle| unsafe { (api.create)(handle) },
            api.destroy,
        )?;
        let context = context.clone();
        Ok(Products(Arc::new(Inner {
            api,
            library,
            context,
        })))
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> usize {
        // SAFETY: no arguments.
        unsafe { (self.0.api.version)() }
    }

    /// The algorithm that the library thinks fastest with so much workspace, for addresses with this alignment; `None`
    /// if it has none.
    ///
    /// # Errors
    /// The library fails.
    pub fn prepare(
        &self,
        product: &Product,
        workspace: u64,
        alignment: u32,
    ) -> Result<Option<PreparedProduct>, GpuError> {
        let api = self.0.api;
        self.0.context.api()?;
        let &Product {
            rows,
            columns,
            depth,
            transposed: [a_transposed, b_transposed],
            batches,
            steps: [a_step, b_step],
            added,
        } = product;
        // The library's matrices are stored by columns: it multiplies the transposes, b's first.
        let what = Object::new(
            Library::CublasLt,
            "cublasLtMatmulDescCreate", // SAFETY: the answer is one handle.
            |handle| unsafe { (api.create_product)(handle, ffi::COMPUTE_IN_FLOATS, ffi::FLOAT) },
            api.destroy_product,
        )?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has that many bytes, which the call copies.
            let status = unsafe { (api.set_product)(what.handle, attribute, value, bytes) };
            done("cublasLtMatmulDescSetAttribute", status)
        };
        for (attribute, transposed) in [
            (ffi::TRANSPOSE_A, b_transposed),
            (ffi::TRANSPOSE_B, a_transposed),
        ] {
            let transposed = c_int::from(transposed);
            set(attribute, (&raw const transposed).cast(), 4)?;
        }
        if added == Added::PerColumn {
            let epilogue = ffi::EPILOGUE_BIAS;
            set(ffi::EPILOGUE, (&raw const epilogue).cast(), 4)?;
        }
        let stored = |transposed, height, width| match transposed {
            true => [height, width],
            false => [width, height],
        };
        let layouts = [
            self.layout(stored(b_transposed, depth, columns), batches, b_step)?,
            self.layout(stored(a_transposed, rows, depth), batches, a_step)?,
            self.layout([columns, rows], batches, rows * columns)?,
        ];
        let preference = Object::new(
            Library::CublasLt,
            "cublasLtMatmulPreferenceCreate", // SAFETY: the answer is one handle.
            |handle| unsafe { (api.create_preference)(handle) },
            api.destroy_preference,
        )?;
        let prefer = |attribute, value: *const c_void, bytes| {
            // SAFETY: the value has that many bytes, which the call copies.
            let status =
                unsafe { (api.set_preference)(preference.handle, attribute, value, bytes) };
            done("cublasLtMatmulPreferenceSetAttribute", status)
        };
        // The workspace may start so much before a place that is aligned as the library wants it.
        let lost = WORKSPACE_ALIGN - 1;
        let most = workspace.saturating_sub(lost);
        prefer(ffi::MOST_WORKSPACE, (&raw const most).cast(), 8)?;
        for attribute in ffi::ALIGNMENTS {
            prefer(attribute, (&raw const alignment).cast(), 4)?;
        }
        let (mut found, mut count) = (Found::default(), 0);
        let [first, second, result] = layouts.each_ref().map(|layout| layout.handle);
        // SAFETY: there is room for the one answer that is asked for.
        let status = unsafe {
            (api.algorithms)(
                self.0.library.handle,
                what.handle,
                first,
                second,
                result,
                result,
                preference.handle,
                1,
                &mut found,
                &mut count,
            )
        };
        // `CUBLAS_STATUS_NOT_SUPPORTED`, or an answer that is none.
        if status == 15 || (status == ffi::SUCCESS && (count == 0 || found.state != 0)) {
            return Ok(None);
        }
        done("cublasLtMatmulAlgoGetHeuristic", status)?;
        let used = found.workspace as u64;
        Ok(Some(PreparedProduct {
            products: self.clone(),
            what: Mutex::new(what),
            layouts,
            algorithm: found.algorithm,
            workspace: if used > 0 { used + lost } else { 0 },
            used,
            added,
        }))
    }

    /// Matrices of this height and width, stored by columns.
    fn layout(
        &self,
        [height, width]: [usize; 2],
        batches: usize,
        step: usize,
    ) -> Result<Object, GpuError> {
        let api = self.0.api;
        let layout = Object::new(
            Library::CublasLt,
            "cublasLtMatrixLayoutCreate", // SAFETY: the answer is one handle.
            |handle| unsafe {
                let (height, width) = (height as u64, width as u64);
                (api.create_layout)(handle, ffi::FLOAT, height, width, height as i64)
            },
            api.destroy_layout,
        )?;
        let (batches, step) = (batches as i32, step as i64);
        let attributes: [(_, *const c_void, _); 2] = [
            (ffi::BATCH_COUNT, (&raw const batches).cast(), 4),
            (ffi::BATCH_STEP, (&raw const step).cast(), 8),
        ];
        for (attribute, value, bytes) in attributes {
            // SAFETY: the value has that many bytes, which the call copies.
            let status = unsafe { (api.set_layout)(layout.handle, attribute, value, bytes) };
            done("cublasLtMatrixLayoutSetAttribute", status)?;
        }
        Ok(layout)
    }
}

impl PreparedProduct {
    /// Gives it to a queue; `at` are the places in the buffer of a, b, what is added, c and the workspace.
    ///
    /// # Errors
    /// The library or the driver fails.
    ///
    /// # Safety
    /// The buffer has room for all of it there, aligned as was said, and no other command uses at the same time what
    /// this one writes.
    pub(super) unsafe fn run(
        &self,
        queue: &Queue,
        buffer: &Buffer,
        at: [u64; 5],
        after: &[Event],
    ) -> Result<Event, GpuError> {
        let Inner { api, library, .. } = &*self.products.0;
        let [a, b, added, c, mut workspace] = at.map(|offset| buffer.address + offset);
        workspace = match self.used {
            0 => 0,
            _ => workspace.next_multiple_of(WORKSPACE_ALIGN),
        };
        let [a, b, added, c, workspace] = [a, b, added, c, workspace]
            .map(|address| ptr::without_provenance_mut::<c_void>(address as usize));
        let what = self.what.lock().unwrap_or_else(PoisonError::into_inner);
        if self.added == Added::PerColumn {
            // SAFETY: the value is one address, which the call copies.
            let status = unsafe {
                (api.set_product)(what.handle, ffi::BIAS_POINTER, (&raw const added).cast(), 8)
            };
            done("cublasLtMatmulDescSetAttribute", status)?;
        }
        let (one, kept) = (1f32, f32::from(u8::from(self.added == Added::PerElement)));
        let start = if self.added == Added::PerElement {
            added
        } else {
            c
        };
        let [first, second, result] = self.layouts.each_ref().map(|layout| layout.handle);
        queue.external(after, |stream| {
            // SAFETY: the caller's promise; numbers are copied before the call returns.
            done("cublasLtMatmul", unsafe {
                (api.multiply)(
                    library.handle,
                    what.handle,
                    (&raw const one).cast(),
                    b,
                    first,
                    a,
                    second,
                    (&raw const kept).cast(),
                    start,
                    result,
                    c,
                    result,
                    &self.algorithm,
                    workspace,
                    self.used as usize,
                    stream,
                )
            })
        })
    }
}
