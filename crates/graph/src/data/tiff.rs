//! TIFF images as arrays of shape `[1, channels, height, width]`, of which only what is wanted is decoded.

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use tiff::ColorType;
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;

/// The most bytes of decoded strips or tiles that are kept.
const KEPT_BYTES: usize = 1 << 26;

/// The first image of a file.
pub(super) struct Picture {
    decoder: Decoder<BufReader<File>>,
    height: usize,
    width: usize,
    channels: usize,
    bytes: usize,
    /// Height and width of a strip or tile; those at the borders may be smaller.
    chunk: [usize; 2],
    /// What was decoded last, the latest first, and each one's number.
    kept: VecDeque<(u32, DecodingResult)>,
}

impl Picture {
    /// Whether a file that starts like this is a TIFF.
    pub(super) fn starts(bytes: &[u8]) -> bool {
        [b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]
            .iter()
            .any(|magic| bytes.starts_with(*magic))
    }

    /// Reads what the image is; its elements stay in the file.
    ///
    /// # Errors
    /// If the file is damaged, or the image is of a kind that isn't supported.
    pub(super) fn new(file: File) -> Result<Picture, String> {
        let damaged = |error: tiff::TiffError| format!("it can't be decoded: {error}");
        let mut limits = Limits::default();
        limits.decoding_buffer_size = KEPT_BYTES;
        limits.intermediate_buffer_size = KEPT_BYTES;
        let mut decoder = Decoder::new(BufReader::new(file))
            .map_err(damaged)?
            .with_limits(limits);
        let (width, height) = decoder.dimensions().map_err(damaged)?;
        let color = decoder.colortype().map_err(damaged)?;
        let channels = match color {
            ColorType::Gray(_) => 1,
            ColorType::GrayA(_) => 2,
            ColorType::RGB(_) => 3,
            ColorType::RGBA(_) => 4,
            ColorType::Multiband { num_samples, .. } => usize::from(num_samples),
            _ => {
                return Err(format!(
                    "its colors are {color:?}; convert it to gray or RGB"
                ));
            }
        };
        let bits = color.bit_depth();
        if !matches!(bits, 8 | 16 | 32 | 64) {
            return Err(format!(
                "it has {bits} bits per channel; convert it to 8 or 16"
            ));
        }
        let planes = decoder.find_tag_unsigned(Tag::PlanarConfiguration);
        let planes: u16 = planes.map_err(damaged)?.unwrap_or(1);
        if planes != 1 && channels > 1 {
            return Err(
                "its channels are stored one after another; store them pixel by pixel".into(),
            );
        }
        let (across, down) = decoder.chunk_dimensions();
        let picture = Picture {
            decoder,
            height: height as usize,
            width: width as usize,
            channels,
            bytes: usize::from(bits / 8),
            chunk: [down as usize, across as usize],
            kept: VecDeque::new(),
        };
        if picture.shape().contains(&0) || picture.chunk.contains(&0) {
            return Err("it has no pixels".into());
        }
        match picture.chunk_bytes() {
            Some(bytes) if bytes <= KEPT_BYTES => Ok(picture),
            _ => Err(format!(
                "its strips or tiles have {}×{} pixels, too many to decode at once; save it in smaller ones",
                picture.chunk[0], picture.chunk[1]
            )),
        }
    }

    /// One image, channels, height, width.
    pub(super) fn shape(&self) -> Vec<usize> {
        vec![1, self.channels, self.height, self.width]
    }

    /// Bytes of an element, and height and width of what is decoded at once: what reading costs depends on them.
    pub(super) fn signature(&self) -> (usize, [usize; 2]) {
        (self.bytes, self.chunk)
    }

    fn chunk_bytes(&self) -> Option<usize> {
        let size = [self.chunk[1], self.channels, self.bytes];
        size.iter()
            .try_fold(self.chunk[0], |bytes, &n| bytes.checked_mul(n))
    }

    /// Fills `into`, which has this shape, with a box that begins at this channel, row and column.
    ///
    /// # Errors
    /// If a strip or tile can't be decoded.
    pub(super) fn read<T>(
        &mut self,
        start: &[usize],
        shape: &[usize],
        into: &mut [T],
        convert: &impl Fn(f32) -> T,
    ) -> Result<(), String> {
        let rows = start[1]..start[1] + shape[1];
        let columns = start[2]..start[2] + shape[2];
        let [high, wide] = self.chunk;
        let (channels, across) = (self.channels, self.width.div_ceil(wide));
        for down in rows.start / high..rows.end.div_ceil(high) {
            for along in columns.start / wide..columns.end.div_ceil(wide) {
                let number = (down * across + along) as u32;
                let (stride, _) = self.decoder.chunk_data_dimensions(number);
                let chunk = self.chunk(number)?;
                // Element of the chunk and of the box.
                let mut places = Vec::with_capacity(shape[0]);
                places.extend((0..shape[0]).map(|c| (start[0] + c, c * shape[1] * shape[2])));
                let mut each = |take: &dyn Fn(usize) -> Option<f32>| {
                    for y in overlap(&rows, down * high, high) {
                        for x in overlap(&columns, along * wide, wide) {
                            let pixel = (y - down * high) * stride as usize + x - along * wide;
                            let at = (y - rows.start) * shape[2] + x - columns.start;
                            for &(channel, plane) in &places {
                                let element = take(pixel * channels + channel)?;
                                into[plane + at] = convert(element);
                            }
                        }
                    }
                    Some(())
                };
                macro_rules! all {
                    ($data:expr, $convert:expr) => {
                        each(&|at| $data.get(at).copied().map($convert))
                    };
                }
                match chunk {
                    DecodingResult::U8(data) => all!(data, f32::from),
                    DecodingResult::U16(data) => all!(data, f32::from),
                    DecodingResult::U32(data) => all!(data, |x| x as f32),
                    DecodingResult::U64(data) => all!(data, |x| x as f32),
                    DecodingResult::F16(data) => all!(data, f32::from),
                    DecodingResult::F32(data) => all!(data, |x| x),
                    DecodingResult::F64(data) => all!(data, |x| x as f32),
                    DecodingResult::I8(data) => all!(data, f32::from),
                    DecodingResult::I16(data) => all!(data, f32::from),
                    DecodingResult::I32(data) => all!(data, |x| x as f32),
                    DecodingResult::I64(data) => all!(data, |x| x as f32),
                }
                .ok_or_else(|| format!("strip or tile {number} is too short"))?;
            }
        }
        Ok(())
    }

    /// A decoded strip or tile.
    fn chunk(&mut self, number: u32) -> Result<&DecodingResult, String> {
        let found = self.kept.iter().position(|(other, _)| *other == number);
        let chunk = match found.and_then(|at| self.kept.remove(at)) {
            Some(chunk) => chunk,
            None => {
                let room = KEPT_BYTES / self.chunk_bytes().unwrap_or(KEPT_BYTES).max(1);
                self.kept.truncate(room.saturating_sub(1));
                let decoded = self.decoder.read_chunk(number);
                let damaged = |error| format!("strip or tile {number} can't be decoded: {error}");
                (number, decoded.map_err(damaged)?)
            }
        };
        self.kept.push_front(chunk);
        Ok(&self.kept[0].1)
    }
}

/// The part of a range that lies in `count` numbers from `first` on.
fn overlap(range: &Range<usize>, first: usize, count: usize) -> Range<usize> {
    range.start.max(first)..range.end.min(first + count)
}
