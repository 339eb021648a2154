//! Writes npz files as numpy does: a zip archive of npy arrays, not compressed.

use std::io::{self, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::dtype::DType;

/// An array to save.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements in row order, little-endian.
    pub bytes: Vec<u8>,
}

/// Writes arrays of different names as one npz file.
///
/// # Errors
/// If `out` can't be written to, or two arrays have one name.
pub fn save_npz(out: &mut dyn Write, arrays: &[Saved]) -> io::Result<()> {
    let mut zip = ZipWriter::new_stream(out);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .large_file(true);
    for array in arrays {
        zip.start_file(format!("{}.npy", array.name), options)?;
        zip.write_all(&header(array))?;
        zip.write_all(&array.bytes)?;
    }
    zip.finish()?;
    Ok(())
}

/// The npy header, version 1.0: its length, with the ten bytes before it, is a multiple of 64.
fn header(array: &Saved) -> Vec<u8> {
    let descr = match array.dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I64 => "<i8",
    };
    let lengths: Vec<String> = array.shape.iter().map(|n| format!("{n},")).collect();
    let text = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
        lengths.join(" ")
    );
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((length as u16).to_le_bytes());
    header.extend(format!("{text:<width$}\n", width = length - 1).into_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Arrays, Contents};
    use std::io::Cursor;

    #[test]
    fn what_is_saved_is_read() {
        let floats: Vec<f32> = (0u8..6).map(f32::from).collect();
        let ints = [-1i64, 1 << 40];
        let arrays = [
            Saved {
                name: "logits".into(),
                dtype: DType::F32,
                shape: vec![2, 3],
                bytes: floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
            },
            Saved {
                name: "tokens/1".into(),
                dtype: DType::I64,
                shape: vec![2],
                bytes: ints.iter().flat_map(|x| x.to_le_bytes()).collect(),
            },
        ];
        let mut file = Vec::new();
        save_npz(&mut file, &arrays).unwrap();
        let read = Arrays::from_reader(Cursor::new(file), 1 << 20).unwrap();
        let read: Vec<_> = read
            .0
            .into_iter()
            .map(|(n, a)| (n, a.shape, a.contents))
            .collect();
        assert_eq!(
            read,
            [
                ("logits".into(), vec![2, 3], Contents::Floats(floats)),
                ("tokens/1".into(), vec![2], Contents::Ints(ints.to_vec())),
            ]
        );
        assert!(header(&arrays[0]).len().is_multiple_of(64));
        assert!(save_npz(&mut Vec::new(), &[arrays[0].clone(), arrays[0].clone()]).is_err());
    }
}
