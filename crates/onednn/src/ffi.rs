//! The functions of oneDNN's C interface (3.x) that are used, with the numbers of its enumerations,
//! and those of the OpenMP runtime that it was built with.

#![allow(unsafe_code, reason = "loading a C library")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

/// `DNNL_MAX_NDIMS`.
pub(crate) const MAX_RANK: usize = 12;

pub(crate) type Dims = [i64; MAX_RANK];
pub(crate) type Status = c_int;
/// Any of the library's objects: each has its own opaque type in C.
pub(crate) type Handle = *mut c_void;

/// `dnnl_success`.
pub(crate) const SUCCESS: Status = 0;
/// `dnnl_invalid_arguments` and `dnnl_unimplemented`: what creating a descriptor answers where there
/// is no implementation.
pub(crate) const INVALID_ARGUMENTS: Status = 2;
pub(crate) const UNIMPLEMENTED: Status = 3;
/// `dnnl_last_impl_reached`.
pub(crate) const LAST_IMPLEMENTATION: Status = 4;
/// `dnnl_f32`.
pub(crate) const F32: c_int = 3;
/// `dnnl_cpu`.
pub(crate) const CPU: c_int = 1;
/// `dnnl_stream_in_order`.
pub(crate) const IN_ORDER: c_uint = 1;
/// `dnnl_format_tag_any`.
pub(crate) const ANY: c_int = 1;
/// `dnnl_data_type_undef`: that of the destination.
pub(crate) const UNDEFINED: c_int = 0;
/// `dnnl_scratchpad_mode_user`.
pub(crate) const USER_SCRATCHPAD: c_int = 1;
/// `DNNL_RUNTIME_OMP`.
const OPENMP: c_uint = 2;
/// `dnnl_forward_training`.
pub(crate) const FORWARD_TRAINING: c_int = 64;
/// `dnnl_forward_inference`.
pub(crate) const FORWARD_INFERENCE: c_int = 96;
/// `dnnl_backward`: the gradients of data and of parameters.
pub(crate) const BACKWARD: c_int = 128;
/// `dnnl_convolution_direct`.
pub(crate) const CONVOLUTION_DIRECT: c_int = 1;
/// `dnnl_query_impl_info_str`.
pub(crate) const QUERY_NAME: c_int = 8;
/// `dnnl_query_exec_arg_md`; the index is the argument's number.
pub(crate) const QUERY_ARGUMENT: c_int = 255;
/// What a descriptor of memory answers: `dnnl_query_strides`, `_ndims_s32`, `_dims`, `_padded_dims`,
/// `_format_kind`, `_inner_nblks_s32`, `_inner_blks`, `_inner_idxs`.
pub(crate) const QUERY_STRIDES: c_int = 14;
pub(crate) const QUERY_RANK: c_int = 256;
pub(crate) const QUERY_SHAPE: c_int = 257;
pub(crate) const QUERY_PADDED_SHAPE: c_int = 260;
pub(crate) const QUERY_FORMAT_KIND: c_int = 262;
pub(crate) const QUERY_BLOCK_COUNT: c_int = 263;
pub(crate) const QUERY_BLOCKS: c_int = 264;
pub(crate) const QUERY_BLOCK_AXES: c_int = 265;
/// `dnnl_blocked`
pub(crate) const BLOCKED: c_int = 2;

/// `dnnl_exec_arg_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExecArg {
    pub argument: c_int,
    pub memory: Handle,
}

/// `dnnl_version_t`.
#[repr(C)]
pub(crate) struct RawVersion {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: c_uint,
    gpu_runtime: c_uint,
}

/// The library's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Changes when the interface does.
    pub major: i32,
    /// Changes when something is added.
    pub minor: i32,
    /// Changes when something is corrected.
    pub patch: i32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Declares the table of function pointers and its loader.
