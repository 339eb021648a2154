//! What the library's file, its wheel and the variable that points at it are called.

/// The environment variable that names the library's file or folder.
pub const VARIABLE: &str = "SCRIMP_ONEDNN";

/// The Python wheel that carries the library.
pub const WHEEL: &str = "onednn-cpu-gomp";

/// What the file is called.
pub const FILE_NAME: &str = if cfg!(target_os = "macos") {
    "libdnnl.3.dylib"
} else {
    "libdnnl.so.3"
};
