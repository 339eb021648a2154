//! The parts of file handling that differ between operating systems: modes and owners, pipes, files without
//! names, and which file a path leads to.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// The folder that a path's last part lies in.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The most links that are followed from a path to its file; Linux follows as many.
const MOST_LINKS: usize = 40;

/// The path at the end of the chain of links that starts at a path's last part. No file needs to exist there.
pub(super) fn followed(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match path.symlink_metadata() {
            // A relative target starts at the link's folder; joining an absolute target replaces the whole
            // path.
            Ok(found) if found.is_symlink() => {
                path = folder(&path).join(path.read_link()?);
            }
            _ => return Ok(path),
        }
    }
    Err(io::Error::other("it leads through too many symbolic links"))
}

/// Identifies the file that a path leads to, through whatever names and links; for a file that doesn't exist
/// yet, the one that will be created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Identifies the file, or the folder of a file that doesn't exist yet.
    place: Place,
    /// The name in that folder of a file that doesn't exist yet.
    new: Option<OsString>,
}

/// Device and inode.
#[cfg(unix)]
type Place = (u64, u64);
#[cfg(not(unix))]
type Place = PathBuf;

impl FileIdentity {
    /// `None` if the path can't lead to a file, or leads to a device, which any number of outputs may share.
    pub fn of(path: &Path) -> Option<FileIdentity> {
        match path.metadata() {
            Ok(found) => Some(FileIdentity {
                place: place(path, &found).filter(|_| !is_device(&found))?,
                new: None,
            }),
            Err(_) => {
                let path = followed(path).ok()?;
                let folder = folder(&path);
                Some(FileIdentity {
                    place: place(folder, &folder.metadata().ok()?)?,
                    new: Some(path.file_name()?.to_owned()),
                })
            }
        }
    }
}

#[cfg(unix)]
fn place(_: &Path, found: &Metadata) -> Option<Place> {
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn place(path: &Path, _: &Metadata) -> Option<Place> {
    path.canonicalize().ok()
}

#[cfg(unix)]
fn is_device(found: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    found.file_type().is_char_device() || found.file_type().is_block_device()
}

#[cfg(not(unix))]
fn is_device(_: &Metadata) -> bool {
    false
}

/// Opens a device or a pipe for writing.
#[cfg(unix)]
pub(super) fn open_stream(path: &Path, found: &Metadata) -> io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::FileTypeExt;
    use std::time::{Duration, Instant};

    /// How long opening a pipe waits for a reader, which may still be starting up.
    const PATIENCE: Duration = Duration::from_secs(2);

    if found.file_type().is_block_device() {
        return Err(io::Error::other("it is a disk"));
    }
    let mut options = OpenOptions::new();
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    options.write(true).custom_flags(flags.bits().cast_signed());
    let started = Instant::now();
    let file = loop {
        match options.open(path) {
            // Nobody reads the pipe. A blocking open would wait for a reader forever.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                if !found.file_type().is_fifo() {
                    return Err(error);
                }
                if started.elapsed() > PATIENCE {
                    return Err(io::Error::other("it is a pipe that nobody reads"));
                }
                std::thread::sleep(PATIENCE / 100);
            }
            opened => break opened?,
        }
    };
    let flags = rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&file, flags)?;
    Ok(file)
}

#[cfg(not(unix))]
pub(super) fn open_stream(path: &Path, _: &Metadata) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Makes a new file without a name. Nobody may read it who couldn't read the file that it replaces. `None`
/// where files without names aren't supported.
#[cfg(target_os = "linux")]
pub(super) fn nameless(folder: &Path, replaced: Option<&Metadata>) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    // The file can get a name only through this folder.
    if !Path::new("/proc/self/fd").exists() {
        return None;
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode(replaced));
    rustix::fs::open(folder, flags, mode).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn nameless(_: &Path, _: Option<&Metadata>) -> Option<File> {
    None
}

/// Gives a name to a file without one.
#[cfg(target_os = "linux")]
pub(super) fn link(file: &File, name: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD};
    use std::os::fd::AsRawFd;
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(
        CWD,
        opened,
        CWD,
        name,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Makes a new file for writing, under a free name.
pub(super) fn create(name: &Path, replaced: Option<&Metadata>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    options.mode(mode(replaced));
    #[cfg(not(unix))]
    let _ = replaced;
    options.open(name)
}

/// The mode of a new file, before the user's mask applies.
#[cfg(unix)]
fn mode(replaced: Option<&Metadata>) -> u32 {
    replaced.map_or(0o666, |replaced| replaced.mode() & 0o666)
}

/// Gives a file the mode of the one that it replaces and, where permitted, its owner and group.
#[cfg(unix)]
pub(super) fn resemble(file: &File, replaced: &Metadata) -> io::Result<()> {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, fchown};
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (replaced.uid(), replaced.gid()) {
        // Only root may give a file away, but members of a group may keep the file in it.
        let kept = fchown(file, Some(replaced.uid()), Some(replaced.gid()));
        let _ = kept.or_else(|_| fchown(file, None, Some(replaced.gid())));
    }
    // The bits that run a program as its owner are dropped, because the owner may have changed.
    file.set_permissions(Permissions::from_mode(replaced.mode() & 0o777))
}

#[cfg(not(unix))]
pub(super) fn resemble(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Opens the regular file at a path, without following a link or waiting for a pipe.
pub(super) fn open_itself(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Whether a path leads to this very file.
#[cfg(unix)]
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let place = |found: Metadata| (found.dev(), found.ino());
    let opened = file.metadata().map(place).ok();
    opened.is_some() && opened == path.symlink_metadata().map(place).ok()
}

#[cfg(not(unix))]
pub(super) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}
