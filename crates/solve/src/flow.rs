//! Minimum cuts by Dinic's algorithm (1970), which ends after at most as many phases as there are nodes whatever
//! the capacities: each augmentation empties an edge exactly, so rounding can't make it loop.

use std::collections::VecDeque;

/// A network under construction, with a source, a sink and directed edges.
pub(crate) struct Network {
    /// For each node, its edges; edge `e ^ 1` is the reverse of edge `e`.
    edges: Vec<Vec<usize>>,
    heads: Vec<usize>,
    left: Vec<f64>,
}

/// A node of a network.
pub(crate) type Node = usize;
pub(crate) const SOURCE: Node = 0;
pub(crate) const SINK: Node = 1;

/// A cut of least capacity.
pub(crate) struct Cut {
    /// Infinite if every cut has an edge of infinite capacity; then the sides say nothing.
    pub capacity: f64,
    /// Whether a node is on the source's side.
    pub source_side: Vec<bool>,
}

impl Network {
    pub fn new() -> Network {
        Network {
            edges: vec![Vec::new(); 2],
            heads: Vec::new(),
            left: Vec::new(),
        }
    }

    pub fn node(&mut self) -> Node {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    /// A cut with `from` on the source's side and `to` on the sink's pays the capacity.
    pub fn edge(&mut self, from: Node, to: Node, capacity: f64) {
        if capacity > 0.0 {
            self.edges[from].push(self.heads.len());
            self.edges[to].push(self.heads.len() + 1);
            self.heads.extend([to, from]);
            self.left.extend([capacity, 0.0]);
        }
    }

    /// The two nodes are on the same side.
    pub fn tie(&mut self, one: Node, other: Node) {
        self.edge(one, other, f64::INFINITY);
        self.edge(other, one, f64::INFINITY);
    }

    pub fn cut(self) -> Cut {
        let mut work = u64::MAX;
        let cut = self.cut_within(&mut work);
        cut.expect("Dinic's algorithm ends within any graph's number of phases")
    }

    /// [`Network::cut`] by looking at no more than `left` edges, which become fewer; `None` if those don't suffice.
    pub fn cut_within(mut self, left: &mut u64) -> Option<Cut> {
        let mut capacity = 0.0;
        loop {
            let levels = self.levels();
            if levels[SINK] == usize::MAX {
                return Some(Cut {
                    capacity,
                    source_side: levels.iter().map(|&level| level < usize::MAX).collect(),
                });
            }
            *left = left.checked_sub(self.heads.len() as u64)?;
            let mut next = vec![0; self.edges.len()];
            while let Some(flow) = self.augment(&levels, &mut next, left)? {
                capacity += flow;
                if flow.is_infinite() {
                    return Some(Cut {
                        capacity,
                        source_side: Vec::new(),
                    });
                }
            }
        }
    }

    /// The number of edges from the source, by breadth-first search.
    fn levels(&self) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.edges.len()];
        levels[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.edges[node] {
                let head = self.heads[edge];
                if self.left[edge] > 0.0 && levels[head] == usize::MAX {
                    levels[head] = levels[node] + 1;
                    queue.push_back(head);
                }
            }
        }
        levels
    }

    /// Sends flow along one path of the level graph; `next` is the first edge of each node still worth trying. The outer
    /// `None` says that no edges are left to look at, the inner one that no path is.
    fn augment(
        &mut self,
        levels: &[usize],
        next: &mut [usize],
        left: &mut u64,
    ) -> Option<Option<f64>> {
        let mut path: Vec<usize> = Vec::new();
        let mut node = SOURCE;
        while node != SINK {
            let before = next[node];
            let edge = self.edges[node][before..].iter().copied().find(|&e| {
                next[node] += 1;
                self.left[e] > 0.0 && levels[self.heads[e]] == levels[node] + 1
            });
            *left = left.checked_sub((next[node] - before) as u64 + 1)?;
            match edge {
                Some(edge) => {
                    next[node] -= 1;
                    path.push(edge);
                    node = self.heads[edge];
                }
                None => {
                    let Some(back) = path.pop() else {
                        return Some(None);
                    };
                    node = self.heads[back ^ 1];
                    next[node] += 1;
                }
            }
        }
        let flow = path
            .iter()
            .map(|&e| self.left[e])
            .fold(f64::INFINITY, f64::min);
        if flow.is_finite() {
            for edge in path {
                self.left[edge] -= flow;
                self.left[edge ^ 1] += flow;
            }
        }
        Some(Some(flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_cut_is_the_least_of_all() {
        let mut rng = Random::new(5, 0);
        for round in 0..300 {
            let n = 2 + round % 7;
            let mut network = Network::new();
            let added: Vec<Node> = (2..n).map(|_| network.node()).collect();
            assert!(added.iter().copied().eq(2..n));
            let mut edges = Vec::new();
            for _ in 0..3 * n {
                let (from, to) = (rng.below(n), rng.below(n));
                let capacity = match rng.below(9) {
                    0 => f64::INFINITY,
                    units => units as f64 / 7.0,
                };
                if from != to {
                    network.edge(from, to, capacity);
                    edges.push((from, to, capacity));
                }
            }
            let price = |side: &dyn Fn(usize) -> bool| -> f64 {
                let cut = edges
                    .iter()
                    .filter(|(from, to, _)| side(*from) && !side(*to));
                cut.map(|(_, _, capacity)| capacity).sum()
            };
            let all = (0..1usize << n).filter(|set| set & 0b11 == 0b01);
            let least = all
                .map(|set| price(&|node| set >> node & 1 == 1))
                .fold(f64::INFINITY, f64::min);
            let cut = network.cut();
            if least.is_infinite() {
                assert_eq!(cut.capacity, least);
                continue;
            }
            assert!((cut.capacity - least).abs() < 1e-9);
            assert!((price(&|node| cut.source_side[node]) - least).abs() < 1e-9);
        }
    }
}
