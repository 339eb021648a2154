//! A bound in a free order from which of two tasks runs first.
//!
//! A single moment ([`super::moment`]) proves little where a task with a large result may wait until there is room for it. But
//! while it waits, what it reads stays in memory or must be made again, which costs something at other rows. So a *node* says of some pairs of tasks which
//! of the two runs first. Every row's cut gets these rules beside its own, and the best row's bound is the node's. Two nodes that differ
//! in one pair have all plans of the node above between them, so no plan takes less than the lowest bound of all nodes.
//!
//! In the given order all pairs are settled. So a row is worth branching on if it proves more there than its node, and the next pair is one about which the
//! row's best choices leave the given order. Where no row is, whole values are branched on at the node's best row.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use cranelift_entity::EntityRef;
use scrimp_plan::TaskId;

use super::moment::{Least, Moment};
use super::moments::{GAIN, HOPELESS, Leaf, Limits, Tree, climb};
use crate::method::Order;

/// The most nodes that are branched on. Where a few don't help, many rarely do.
const BRANCHED: usize = 100;
/// Tasks that are tried as the row's partner in the next pair.
const PARTNERS: usize = 8;

/// A node: pairs of which the first task runs first before the second does.
struct Node {
    /// What is proven if they do, and the row that proves it, if that isn't one without pairs.
    bound: f64,
    row: Option<TaskId>,
    before: Vec<(TaskId, TaskId)>,
    /// The tree of that row, once no pair raises the bound.
    tree: Option<Tree>,
}

/// The lowest bound is the greatest node.
impl Ord for Node {
    fn cmp(&self, other: &Node) -> Ordering {
        let bounds = other.bound.total_cmp(&self.bound);
        bounds.then_with(|| other.before.cmp(&self.before))
    }
}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Node {}

/// The cuts of a problem's rows.
pub(super) struct Cuts<'m> {
    /// That of some row, without pairs.
    pub any: Moment<'m>,
    /// The first price that is tried, in seconds per byte.
    pub price: f64,
}

impl Cuts<'_> {
    fn at<'b>(&'b self, row: TaskId, before: &'b [(TaskId, TaskId)]) -> Moment<'b> {
        Moment {
            row,
            before,
            ..self.any
        }
    }

    /// [`climb`] at a row.
    fn climb(
        &self,
        row: TaskId,
        before: &[(TaskId, TaskId)],
        worth: f64,
        limits: &mut Limits<'_>,
    ) -> Option<(Leaf, Option<Least>)> {
        climb(
            &self.at(row, before),
            (self.price, Vec::new()),
            worth,
            limits,
        )
    }
}

/// The nodes of one problem.
pub(super) struct Precedence {
    /// Rows of which it isn't known what they prove in the given order; and the others with that, the best one first.
    unknown: Vec<TaskId>,
    rows: Vec<(f64, TaskId)>,
    nodes: BinaryHeap<Node>,
    branched: usize,
    done: bool,
}

impl Precedence {
    /// `bound` is proven without any pairs.
    pub fn new(rows: Vec<TaskId>, bound: f64) -> Precedence {
        Precedence {
            unknown: rows,
            rows: Vec::new(),
            nodes: BinaryHeap::from([Node {
                bound,
                row: None,
                before: Vec::new(),
                tree: None,
            }]),
            branched: 0,
            done: false,
        }
    }

    /// Seconds that every plan adds.
    pub fn bound(&self) -> f64 {
        self.nodes.peek().map_or(0.0, |node| node.bound)
    }

    /// Whether there is nothing more to try.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Looks at one more row in the given order, or raises or branches on the node with the lowest bound. Something else proves `other`
    /// seconds. Returns the best choices that fit at a node's best row if they are new; `None` if there is too little work.
    pub fn advance(
        &mut self,
        cuts: &Cuts<'_>,
        other: f64,
        limits: &mut Limits<'_>,
    ) -> Option<Option<Least>> {
        if let Some(&row) = self.unknown.last() {
            let given = Moment {
                row,
                order: Order::Fixed,
                ..cuts.any
            };
            let (leaf, _) = climb(&given, (cuts.price, Vec::new()), 0.0, limits)?;
            self.rows.push((leaf.bound, row));
            self.rows.sort_by(|a, b| b.0.total_cmp(&a.0));
            self.unknown.pop();
            return Some(None);
        }
        let most = self.rows.first().map_or(0.0, |row| row.0);
        self.done |= most * HOPELESS < other;
        let Some(lowest) = self.nodes.peek().filter(|_| !self.done) else {
            return Some(None);
        };
        if lowest.tree.is_none()
            && self.branched < BRANCHED
            && let Some(next) = self.next(lowest, cuts, limits)?
        {
            self.branched += usize::from(next.len() > 1);
            self.nodes.pop();
            self.nodes.extend(next);
            return Some(None);
        }
        let mut lowest = self.nodes.peek_mut()?;
        let (grows, found) = lowest.grow(cuts, limits)?;
        self.done = !grows;
        Some(found)
    }

