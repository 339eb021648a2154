//! The functions of HiGHS' C interface that are used, and the only calls to them.
#![allow(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use super::model::{Kind, Model};

/// `HighsInt` of the libraries that we load; checked when they are.
type Int = c_int;
type Handle = *mut c_void;
type Callback = extern "C" fn(c_int, *const c_char, *const c_void, *mut c_int, *mut c_void);

/// Declares the table of function pointers and its loader.
macro_rules! functions {
    ($($name:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// HiGHS' functions, valid for as long as the library in it is loaded.
        pub(crate) struct HighsApi {
            $($name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            _library: libloading::Library,
        }
        impl HighsApi {
            pub(crate) fn new(library: libloading::Library) -> Result<HighsApi, String> {
                $(
                    // SAFETY: the type is that of the C declaration of this function.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>($symbol.as_bytes())
                    };
                    let $name = *$name.map_err(|error| error.to_string())?;
                )*
                let api = HighsApi { $($name,)* _library: library };
                // SAFETY: no arguments, no state.
                let size = unsafe { (api.size_of_int)(ptr::null()) };
                if size != 4 {
                    return Err(format!("its integers have {size} bytes and not 4"));
                }
                Ok(api)
            }
        }
    };
}

functions! {
    create = "Highs_create": fn() -> Handle;
    destroy = "Highs_destroy": fn(Handle);
    version = "Highs_version": fn() -> *const c_char;
    size_of_int = "Highs_getSizeofHighsInt": fn(*const c_void) -> Int;
    set_bool = "Highs_setBoolOptionValue": fn(Handle, *const c_char, Int) -> Int;
    set_int = "Highs_setIntOptionValue": fn(Handle, *const c_char, Int) -> Int;
    set_double = "Highs_setDoubleOptionValue": fn(Handle, *const c_char, f64) -> Int;
    set_string = "Highs_setStringOptionValue": fn(Handle, *const c_char, *const c_char) -> Int;
    pass_model = "Highs_passModel": fn(
        Handle, Int, Int, Int, Int, Int, Int, Int, f64, *const f64, *const f64, *const f64,
        *const f64, *const f64, *const Int, *const Int, *const f64, *const Int, *const Int,
        *const f64, *const Int
    ) -> Int;
    set_sparse_solution = "Highs_setSparseSolution": fn(Handle, Int, *const Int, *const f64) -> Int;
    set_basis = "Highs_setBasis": fn(Handle, *const Int, *const Int) -> Int;
    get_basis = "Highs_getBasis": fn(Handle, *mut Int, *mut Int) -> Int;
    run = "Highs_run": fn(Handle) -> Int;
    model_status = "Highs_getModelStatus": fn(Handle) -> Int;
    double_info = "Highs_getDoubleInfoValue": fn(Handle, *const c_char, *mut f64) -> Int;
    int_info = "Highs_getIntInfoValue": fn(Handle, *const c_char, *mut Int) -> Int;
    int64_info = "Highs_getInt64InfoValue": fn(Handle, *const c_char, *mut i64) -> Int;
    get_solution = "Highs_getSolution": fn(Handle, *mut f64, *mut f64, *mut f64, *mut f64) -> Int;
    set_callback = "Highs_setCallback": fn(Handle, Callback, *mut c_void) -> Int;
    start_callback = "Highs_startCallback": fn(Handle, c_int) -> Int;
    data_item = "Highs_getCallbackDataOutItem": fn(*const c_void, *const c_char) -> *const c_void;
}

/// What the solve tells while it runs.
pub(super) struct News {
    /// Best objective known, or infinity.
    pub(super) primal: f64,
    /// Proven bound, or minus infinity.
    pub(super) dual: f64,
    /// The columns of a new incumbent.
    pub(super) values: Option<Vec<f64>>,
}

/// What the callback reaches through its pointer; outlives the solve that is given it.
pub(super) struct Watch<'a> {
    pub(super) api: &'static HighsApi,
    pub(super) columns: usize,
    pub(super) stop: &'a AtomicBool,
    pub(super) news: Sender<News>,
}

const SIMPLEX_INTERRUPT: c_int = 1;
const IPM_INTERRUPT: c_int = 2;
const MIP_IMPROVING: c_int = 4;
const MIP_LOGGING: c_int = 5;
const MIP_INTERRUPT: c_int = 6;