macro_rules! functions {
    ($($name:ident = $symbol:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// oneDNN's functions, valid for as long as the library in it is loaded.
        pub(crate) struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            _library: libloading::Library,
        }

        /// Every function; the first one that isn't there is named.
        fn table(library: libloading::Library) -> Result<Api, String> {
            $(
                // SAFETY: the type is that of the C declaration of this function.
                let $name = unsafe {
                    library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>($symbol.as_bytes())
                };
                let $name = *$name.map_err(|_| format!("it has no function `{}`", $symbol))?;
            )*
            Ok(Api { $($name,)* _library: library })
        }
    };
}

functions! {
    engine_create = "dnnl_engine_create": fn(*mut Handle, c_int, usize) -> Status;
    engine_destroy = "dnnl_engine_destroy": fn(Handle) -> Status;
    stream_create = "dnnl_stream_create": fn(*mut Handle, Handle, c_uint) -> Status;
    stream_wait = "dnnl_stream_wait": fn(Handle) -> Status;
    stream_destroy = "dnnl_stream_destroy": fn(Handle) -> Status;
    attr_create = "dnnl_primitive_attr_create": fn(*mut Handle) -> Status;
    attr_destroy = "dnnl_primitive_attr_destroy": fn(Handle) -> Status;
    attr_scratchpad = "dnnl_primitive_attr_set_scratchpad_mode": fn(Handle, c_int) -> Status;
    attr_post_ops = "dnnl_primitive_attr_set_post_ops": fn(Handle, Handle) -> Status;
    post_ops_create = "dnnl_post_ops_create": fn(*mut Handle) -> Status;
    post_ops_sum = "dnnl_post_ops_append_sum": fn(Handle, f32, i32, c_int) -> Status;
    post_ops_destroy = "dnnl_post_ops_destroy": fn(Handle) -> Status;
    desc_strided = "dnnl_memory_desc_create_with_strides":
        fn(*mut Handle, c_int, *const Dims, c_int, *const Dims) -> Status;
    desc_tagged = "dnnl_memory_desc_create_with_tag":
        fn(*mut Handle, c_int, *const Dims, c_int, c_int) -> Status;
    desc_clone = "dnnl_memory_desc_clone": fn(*mut Handle, Handle) -> Status;
    desc_query = "dnnl_memory_desc_query": fn(Handle, c_int, *mut c_void) -> Status;
    desc_equal = "dnnl_memory_desc_equal": fn(Handle, Handle) -> c_int;
    desc_size = "dnnl_memory_desc_get_size": fn(Handle) -> usize;
    desc_destroy = "dnnl_memory_desc_destroy": fn(Handle) -> Status;
    memory_create = "dnnl_memory_create": fn(*mut Handle, Handle, Handle, *mut c_void) -> Status;
    memory_set = "dnnl_memory_set_data_handle": fn(Handle, *mut c_void) -> Status;
    memory_destroy = "dnnl_memory_destroy": fn(Handle) -> Status;
    pd_next = "dnnl_primitive_desc_next_impl": fn(Handle) -> Status;
    pd_query = "dnnl_primitive_desc_query": fn(Handle, c_int, c_int, *mut c_void) -> Status;
    pd_query_md = "dnnl_primitive_desc_query_md": fn(Handle, c_int, c_int) -> Handle;
    pd_destroy = "dnnl_primitive_desc_destroy": fn(Handle) -> Status;
    primitive_create = "dnnl_primitive_create": fn(*mut Handle, Handle) -> Status;
    primitive_execute = "dnnl_primitive_execute":
        fn(Handle, Handle, c_int, *const ExecArg) -> Status;
    primitive_destroy = "dnnl_primitive_destroy": fn(Handle) -> Status;
    reorder = "dnnl_reorder_primitive_desc_create":
        fn(*mut Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
    convolution = "dnnl_convolution_forward_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, c_int, Handle, Handle, Handle, Handle, *const Dims, *const Dims,
        *const Dims, *const Dims, Handle
    ) -> Status;
    convolution_data = "dnnl_convolution_backward_data_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, *const Dims, *const Dims, *const Dims,
        *const Dims, Handle, Handle
    ) -> Status;
    convolution_weights = "dnnl_convolution_backward_weights_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, Handle, *const Dims, *const Dims,
        *const Dims, *const Dims, Handle, Handle
    ) -> Status;
    pooling = "dnnl_pooling_forward_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, c_int, Handle, Handle, *const Dims, *const Dims, *const Dims,
        *const Dims, *const Dims, Handle
    ) -> Status;
    pooling_gradient = "dnnl_pooling_backward_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, Handle, Handle, *const Dims, *const Dims, *const Dims,
        *const Dims, *const Dims, Handle, Handle
    ) -> Status;
    eltwise = "dnnl_eltwise_forward_primitive_desc_create":
        fn(*mut Handle, Handle, c_int, c_int, Handle, Handle, f32, f32, Handle) -> Status;
    eltwise_gradient = "dnnl_eltwise_backward_primitive_desc_create":
        fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, f32, f32, Handle, Handle) -> Status;
    softmax = "dnnl_softmax_forward_primitive_desc_create":
        fn(*mut Handle, Handle, c_int, c_int, Handle, Handle, c_int, Handle) -> Status;
    softmax_gradient = "dnnl_softmax_backward_primitive_desc_create":
        fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, c_int, Handle, Handle) -> Status;
    layer_normalization = "dnnl_layer_normalization_forward_primitive_desc_create":
        fn(*mut Handle, Handle, c_int, Handle, Handle, Handle, f32, c_uint, Handle) -> Status;
    layer_normalization_gradient = "dnnl_layer_normalization_backward_primitive_desc_create": fn(
        *mut Handle, Handle, c_int, Handle, Handle, Handle, Handle, f32, c_uint, Handle, Handle
    ) -> Status;
    matmul = "dnnl_matmul_primitive_desc_create":
        fn(*mut Handle, Handle, Handle, Handle, Handle, Handle, Handle) -> Status;
    set_threads = "omp_set_num_threads": fn(c_int);
    max_threads = "omp_get_max_threads": fn() -> c_int;
    thread = "omp_get_thread_num": fn() -> c_int;
    parallel = "GOMP_parallel":
        fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);
}

