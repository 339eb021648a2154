//! Contents of tensors that are held in memory.

use scrimp_graph::weights::Elements;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// Elements by tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held(pub BTreeMap<String, Vec<f32>>);

impl Elements for Held {
    fn read(
        &self,
        name: &str,
        elements: Range<usize>,
        take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let values = self.0.get(name).ok_or(io::ErrorKind::NotFound)?;
        let values = values.get(elements).ok_or(io::ErrorKind::UnexpectedEof)?;
        values.chunks(5).try_for_each(take)
    }
}