    /// What takes the place of a node: the same with a higher bound, or two that differ in one pair.
    fn next(
        &self,
        node: &Node,
        cuts: &Cuts<'_>,
        limits: &mut Limits<'_>,
    ) -> Option<Option<Vec<Node>>> {
        let worth = node.bound * (1.0 + GAIN);
        for &(_, row) in self.rows.iter().take_while(|row| row.0 > worth) {
            let (leaf, fits) = cuts.climb(row, &node.before, node.bound, limits)?;
            if leaf.bound > worth {
                return Some(Some(vec![Node {
                    bound: leaf.bound,
                    row: Some(row),
                    before: node.before.clone(),
                    tree: None,
                }]));
            }
            if let Some(fits) = fits
                && let Some(nodes) = self.branch(node, &fits, cuts, limits)?
            {
                return Some(Some(nodes));
            }
        }
        Some(None)
    }

    /// The two nodes that differ in the best pair of a row and a task about which its choices leave the given order.
    fn branch(
        &self,
        node: &Node,
        fits: &Least,
        cuts: &Cuts<'_>,
        limits: &mut Limits<'_>,
    ) -> Option<Option<Vec<Node>>> {
        let row = fits.row;
        let leaves = |t: &TaskId| *t != row && fits.ran[t.index()] != (*t < row);
        let partners = self.rows.iter().map(|row| row.1).filter(leaves);
        let mut best: Option<[Node; 2]> = None;
        for partner in partners.take(PARTNERS) {
            let one = node.with((partner, row), cuts, limits)?;
            let other = node.with((row, partner), cuts, limits)?;
            // A pair that can't be otherwise tells nothing.
            if one.bound.is_infinite() || other.bound.is_infinite() {
                continue;
            }
            let nodes = match one.bound <= other.bound {
                true => [one, other],
                false => [other, one],
            };
            let bounds = |[low, high]: &[Node; 2]| (low.bound, high.bound);
            if best
                .as_ref()
                .is_none_or(|best| bounds(&nodes) > bounds(best))
            {
                best = Some(nodes);
            }
        }
        Some(best.map(Vec::from))
    }
}

impl Node {
    /// This node with one more pair.
    fn with(
        &self,
        pair: (TaskId, TaskId),
        cuts: &Cuts<'_>,
        limits: &mut Limits<'_>,
    ) -> Option<Node> {
        let mut node = Node {
            bound: self.bound,
            row: self.row,
            before: [self.before.as_slice(), &[pair]].concat(),
            tree: None,
        };
        for row in [pair.0, pair.1] {
            let (leaf, _) = cuts.climb(row, &node.before, node.bound, limits)?;
            if leaf.bound > node.bound {
                (node.bound, node.row) = (leaf.bound, Some(row));
            }
        }
        Some(node)
    }

    /// Branches on whole values at the row that proves the bound. Returns whether there is such a row that may prove more, and the best choices that fit
    /// if they are new; `None` if there is too little work.
    fn grow(&mut self, cuts: &Cuts<'_>, limits: &mut Limits<'_>) -> Option<(bool, Option<Least>)> {
        let Some(row) = self.row else {
            return Some((false, None));
        };
        let tree = match &mut self.tree {
            Some(tree) => tree,
            None => {
                let (leaf, fits) = cuts.climb(row, &self.before, 0.0, limits)?;
                self.tree.insert(Tree::new(row, leaf, fits.as_ref()))
            }
        };
        if tree.is_closed() {
            return Some((false, None));
        }
        let found = tree.grow(&cuts.at(row, &self.before), limits)?;
        self.bound = self.bound.max(tree.bound());
        Some((true, found))
    }
}
