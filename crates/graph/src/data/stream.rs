//! Arrays that stay in their file. What a batch needs of them is read when it is needed, so they may be larger than
//! memory.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use super::contents::Contents;
use super::npz::{Kind, NpzError};
use super::tiff::Picture;

/// Bytes that are read at a time. They lie on the stack, so reading takes no other memory.
const PIECE: usize = 1 << 13;

/// An array in a file, and which of its rows are the current batch. A row is all that has the same index in the first
/// axis. Clones are of one array and have one batch.
#[derive(Clone)]
pub struct Stream(Arc<Inner>, Batch);

/// The rows of a batch; none before one is selected: then rows are those of the file.
type Batch = Arc<RwLock<Vec<usize>>>;

struct Inner {
    path: PathBuf,
    source: Source,
    shape: Vec<usize>,
}

enum Source {
    /// Elements in row order, from a place in a file on.
    Plain {
        file: Arc<File>,
        start: u64,
        kind: Kind,
    },
    Tiff(Box<Mutex<Picture>>),
}

impl Stream {
    /// An array with at least one axis, all of whose elements are in the file from `start` on. Its first batch is its first
    /// rows.
    pub(super) fn plain(
        path: &Path,
        file: Arc<File>,
        start: u64,
        kind: Kind,
        shape: Vec<usize>,
    ) -> Stream {
        Stream::new(path, Source::Plain { file, start, kind }, shape)
    }

    /// The first image of a TIFF file, as the only row of an array.
    ///
    /// # Errors
    /// Those of [`Picture::new`].
    pub(super) fn tiff(path: &Path, file: File) -> Result<(Stream, Vec<usize>), String> {
        let picture = Picture::new(file)?;
        let shape = picture.shape();
        let source = Source::Tiff(Box::new(Mutex::new(picture)));
        Ok((Stream::new(path, source, shape.clone()), shape))
    }

