//! Compiled programs that are kept on disk.

use std::fs;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The file of a program, by everything that it depends on.
pub(crate) fn file_name(of: &[&str], extension: &str) -> PathBuf {
    let all = of.join("\0");
    format!("{:016x}.{extension}", xxh3_64(all.as_bytes())).into()
}

/// Writes a compiled program, after its checksum, beside its place and moves it there whole. A folder that can't be
/// written costs only time.
pub(crate) fn keep(file: &Path, binary: &[u8]) {
    let beside = file.with_extension(format!("{}.part", std::process::id()));
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&beside, [&xxh3_64(binary).to_le_bytes(), binary].concat()))
        .and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
}

/// The program that was kept in a file, if it is there and whole: drivers trust what they load.
pub(crate) fn kept(file: &Path) -> Option<Vec<u8>> {
    let all = fs::read(file).ok()?;
    let (sum, binary) = all.split_first_chunk()?;
    (u64::from_le_bytes(*sum) == xxh3_64(binary)).then(|| binary.to_vec())
}
