//! Puts a hash of this crate's sources and of how they are compiled into `SCRIMP_KERNELS`: seconds that were
//! measured with one build's kernels aren't another's.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=src");
    let folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut hash = Hash(0xcbf2_9ce4_8422_2325);
    for name in ["TARGET", "OPT_LEVEL", "CARGO_CFG_TARGET_FEATURE"] {
        hash.add(env::var(name).unwrap_or_default().as_bytes());
    }
    add_folder(&mut hash, &folder.join("src"))?;
    println!("cargo:rustc-env=SCRIMP_KERNELS={:016x}", hash.0);
    Ok(())
}

/// Everything in a folder, in an order that is the same everywhere.
fn add_folder(hash: &mut Hash, folder: &Path) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    for path in paths {
        hash.add(path.file_name().unwrap_or_default().as_encoded_bytes());
        if path.is_dir() {
            add_folder(hash, &path)?;
        } else {
            hash.add(&fs::read(&path)?);
        }
    }
    Ok(())
}

/// Fowler, Noll and Vo's, 64 bits.
struct Hash(u64);

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len().to_le_bytes();
        for &byte in bytes.iter().chain(&length) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