    fn new(path: &Path, source: Source, shape: Vec<usize>) -> Stream {
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            source,
            shape,
        });
        Stream(inner, Batch::default())
    }

    /// Number of elements in the file.
    pub(super) fn len(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Makes these rows the current batch.
    pub(super) fn select(&self, rows: &[usize]) {
        let mut batch = self.1.write().unwrap_or_else(PoisonError::into_inner);
        batch.clear();
        batch.extend_from_slice(rows);
    }

    /// The same array with a batch of its own.
    pub(super) fn selected(&self, rows: &[usize]) -> Stream {
        Stream(self.0.clone(), Arc::new(RwLock::new(rows.to_vec())))
    }

    /// All elements of the file as integers; `None` if they are floating-point numbers.
    ///
    /// # Errors
    /// If the file can't be read, or they take more than `room` bytes of memory.
    pub(super) fn ints(&self, room: u64) -> Result<Option<Vec<i64>>, NpzError> {
        let Source::Plain { file, start, kind } = &self.0.source else {
            return Ok(None);
        };
        if kind.is_float() {
            return Ok(None);
        }
        let named = |reason| self.wrong(reason);
        let needed = 8 * self.len() as u64;
        if needed > room {
            let shape = &self.0.shape;
            return Err(named(format!(
                "shape {shape:?} takes {needed} bytes of memory, but only {room} are left"
            )));
        }
        let mut contents = Contents::Ints(Vec::with_capacity(self.len()));
        let mut bytes = [0; PIECE];
        let each = PIECE / kind.bytes() as usize;
        for first in (0..self.len()).step_by(each) {
            let count = each.min(self.len() - first);
            let bytes = &mut bytes[..count * kind.bytes() as usize];
            let at = start + first as u64 * kind.bytes();
            read_exact_at(file, bytes, at).map_err(|source| self.unread(source))?;
            kind.decode(bytes, &mut contents).map_err(named)?;
        }
        match contents {
            Contents::Ints(ints) => Ok(Some(ints)),
            _ => Ok(None),
        }
    }

    fn wrong(&self, reason: String) -> NpzError {
        NpzError::Format {
            path: self.0.path.clone(),
            reason,
        }
    }

    fn unread(&self, source: io::Error) -> NpzError {
        NpzError::Io {
            path: self.0.path.clone(),
            source,
        }
    }

    /// Fills `into` with elements of the current batch, in row order, from this one on.
    ///
    /// # Errors
    /// If the file can't be read, or has become shorter.
    ///
    /// # Panics
    /// The batch has fewer elements.
    pub fn read_from(&self, first: usize, into: &mut [f32]) -> Result<(), NpzError> {
        let row: usize = self.0.shape[1..].iter().product();
        let width = self.0.shape.last().copied().unwrap_or(1);
        let batch = self.batch();
        let mut done = 0;
        while done < into.len() {
            let (index, within) = ((first + done) / row, (first + done) % row);
            let end = match &self.0.source {
                Source::Plain { .. } => done + row - within,
                Source::Tiff(_) => done + width - within % width,
            };
            let piece = done..end.min(into.len());
            done = piece.end;
            let piece = &mut into[piece];
            match &self.0.source {
                Source::Plain { file, start, kind } => {
                    let first = self.row(&batch, index) * row + within;
                    self.elements(file, *start, *kind, first, piece, &|x| x)?;
                }
                Source::Tiff(picture) => {
                    let (line, x) = (within / width, within % width);
                    let height = self.0.shape[2];
                    let start = [line / height, line % height, x];
                    self.part(picture, &start, &[1, 1, piece.len()], piece, &|x| x)?;
                }
            }
        }
        Ok(())
    }

    /// The row of the file that is this one of a batch; the last one fills a batch that has more rows.
    fn row(&self, batch: &[usize], index: usize) -> usize {
        let row = batch.get(index).copied().unwrap_or(index);
        row.min(self.0.shape[0].saturating_sub(1))
    }

    /// Rows of the current batch.
    fn batch(&self) -> RwLockReadGuard<'_, Vec<usize>> {
        self.1.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `into`, a tensor of this shape in row order, with a box of the current batch that begins at `start`.
    ///
    /// # Errors
    /// If the file can't be read, or has become shorter.
    ///
    /// # Panics
    /// The box isn't in the batch, or `into` has another size.
    pub fn read<T>(
        &self,
        start: &[usize],
        shape: &[usize],
        into: &mut [T],
        convert: impl Fn(f32) -> T,
    ) -> Result<(), NpzError> {
        let whole = &self.0.shape;
        let (file, begin, kind) = match &self.0.source {
            Source::Plain { file, start, kind } => (file, *start, *kind),
            Source::Tiff(picture) => {
                let each: usize = shape[1..].iter().product();
                let mut images = into.chunks_exact_mut(each.max(1));
                return images.try_for_each(|image| {
                    self.part(picture, &start[1..], &shape[1..], image, &convert)
                });
            }
        };
        // Elements that lie together: those of the last axes that are taken as a whole, and of one axis before them.
        let mut first = shape.len();
        while first > 1 && (first == shape.len() || shape[first] == whole[first]) {
            first -= 1;
        }
        let piece: usize = shape[first..].iter().product();
        let row: usize = whole[1..].iter().product();
        let batch = self.batch();
        for (number, piece) in into.chunks_exact_mut(piece.max(1)).enumerate() {
            let (mut rest, mut at, mut stride) = (number, 0, 1);
            for axis in (1..shape.len()).rev() {
                let index = match axis >= first {
                    true => 0,
                    false => rest % shape[axis],
                };
                if axis < first {
                    rest /= shape[axis];
                }
                at += (start[axis] + index) * stride;
                stride *= whole[axis];
            }
            at += self.row(&batch, start[0] + rest) * row;
            self.elements(file, begin, kind, at, piece, &convert)?;
        }
        Ok(())
    }

    /// A box of an image.
    fn part<T>(
        &self,
        picture: &Mutex<Picture>,
        start: &[usize],
        shape: &[usize],
        into: &mut [T],
        convert: &impl Fn(f32) -> T,
    ) -> Result<(), NpzError> {
        let mut picture = picture.lock().unwrap_or_else(PoisonError::into_inner);
        let read = picture.read(start, shape, into, convert);
        read.map_err(|reason| self.wrong(reason))
    }

    /// The elements from this one on.
    fn elements<T>(
        &self,
        file: &File,
        start: u64,
        kind: Kind,
        first: usize,
        into: &mut [T],
        convert: &impl Fn(f32) -> T,
    ) -> Result<(), NpzError> {
        let mut bytes = [0; PIECE];
        let mut at = start + first as u64 * kind.bytes();
        for piece in into.chunks_mut(PIECE / kind.bytes() as usize) {
            let bytes = &mut bytes[..piece.len() * kind.bytes() as usize];
            read_exact_at(file, bytes, at).map_err(|source| self.unread(source))?;
            at += bytes.len() as u64;
            let mut places = piece.iter_mut();
            kind.floats(bytes, |x| {
                if let Some(place) = places.next() {
                    *place = convert(x);
                }
            });
        }
        Ok(())
    }
}

/// Fills `bytes` from this place in a file on. Others may read the file at the same time.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, at);
    #[cfg(not(unix))]
    {
        use std::io::{Read, Seek, SeekFrom};
        // A clone has the same place in the file, so only one may read at a time.
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = file;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    }
}

/// The same array of the same opened file, with the same batch.
impl PartialEq for Stream {
    fn eq(&self, other: &Stream) -> bool {
        Arc::ptr_eq(&self.0, &other.0) && Arc::ptr_eq(&self.1, &other.1)
    }
}

/// What reading costs: it depends on how elements are stored and not on the file.
impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.0.shape;
        match &self.0.source {
            Source::Plain { kind, .. } => write!(f, "{kind:?}{shape:?}"),
            Source::Tiff(picture) => {
                let picture = picture.lock().unwrap_or_else(PoisonError::into_inner);
                write!(f, "tiff {:?}{shape:?}", picture.signature())
            }
        }
    }
}
