//! Output files: what each kind of path becomes when something is written to it.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use scrimp_plan::file::{FileIdentity, Output, open_regular, write_bytes};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn folder() -> (TempDir, impl Fn(&str) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, move |name: &str| path.join(name))
}

fn fifo(path: &Path) {
    use rustix::fs::{CWD, Mode, mkfifoat};
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
}

fn refusal(path: &Path) -> String {
    Output::claim(path).unwrap_err().to_string()
}

#[test]
fn a_file_keeps_its_mode_and_a_new_one_has_the_usual() {
    let (_folder, at) = folder();
    fs::write(at("usual"), "").unwrap();
    write_bytes(&at("new"), b"new").unwrap();
    let mode = |name: &str| fs::metadata(at(name)).unwrap().mode();
    assert_eq!(mode("new"), mode("usual"));
    fs::set_permissions(at("new"), Permissions::from_mode(0o640)).unwrap();
    write_bytes(&at("new"), b"again").unwrap();
    assert_eq!(mode("new") & 0o7777, 0o640);
    assert_eq!(fs::read(at("new")).unwrap(), b"again");
}

#[test]
fn links_stay_and_lead_to_what_was_written() {
    let (_folder, at) = folder();
    fs::create_dir(at("runs")).unwrap();
    fs::write(at("runs/first"), "old").unwrap();
    symlink("runs/first", at("latest")).unwrap();
    symlink(at("latest"), at("link")).unwrap();
    write_bytes(&at("link"), b"whole").unwrap();
    assert!(at("link").is_symlink() && at("latest").is_symlink());
    assert_eq!(fs::read(at("runs/first")).unwrap(), b"whole");
    // Nothing needs to be there yet.
    symlink("runs/second", at("next")).unwrap();
    write_bytes(&at("next"), b"new").unwrap();
    assert_eq!(fs::read(at("runs/second")).unwrap(), b"new");
    symlink("loop", at("loop")).unwrap();
    refusal(&at("loop"));
}

#[test]
fn devices_are_written_through() {
    write_bytes(Path::new("/dev/null"), b"nothing").unwrap();
    let found = fs::metadata("/dev/null").unwrap();
    assert!(found.file_type().is_char_device());
    #[cfg(target_os = "linux")]
    assert!(write_bytes(Path::new("/dev/full"), b"too much").is_err());
}

#[test]
fn a_pipe_is_written_through_if_somebody_reads_it() {
    let (_folder, at) = folder();
    fifo(&at("pipe"));
    assert_eq!(refusal(&at("pipe")), "it is a pipe that nobody reads");
    // Opened so that it doesn't wait for the writer.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut reader = File::options();
    let mut reader = reader
        .read(true)
        .custom_flags(nonblock)
        .open(at("pipe"))
        .unwrap();
    let output = Output::claim(&at("pipe")).unwrap();
    output.write(b"a plan").unwrap();
    drop(output);
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "a plan");
    assert!(fs::metadata(at("pipe")).unwrap().file_type().is_fifo());
}

#[test]
fn what_may_not_be_written_is_refused() {
    let (folder, at) = folder();
    fs::write(at("kept"), "kept").unwrap();
    fs::set_permissions(at("kept"), Permissions::from_mode(0o444)).unwrap();
    assert_eq!(refusal(&at("kept")), "it is a read-only file");
    assert_eq!(refusal(folder.path()), "it is a folder");
    refusal(&at("no/such/folder"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_fails_half_way_leaves_the_old_file() {
    let (folder, at) = folder();
    fs::write(at("weights"), "old").unwrap();
    let output = Output::claim(&at("weights")).unwrap();
    let failed = output.write_with(|out| {
        out.write_all(&[1; 1 << 20])?;
        Err(std::io::Error::other("no more"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no more");
    assert_eq!(fs::read(at("weights")).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// What lies in the folder while an output is written is what a killed process leaves behind.
#[test]
#[cfg(target_os = "linux")]
fn nothing_lies_beside_an_output_while_it_is_written() {
    let (folder, at) = folder();
    let output = Output::claim(&at("weights")).unwrap();
    output
        .write_with(|out| {
            out.write_all(&[1; 1 << 20])?;
            let beside = fs::read_dir(folder.path())?.count();
            assert_eq!(beside, 0, "a kill would leave it behind");
            Ok(())
        })
        .unwrap();
    assert_eq!(fs::metadata(at("weights")).unwrap().len(), 1 << 20);
}

#[test]
fn files_are_the_same_by_whatever_name() {
    let (_folder, at) = folder();
    fs::create_dir(at("runs")).unwrap();
    fs::write(at("model"), "").unwrap();
    fs::hard_link(at("model"), at("runs/hard")).unwrap();
    symlink(at("model"), at("soft")).unwrap();
    let identity = |name: &str| FileIdentity::of(&at(name)).unwrap();
    for other in ["runs/hard", "soft", "runs/../model"] {
        assert_eq!(identity("model"), identity(other), "{other}");
    }
    assert_ne!(identity("model"), identity("new"));
    assert_eq!(identity("new"), identity("runs/../new"));
    symlink("new", at("dangling")).unwrap();
    assert_eq!(identity("new"), identity("dangling"));
    assert_ne!(identity("new"), identity("runs/new"));
    assert!(FileIdentity::of(Path::new("/dev/null")).is_none());
}

#[test]
fn only_regular_files_are_opened_where_an_end_is_needed() {
    let (_folder, at) = folder();
    fifo(&at("pipe"));
    fs::write(at("file"), "12345").unwrap();
    assert_eq!(open_regular(&at("file")).unwrap().1, 5);
    for path in [at("pipe"), at(""), "/dev/zero".into()] {
        let error = open_regular(&path).unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
    }
}
