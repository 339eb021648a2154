//! The kernels as CUDA C: NVRTC compiles every program to PTX where its library is installed, GPU or not.

#![allow(unsafe_code, reason = "calls into a C library")]
#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use scrimp_graph::DType;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use super::source;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Handle,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
type Log = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;

/// The compiler's complaints; empty if there are none.
fn compile(library: &libloading::Library, text: &str) -> String {
    let text = CString::new(text).expect("no zeros");
    let options = [c"--gpu-architecture=compute_90", c"--fmad=false"].map(|option| option.as_ptr());
    let mut program = ptr::null_mut();
    let mut length = 0usize;
    // SAFETY: the types are those of the C declarations; strings end with zeros, and the log has room for what
    // the library says it has. The program stays until the process ends.
    unsafe {
        let create = library
            .get::<Create>(b"nvrtcCreateProgram")
            .expect("NVRTC has it");
        let compile = library
            .get::<Compile>(b"nvrtcCompileProgram")
            .expect("NVRTC has it");
        let size = library
            .get::<Size>(b"nvrtcGetProgramLogSize")
            .expect("NVRTC has it");
        let log = library
            .get::<Log>(b"nvrtcGetProgramLog")
            .expect("NVRTC has it");
        assert_eq!(
            create(
                &mut program,
                text.as_ptr(),
                ptr::null(),
                0,
                ptr::null(),
                ptr::null()
            ),
            0
        );
        if compile(program, 2, options.as_ptr()) == 0 {
            return String::new();
        }
        assert_eq!(size(program, &mut length), 0);
        let mut text = vec![0u8; length];
        assert_eq!(log(program, text.as_mut_ptr().cast()), 0);
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[test]
fn the_kernels_are_cuda_too() {
    let Some(path) = std::env::var_os("SCRIMP_NVRTC") else {
        println!("skipped: SCRIMP_NVRTC doesn't name NVRTC's library");
        return;
    };
    // SAFETY: NVIDIA's library; its initializers only set up its own state.
    let library = unsafe { libloading::Library::new(path) }.expect("it loads");
    for dtype in [DType::F32, DType::F64, DType::I64] {
        let complaints = compile(&library, &source(include_str!("prelude.cu"), dtype));
        assert!(complaints.is_empty(), "{dtype}: {complaints}");
    }
}