/// Loads a file, or a name that the system's loader knows: its functions and version.
///
/// # Errors
/// `None` if the system's loader knows nothing of that name, otherwise what is wrong with it.
pub(crate) fn load(path: &Path) -> Result<(Api, Version), Option<String>> {
    // SAFETY: a published library, named by the user or found under its own name; its initializers
    // only set up its own state, and it is never unloaded.
    let library = match unsafe { libloading::Library::new(path) } {
        Ok(library) => library,
        Err(_) if path.components().count() == 1 => return Err(None),
        Err(error) => return Err(Some(error.to_string())),
    };
    let version = version(&library)?;
    Ok((table(library)?, version))
}

/// The version, if it is one whose interface this is.
fn version(library: &libloading::Library) -> Result<Version, String> {
    // SAFETY: the type is that of the C declaration of this function.
    let function = unsafe {
        library.get::<unsafe extern "C" fn() -> *const RawVersion>(b"dnnl_version".as_slice())
    };
    let function = function.map_err(|_| "it has no function `dnnl_version`".to_string())?;
    // SAFETY: no arguments; the answer is a constant of the library.
    let raw = unsafe { function().as_ref() }.ok_or("it doesn't say its version")?;
    let version = Version {
        major: raw.major,
        minor: raw.minor,
        patch: raw.patch,
    };
    // Versions before 3 have other structures, and another end of this one.
    if version.major != 3 {
        return Err(format!(
            "it is version {version}, whose interface differs from that of 3.x"
        ));
    }
    if raw.cpu_runtime != OPENMP {
        return Err("it was built without OpenMP, whose threads ours are".into());
    }
    Ok(version)
}
