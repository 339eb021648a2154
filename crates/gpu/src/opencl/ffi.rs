//! The functions of OpenCL's C interface that are used, and the numbers of its constants.

#![allow(unsafe_code, reason = "types of C functions")]

use std::ffi::{c_char, c_void};

use crate::loading::functions;

pub(crate) type Status = i32;
/// Any of the library's objects: each has its own opaque type in C.
pub(crate) type Handle = *mut c_void;

/// `CL_SUCCESS`, and the errors that mean something to us.
pub(crate) const SUCCESS: Status = 0;
pub(crate) const DEVICE_NOT_FOUND: Status = -1;
pub(crate) const DEVICE_NOT_AVAILABLE: Status = -2;
pub(crate) const MEM_OBJECT_ALLOCATION_FAILURE: Status = -4;
pub(crate) const OUT_OF_RESOURCES: Status = -5;
pub(crate) const OUT_OF_HOST_MEMORY: Status = -6;
pub(crate) const BUILD_PROGRAM_FAILURE: Status = -11;
pub(crate) const FAILED_IN_WAIT_LIST: Status = -14;
pub(crate) const INVALID_BUFFER_SIZE: Status = -61;
/// `CL_PLATFORM_NOT_FOUND_KHR`: the loader is there, but no driver.
pub(crate) const PLATFORM_NOT_FOUND: Status = -1001;

/// `CL_PLATFORM_…`
pub(crate) const PLATFORM_NAME: u32 = 0x0902;
/// `CL_DEVICE_…`
pub(crate) const DEVICE_TYPE: u32 = 0x1000;
pub(crate) const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub(crate) const DEVICE_MAX_WORK_GROUP_SIZE: u32 = 0x1004;
pub(crate) const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub(crate) const DEVICE_MEM_BASE_ADDR_ALIGN: u32 = 0x1019;
pub(crate) const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101f;
pub(crate) const DEVICE_LOCAL_MEM_SIZE: u32 = 0x1023;
pub(crate) const DEVICE_ENDIAN_LITTLE: u32 = 0x1026;
pub(crate) const DEVICE_AVAILABLE: u32 = 0x1027;
pub(crate) const DEVICE_COMPILER_AVAILABLE: u32 = 0x1028;
pub(crate) const DEVICE_NAME: u32 = 0x102b;
pub(crate) const DEVICE_VENDOR: u32 = 0x102c;
pub(crate) const DRIVER_VERSION: u32 = 0x102d;
pub(crate) const DEVICE_VERSION: u32 = 0x102f;
pub(crate) const DEVICE_DOUBLE_FP_CONFIG: u32 = 0x1032;
/// `CL_DEVICE_TYPE_…`
pub(crate) const TYPE_CPU: u64 = 1 << 1;
pub(crate) const TYPE_GPU: u64 = 1 << 2;
pub(crate) const TYPE_ALL: u64 = 0xffff_ffff;
/// `CL_QUEUE_PROFILING_ENABLE`
pub(crate) const QUEUE_PROFILING: u64 = 1 << 1;
/// `CL_MEM_READ_WRITE`
pub(crate) const MEM_READ_WRITE: u64 = 1;
/// `CL_PROGRAM_…`
pub(crate) const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub(crate) const PROGRAM_BINARIES: u32 = 0x1166;
pub(crate) const PROGRAM_BUILD_LOG: u32 = 0x1183;
/// `CL_PROFILING_COMMAND_…`
pub(crate) const PROFILING_START: u32 = 0x1282;
pub(crate) const PROFILING_END: u32 = 0x1283;

functions! {
    platforms = "clGetPlatformIDs": fn(u32, *mut Handle, *mut u32) -> Status;
    platform_info = "clGetPlatformInfo":
        fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    devices = "clGetDeviceIDs": fn(Handle, u64, u32, *mut Handle, *mut u32) -> Status;
    device_info = "clGetDeviceInfo": fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    create_context = "clCreateContext":
        fn(*const isize, u32, *const Handle, *const c_void, *mut c_void, *mut Status) -> Handle;
    release_context = "clReleaseContext": fn(Handle) -> Status;
    create_queue = "clCreateCommandQueue": fn(Handle, Handle, u64, *mut Status) -> Handle;
    release_queue = "clReleaseCommandQueue": fn(Handle) -> Status;
    create_buffer = "clCreateBuffer": fn(Handle, u64, usize, *mut c_void, *mut Status) -> Handle;
    release_buffer = "clReleaseMemObject": fn(Handle) -> Status;
    program_with_source = "clCreateProgramWithSource":
        fn(Handle, u32, *const *const c_char, *const usize, *mut Status) -> Handle;
    program_with_binary = "clCreateProgramWithBinary": fn(
        Handle, u32, *const Handle, *const usize, *const *const u8, *mut Status, *mut Status
    ) -> Handle;
    build_program = "clBuildProgram":
        fn(Handle, u32, *const Handle, *const c_char, *const c_void, *mut c_void) -> Status;
    build_info = "clGetProgramBuildInfo":
        fn(Handle, Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    program_info = "clGetProgramInfo": fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    release_program = "clReleaseProgram": fn(Handle) -> Status;
    create_kernel = "clCreateKernel": fn(Handle, *const c_char, *mut Status) -> Handle;
    set_argument = "clSetKernelArg": fn(Handle, u32, usize, *const c_void) -> Status;
    release_kernel = "clReleaseKernel": fn(Handle) -> Status;
    launch = "clEnqueueNDRangeKernel": fn(
        Handle, Handle, u32, *const usize, *const usize, *const usize, u32, *const Handle, *mut Handle
    ) -> Status;
    read = "clEnqueueReadBuffer": fn(
        Handle, Handle, u32, usize, usize, *mut c_void, u32, *const Handle, *mut Handle
    ) -> Status;
    write = "clEnqueueWriteBuffer": fn(
        Handle, Handle, u32, usize, usize, *const c_void, u32, *const Handle, *mut Handle
    ) -> Status;
    fill = "clEnqueueFillBuffer": fn(
        Handle, Handle, *const c_void, usize, usize, usize, u32, *const Handle, *mut Handle
    ) -> Status;
    flush = "clFlush": fn(Handle) -> Status;
    finish = "clFinish": fn(Handle) -> Status;
    wait = "clWaitForEvents": fn(u32, *const Handle) -> Status;
    profiling = "clGetEventProfilingInfo":
        fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
    release_event = "clReleaseEvent": fn(Handle) -> Status;
}