/// The second last argument points to HiGHS' input structure, whose first field is the flag by which
/// it asks whether to stop.
extern "C" fn on_event(
    kind: c_int,
    _message: *const c_char,
    out: *const c_void,
    interrupt: *mut c_int,
    data: *mut c_void,
) {
    // SAFETY: `data` is what `Instance::watch` passed, which lives until the instance is dropped.
    let watch = unsafe { &*data.cast::<Watch<'_>>() };
    match kind {
        MIP_IMPROVING | MIP_LOGGING => {
            let primal = watch
                .number(out, c"mip_primal_bound")
                .unwrap_or(f64::INFINITY);
            let dual = watch
                .number(out, c"mip_dual_bound")
                .unwrap_or(f64::NEG_INFINITY);
            let values = if kind == MIP_IMPROVING {
                watch.solution(out)
            } else {
                None
            };
            // Nobody listens after a solve was left behind.
            let _ = watch.news.send(News {
                primal,
                dual,
                values,
            });
        }
        SIMPLEX_INTERRUPT | IPM_INTERRUPT | MIP_INTERRUPT if !interrupt.is_null() => {
            let stop = c_int::from(watch.stop.load(Ordering::Relaxed));
            // SAFETY: HiGHS passes its input structure, which starts with this flag.
            unsafe { *interrupt = stop };
        }
        _ => {}
    }
}

impl Watch<'_> {
    fn item(&self, out: *const c_void, name: &CStr) -> Option<*const f64> {
        // SAFETY: `out` is the structure HiGHS just passed; the name ends in a zero.
        let item = unsafe { (self.api.data_item)(out, name.as_ptr()) };
        (!item.is_null()).then_some(item.cast())
    }

    fn number(&self, out: *const c_void, name: &CStr) -> Option<f64> {
        // SAFETY: both names that are asked for are `double` fields of the structure.
        self.item(out, name).map(|item| unsafe { *item })
    }

    fn solution(&self, out: *const c_void) -> Option<Vec<f64>> {
        let item = self.item(out, c"mip_solution")?;
        // SAFETY: at an improving solution this points to one number per column of the model.
        Some(unsafe { std::slice::from_raw_parts(item, self.columns) }.to_vec())
    }
}

/// One HiGHS object. Not shared between threads.
pub(super) struct Instance<'w> {
    api: &'static HighsApi,
    handle: Handle,
    watch: PhantomData<&'w ()>,
}

impl Drop for Instance<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed once.
        unsafe { (self.api.destroy)(self.handle) }
    }
}

/// A failed call, by name.
pub(super) type Call<T> = Result<T, &'static str>;

fn ok(status: Int, call: &'static str) -> Call<()> {
    // 0 is fine, 1 a warning, -1 an error.
    if status < 0 { Err(call) } else { Ok(()) }
}

impl<'w> Instance<'w> {
    pub(super) fn new(api: &'static HighsApi) -> Call<Self> {
        // SAFETY: no arguments.
        let handle = unsafe { (api.create)() };
        if handle.is_null() {
            return Err("Highs_create");
        }
        Ok(Instance {
            api,
            handle,
            watch: PhantomData,
        })
    }

    pub(super) fn watch(&mut self, watch: &'w Watch<'w>, mip: bool) -> Call<()> {
        let data = ptr::from_ref(watch).cast_mut().cast::<c_void>();
        // SAFETY: `data` is only read, through a shared reference, and outlives `self` by `'w`.
        let status = unsafe { (self.api.set_callback)(self.handle, on_event, data) };
        ok(status, "Highs_setCallback")?;
        let kinds: &[c_int] = if mip {
            &[MIP_IMPROVING, MIP_LOGGING, MIP_INTERRUPT]
        } else {
            &[SIMPLEX_INTERRUPT, IPM_INTERRUPT]
        };
        for &kind in kinds {
            // SAFETY: a valid handle and a kind of callback.
            let status = unsafe { (self.api.start_callback)(self.handle, kind) };
            ok(status, "Highs_startCallback")?;
        }
        Ok(())
    }

    pub(super) fn set_bool(&mut self, name: &CStr, value: bool) -> Call<()> {
        // SAFETY: a valid handle and a terminated name.
        let status = unsafe { (self.api.set_bool)(self.handle, name.as_ptr(), value.into()) };
        ok(status, "Highs_setBoolOptionValue")
    }

    pub(super) fn set_int(&mut self, name: &CStr, value: i32) -> Call<()> {
        // SAFETY: a valid handle and a terminated name.
        let status = unsafe { (self.api.set_int)(self.handle, name.as_ptr(), value) };
        ok(status, "Highs_setIntOptionValue")
    }

    pub(super) fn set_double(&mut self, name: &CStr, value: f64) -> Call<()> {
        // SAFETY: a valid handle and a terminated name.
        let status = unsafe { (self.api.set_double)(self.handle, name.as_ptr(), value) };
        ok(status, "Highs_setDoubleOptionValue")
    }

    pub(super) fn set_string(&mut self, name: &CStr, value: &str) -> Call<()> {
        let value = CString::new(value).map_err(|_| "Highs_setStringOptionValue")?;
        // SAFETY: a valid handle and terminated texts, which HiGHS copies.
        let status = unsafe { (self.api.set_string)(self.handle, name.as_ptr(), value.as_ptr()) };
        ok(status, "Highs_setStringOptionValue")
    }

