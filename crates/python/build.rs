//! Lets the extension module be linked without libpython where the linker must be told so (macOS).

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
