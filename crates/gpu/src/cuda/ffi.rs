//! The functions of the driver and of NVRTC that are used, and the numbers of their constants.

#![allow(unsafe_code, reason = "types of C functions")]

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) type Status = c_int;
/// Any of the libraries' objects: each has its own opaque type in C.
pub(crate) type Handle = *mut c_void;
/// An address in a device's memory.
pub(crate) type Address = u64;

/// `CUDA_SUCCESS`, and the errors that mean something to us.
pub(crate) const SUCCESS: Status = 0;
pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_INITIALIZED: Status = 3;
pub(crate) const NO_DEVICE: Status = 100;
pub(crate) const NOT_READY: Status = 600;
/// What the driver says of a device that it gave up on: unavailable, an error of its memory, an illegal address or
/// instruction, a kernel that took too long or failed, an error of the hardware.
pub(crate) const LOST: [Status; 13] = [
    46, 214, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719,
];

/// `CU_DEVICE_ATTRIBUTE_…`
pub(crate) const MAX_THREADS_PER_BLOCK: c_int = 1;
pub(crate) const MAX_SHARED_MEMORY_PER_BLOCK: c_int = 8;
pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
pub(crate) const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub(crate) const COMPUTE_CAPABILITY_MINOR: c_int = 76;
/// `CU_STREAM_NON_BLOCKING`: beside the default stream, which is never used.
pub(crate) const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`: whoever waits sleeps.
pub(crate) const BLOCKING_SYNC: c_uint = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `CU_MEMHOSTALLOC_PORTABLE`: for every context.
pub(crate) const PORTABLE: c_uint = 1;

pub(crate) mod driver {
    use super::{Address, Handle, Status, c_char, c_int, c_uint, c_void};
    use crate::loading::functions;

    functions! {
        init = "cuInit": fn(c_uint) -> Status;
        version = "cuDriverGetVersion": fn(*mut c_int) -> Status;
        count = "cuDeviceGetCount": fn(*mut c_int) -> Status;
        device = "cuDeviceGet": fn(*mut c_int, c_int) -> Status;
        name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int) -> Status;
        memory = "cuDeviceTotalMem_v2": fn(*mut usize, c_int) -> Status;
        attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int) -> Status;
        retain = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int) -> Status;
        release = "cuDevicePrimaryCtxRelease_v2": fn(c_int) -> Status;
        set_current = "cuCtxSetCurrent": fn(Handle) -> Status;
        allocate = "cuMemAlloc_v2": fn(*mut Address, usize) -> Status;
        free = "cuMemFree_v2": fn(Address) -> Status;
        allocate_host = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Status;
        free_host = "cuMemFreeHost": fn(*mut c_void) -> Status;
        register = "cuMemHostRegister_v2": fn(*mut c_void, usize, c_uint) -> Status;
        unregister = "cuMemHostUnregister": fn(*mut c_void) -> Status;
        write = "cuMemcpyHtoDAsync_v2": fn(Address, *const c_void, usize, Handle) -> Status;
        read = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, Address, usize, Handle) -> Status;
        fill = "cuMemsetD8Async": fn(Address, u8, usize, Handle) -> Status;
        create_stream = "cuStreamCreate": fn(*mut Handle, c_uint) -> Status;
        destroy_stream = "cuStreamDestroy_v2": fn(Handle) -> Status;
        finish = "cuStreamSynchronize": fn(Handle) -> Status;
        wait_event = "cuStreamWaitEvent": fn(Handle, Handle, c_uint) -> Status;
        create_event = "cuEventCreate": fn(*mut Handle, c_uint) -> Status;
        destroy_event = "cuEventDestroy_v2": fn(Handle) -> Status;
        record = "cuEventRecord": fn(Handle, Handle) -> Status;
        query = "cuEventQuery": fn(Handle) -> Status;
        synchronize = "cuEventSynchronize": fn(Handle) -> Status;
        elapsed = "cuEventElapsedTime": fn(*mut f32, Handle, Handle) -> Status;
        load_module = "cuModuleLoadData": fn(*mut Handle, *const c_void) -> Status;
        unload_module = "cuModuleUnload": fn(Handle) -> Status;
        function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char) -> Status;
        launch = "cuLaunchKernel": fn(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
            *mut *mut c_void, *mut *mut c_void
        ) -> Status;
    }
}

pub(crate) mod nvrtc {
    use super::{Handle, Status, c_char, c_int};
    use crate::loading::functions;

    functions! {
        count_architectures = "nvrtcGetNumSupportedArchs": fn(*mut c_int) -> Status;
        architectures = "nvrtcGetSupportedArchs": fn(*mut c_int) -> Status;
        create = "nvrtcCreateProgram": fn(
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> Status;
        destroy = "nvrtcDestroyProgram": fn(*mut Handle) -> Status;
        compile = "nvrtcCompileProgram": fn(Handle, c_int, *const *const c_char) -> Status;
        log_size = "nvrtcGetProgramLogSize": fn(Handle, *mut usize) -> Status;
        log = "nvrtcGetProgramLog": fn(Handle, *mut c_char) -> Status;
        code_size = "nvrtcGetCUBINSize": fn(Handle, *mut usize) -> Status;
        code = "nvrtcGetCUBIN": fn(Handle, *mut c_char) -> Status;
        portable_size = "nvrtcGetPTXSize": fn(Handle, *mut usize) -> Status;
        portable = "nvrtcGetPTX": fn(Handle, *mut c_char) -> Status;
    }
}

/// `CUDNN_TENSOR_NCHW`, `CUDNN_DATA_FLOAT`, `CUDNN_CROSS_CORRELATION`
pub(crate) const CHANNELS_FIRST: c_int = 0;
pub(crate) const DNN_FLOAT: c_int = 0;
pub(crate) const CROSS_CORRELATION: c_int = 1;
/// `CUDNN_DEFAULT_MATH`, `CUDNN_FMA_MATH`
pub(crate) const DEFAULT_MATH: c_int = 0;
pub(crate) const FMA_MATH: c_int = 3;

/// `cudnnConvolutionFwdAlgoPerf_t`, and those of the gradients.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Performance {
    pub algorithm: c_int,
    pub status: Status,
    pub time: f32,
    pub memory: usize,
    pub deterministic: c_int,
    pub math: c_int,
    reserved: [c_int; 3],
}

/// A function that convolves: factor, two tensors with their descriptors, the convolution, the algorithm, its
/// workspace, factor and descriptor of the result, the result.
pub(crate) type Convolve = unsafe extern "C" fn(
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    *const c_void,
    Handle,
    c_int,
    *mut c_void,
    usize,
    *const c_void,
    Handle,
    *mut c_void,
) -> Status;

/// A function that lists algorithms, the one first that it thinks fastest.
pub(crate) type Algorithms = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Handle,
    Handle,
    c_int,
    *mut c_int,
    *mut Performance,
) -> Status;

pub(crate) mod cudnn {
    use super::{Handle, Performance, Status, c_int, c_void};
    use crate::loading::functions;

    functions! {
        version = "cudnnGetVersion": fn() -> usize;
        create = "cudnnCreate": fn(*mut Handle) -> Status;
        destroy = "cudnnDestroy": fn(Handle) -> Status;
        set_stream = "cudnnSetStream": fn(Handle, Handle) -> Status;
        create_tensor = "cudnnCreateTensorDescriptor": fn(*mut Handle) -> Status;
        set_tensor = "cudnnSetTensor4dDescriptor":
            fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int) -> Status;
        destroy_tensor = "cudnnDestroyTensorDescriptor": fn(Handle) -> Status;
        create_filter = "cudnnCreateFilterDescriptor": fn(*mut Handle) -> Status;
        set_filter = "cudnnSetFilter4dDescriptor":
            fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int) -> Status;
        destroy_filter = "cudnnDestroyFilterDescriptor": fn(Handle) -> Status;
        create_convolution = "cudnnCreateConvolutionDescriptor": fn(*mut Handle) -> Status;
        set_convolution = "cudnnSetConvolution2dDescriptor": fn(
            Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
        ) -> Status;
        set_groups = "cudnnSetConvolutionGroupCount": fn(Handle, c_int) -> Status;
        set_math = "cudnnSetConvolutionMathType": fn(Handle, c_int) -> Status;
        destroy_convolution = "cudnnDestroyConvolutionDescriptor": fn(Handle) -> Status;
        forward_algorithms = "cudnnGetConvolutionForwardAlgorithm_v7": fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut Performance
        ) -> Status;
        input_algorithms = "cudnnGetConvolutionBackwardDataAlgorithm_v7": fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut Performance
        ) -> Status;
        weight_algorithms = "cudnnGetConvolutionBackwardFilterAlgorithm_v7": fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut Performance
        ) -> Status;
        forward = "cudnnConvolutionForward": fn(
            Handle, *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, c_int, *mut c_void, usize,
            *const c_void, Handle, *mut c_void
        ) -> Status;
        input_gradient = "cudnnConvolutionBackwardData": fn(
            Handle, *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, c_int, *mut c_void, usize,
            *const c_void, Handle, *mut c_void
        ) -> Status;
        weight_gradient = "cudnnConvolutionBackwardFilter": fn(
            Handle, *const c_void, Handle, *const c_void, Handle, *const c_void, Handle, c_int, *mut c_void, usize,
            *const c_void, Handle, *mut c_void
        ) -> Status;
        add = "cudnnAddTensor": fn(
            Handle, *const c_void, Handle, *const c_void, *const c_void, Handle, *mut c_void
        ) -> Status;
    }
}

/// `CUDA_R_32F`, `CUBLAS_COMPUTE_32F`
pub(crate) const FLOAT: c_int = 0;
pub(crate) const COMPUTE_IN_FLOATS: c_int = 68;
/// `CUBLASLT_MATMUL_DESC_…`
pub(crate) const TRANSPOSE_A: c_int = 3;
pub(crate) const TRANSPOSE_B: c_int = 4;
pub(crate) const EPILOGUE: c_int = 7;
pub(crate) const BIAS_POINTER: c_int = 8;
/// `CUBLASLT_EPILOGUE_BIAS`
pub(crate) const EPILOGUE_BIAS: u32 = 4;
/// `CUBLASLT_MATRIX_LAYOUT_…`
pub(crate) const BATCH_COUNT: c_int = 5;
pub(crate) const BATCH_STEP: c_int = 6;
/// `CUBLASLT_MATMUL_PREF_…`, the last four for A, B, C and D.
pub(crate) const MOST_WORKSPACE: c_int = 1;
pub(crate) const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    pub algorithm: [u64; 8],
    pub workspace: usize,
    pub state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

pub(crate) mod cublaslt {
    use super::{Found, Handle, Status, c_int, c_void};
    use crate::loading::functions;

    functions! {
        version = "cublasLtGetVersion": fn() -> usize;
        create = "cublasLtCreate": fn(*mut Handle) -> Status;
        destroy = "cublasLtDestroy": fn(Handle) -> Status;
        create_product = "cublasLtMatmulDescCreate": fn(*mut Handle, c_int, c_int) -> Status;
        set_product = "cublasLtMatmulDescSetAttribute": fn(Handle, c_int, *const c_void, usize) -> Status;
        destroy_product = "cublasLtMatmulDescDestroy": fn(Handle) -> Status;
        create_layout = "cublasLtMatrixLayoutCreate": fn(*mut Handle, c_int, u64, u64, i64) -> Status;
        set_layout = "cublasLtMatrixLayoutSetAttribute": fn(Handle, c_int, *const c_void, usize) -> Status;
        destroy_layout = "cublasLtMatrixLayoutDestroy": fn(Handle) -> Status;
        create_preference = "cublasLtMatmulPreferenceCreate": fn(*mut Handle) -> Status;
        set_preference = "cublasLtMatmulPreferenceSetAttribute":
            fn(Handle, c_int, *const c_void, usize) -> Status;
        destroy_preference = "cublasLtMatmulPreferenceDestroy": fn(Handle) -> Status;
        algorithms = "cublasLtMatmulAlgoGetHeuristic": fn(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int
        ) -> Status;
        multiply = "cublasLtMatmul": fn(
            Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void,
            *const c_void, Handle, *mut c_void, Handle, *const [u64; 8], *mut c_void, usize, Handle
        ) -> Status;
    }
}
