//! Which size of squares a product of matrices runs with: the fastest, as measured once for each device and shape. All
//! sizes give the same bits.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

use super::program::TILES;

/// See the module's documentation.
#[derive(Debug)]
pub struct Sizes {
    known: Mutex<HashMap<u64, usize>>,
    file: Option<PathBuf>,
    /// The size of all products, in a test of one.
    #[cfg(test)]
    pub always: Option<usize>,
}

impl Sizes {
    /// What was measured on a device before, if that is kept in this folder.
    pub fn of(device: &str, folder: Option<&Path>) -> Sizes {
        let name = format!("{:016x}.sizes", xxh3_64(device.as_bytes()));
        let file = folder.map(|folder| folder.join(name));
        let before = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        let known = before.iter().flat_map(|text| text.lines().filter_map(read));
        Sizes {
            known: Mutex::new(known.collect()),
            file,
            #[cfg(test)]
            always: None,
        }
    }

    /// The size that was fastest, if it was measured.
    pub fn get(&self, product: u64) -> Option<usize> {
        #[cfg(test)]
        if self.always.is_some() {
            return self.always;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&product).copied()
    }

    /// Keeps which size was fastest. A folder that can't be written costs only time.
    pub fn keep(&self, product: u64, size: usize) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(product, size);
        let Some(file) = &self.file else { return };
        let open = || OpenOptions::new().create(true).append(true).open(file);
        let line = format!("{product:016x} {size}\n");
        let folder = file.parent().unwrap_or(Path::new("."));
        let _ = fs::create_dir_all(folder)
            .and_then(|()| open())
            .and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// A product and its size; `None` if the line says neither, as one does that was cut off.
fn read(line: &str) -> Option<(u64, usize)> {
    let (product, size) = line.split_once(' ')?;
    let size = size.parse().ok().filter(|&size| size < TILES.len())?;
    let product = (product.len() == 16).then_some(product)?;
    Some((u64::from_str_radix(product, 16).ok()?, size))
}

/// A product by all that its time depends on: its kernel, its type and the numbers that it gets.
pub fn key(kernel: &str, dtype: &str, numbers: &[&[u8]]) -> u64 {
    let text = [kernel.as_bytes(), b"\0", dtype.as_bytes(), b"\0"].concat();
    xxh3_64(&[text, numbers.concat()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiled::Compiled;
    use crate::data::Data;
    use crate::gpu::Gpu;
    use crate::interpret::interpret;
    use crate::processor::Processor;
    use scrimp_gpu::Interface;
    use scrimp_graph::{DType, Graph, GraphBuilder, Op, Window};

    /// Products that fill no square of any size.
    fn products() -> Graph {
        let mut b = GraphBuilder::new("products");
        let mut input =
            |name: &str, shape: &[usize]| b.input(name, shape, DType::F32).expect("valid");
        let (left, right, bias) = (
            input("a", &[2, 133, 37]),
            input("b", &[37, 161]),
            input("c", &[161]),
        );
        let (x, w, dy) = (
            input("x", &[3, 20, 14, 13]),
            input("w", &[34, 10, 3, 3]),
            input("dy", &[3, 34, 7, 7]),
        );
        let (trans_a, trans_b) = (false, false);
        let window = Window {
            stride: [2, 2],
            ..Window::square(3).pad(1)
        };
        let input_hw = [14, 13];
        for (name, op, inputs) in [
            (
                "matmul",
                Op::MatMul { trans_a, trans_b },
                vec![left, right, bias],
            ),
            ("conv", Op::Conv { window, groups: 2 }, vec![x, w]),
            (
                "input",
                Op::ConvInputGrad {
                    window,
                    groups: 2,
                    input_hw,
                },
                vec![dy, w],
            ),
            (
                "weight",
                Op::ConvWeightGrad { window, groups: 2 },
                vec![x, dy],
            ),
        ] {
            let outputs = b.add(name, op, &inputs).expect("valid");
            outputs.into_iter().for_each(|output| b.output(output));
        }
        b.finish().expect("valid")
    }

    #[test]
    fn all_sizes_give_the_same_bits() {
        let graph = products();
        let numbers: Vec<_> = graph
            .given()
            .map(|(id, what)| {
                let value = |i: usize| ((i * 7919) % 1009) as f32 / 1009.0 - 0.3;
                (id, (0..what.elements()).map(value).collect::<Vec<f32>>())
            })
            .collect();
        let given: Vec<_> = numbers.iter().map(|(id, x)| (*id, Data::F32(x))).collect();
        for interface in Interface::ALL {
            let Ok(mut device) = Gpu::new(interface, 0, None, false) else {
                continue;
            };
            let mut all = Vec::new();
            for size in [None, Some(0), Some(1), Some(2)] {
                device.sizes.always = size;
                let compiled = Compiled::new(&graph, Processor::Gpu(&device));
                let run = interpret(&compiled, &given, 1).expect("it runs");
                let each = graph
                    .nodes()
                    .values()
                    .map(|node| run.floats(&graph, node.outputs[0]));
                all.push(Vec::from_iter(each));
            }
            assert!(all.iter().all(|one| *one == all[0]), "{interface:?}");
            let measured = device.sizes.known.lock().expect("no panic").len();
            assert!(measured >= 4, "{measured}");
        }
    }

    #[test]
    fn what_was_measured_is_there_the_next_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let product = key("matmul_0", "f32", &[&[1, 2], &[3]]);
        assert_ne!(product, key("matmul_0", "f64", &[&[1, 2], &[3]]));
        let sizes = Sizes::of("a device", Some(folder.path()));
        assert_eq!(sizes.get(product), None);
        sizes.keep(product, 2);
        sizes.keep(product ^ 1, 0);
        let file = fs::read_dir(folder.path()).expect("there").next();
        let file = file.expect("a file").expect("there").path();
        let mut text = fs::read_to_string(&file).expect("text");
        text += "nonsense\n0123456789abcdef 9\n01234567";
        fs::write(&file, text).expect("written");
        let again = Sizes::of("a device", Some(folder.path()));
        assert_eq!(
            [again.get(product), again.get(product ^ 1)],
            [Some(2), Some(0)]
        );
        assert_eq!(again.get(0x0123_4567_89ab_cdef), None);
        assert_eq!(Sizes::of("another", Some(folder.path())).get(product), None);
    }
}