    /// Copies the model in; `relax` drops integrality.
    pub(super) fn pass(&mut self, model: &Model, relax: bool) -> Call<()> {
        let integrality: Vec<Int> = model
            .kinds
            .iter()
            .map(|kind| Int::from(!relax && *kind == Kind::Integer))
            .collect();
        let kinds = if integrality.contains(&1) {
            integrality.as_ptr()
        } else {
            ptr::null()
        };
        // SAFETY: `Model` keeps its arrays at matching lengths within 32-bit counts, entries within
        // range; there is no Hessian; HiGHS copies everything before it returns.
        let status = unsafe {
            (self.api.pass_model)(
                self.handle,
                model.kinds.len() as Int,
                model.row_lower.len() as Int,
                model.indices.len() as Int,
                0,
                2, // row-wise
                1,
                1, // minimize
                model.offset,
                model.costs.as_ptr(),
                model.lower.as_ptr(),
                model.upper.as_ptr(),
                model.row_lower.as_ptr(),
                model.row_upper.as_ptr(),
                model.starts.as_ptr(),
                model.indices.as_ptr(),
                model.coefficients.as_ptr(),
                ptr::null(),
                ptr::null(),
                ptr::null(),
                kinds,
            )
        };
        ok(status, "Highs_passModel")
    }

    pub(super) fn start(&mut self, columns: &[i32], values: &[f64]) -> Call<()> {
        debug_assert_eq!(columns.len(), values.len());
        // SAFETY: both arrays have this length; HiGHS checks the indices.
        let status = unsafe {
            (self.api.set_sparse_solution)(
                self.handle,
                columns.len() as Int,
                columns.as_ptr(),
                values.as_ptr(),
            )
        };
        ok(status, "Highs_setSparseSolution")
    }

    pub(super) fn set_basis(&mut self, columns: &[i32], rows: &[i32]) -> Call<()> {
        // SAFETY: the caller made sure that the lengths are those of the model.
        let status = unsafe { (self.api.set_basis)(self.handle, columns.as_ptr(), rows.as_ptr()) };
        ok(status, "Highs_setBasis")
    }

    pub(super) fn basis(&self, columns: usize, rows: usize) -> Option<(Vec<i32>, Vec<i32>)> {
        if self.int_info(c"basis_validity") != Some(1) {
            return None;
        }
        let (mut cols, mut rws) = (vec![0; columns], vec![0; rows]);
        // SAFETY: the buffers have the model's lengths.
        let status =
            unsafe { (self.api.get_basis)(self.handle, cols.as_mut_ptr(), rws.as_mut_ptr()) };
        (status >= 0).then_some((cols, rws))
    }

    /// Runs to the end or a limit.
    pub(super) fn run(&mut self) -> Call<()> {
        // SAFETY: a valid handle with a model.
        let status = unsafe { (self.api.run)(self.handle) };
        ok(status, "Highs_run")
    }

    pub(super) fn status(&self) -> i32 {
        // SAFETY: a valid handle.
        unsafe { (self.api.model_status)(self.handle) }
    }

    pub(super) fn double_info(&self, name: &CStr) -> Option<f64> {
        let mut value = 0.0;
        // SAFETY: writes one number.
        let status = unsafe { (self.api.double_info)(self.handle, name.as_ptr(), &raw mut value) };
        (status >= 0).then_some(value)
    }

    pub(super) fn int_info(&self, name: &CStr) -> Option<i32> {
        let mut value = 0;
        // SAFETY: writes one number.
        let status = unsafe { (self.api.int_info)(self.handle, name.as_ptr(), &raw mut value) };
        (status >= 0).then_some(value)
    }

    pub(super) fn int64_info(&self, name: &CStr) -> Option<i64> {
        let mut value = 0;
        // SAFETY: writes one number.
        let status = unsafe { (self.api.int64_info)(self.handle, name.as_ptr(), &raw mut value) };
        (status >= 0).then_some(value)
    }

    /// Values and reduced costs of the columns.
    pub(super) fn solution(&self, columns: usize, rows: usize) -> Call<(Vec<f64>, Vec<f64>)> {
        let (mut values, mut duals) = (vec![0.0; columns], vec![0.0; columns]);
        let (mut activity, mut prices) = (vec![0.0; rows], vec![0.0; rows]);
        // SAFETY: the four buffers have the model's lengths.
        let status = unsafe {
            (self.api.get_solution)(
                self.handle,
                values.as_mut_ptr(),
                duals.as_mut_ptr(),
                activity.as_mut_ptr(),
                prices.as_mut_ptr(),
            )
        };
        ok(status, "Highs_getSolution").map(|()| (values, duals))
    }
}

impl HighsApi {
    /// As the library reports it, like `1.12.0`.
    pub(crate) fn version(&self) -> String {
        // SAFETY: a static, terminated string.
        unsafe { CStr::from_ptr((self.version)()) }
            .to_string_lossy()
            .into_owned()
    }
}
