//! Tidying: moves a plan's runs so that values wait less. Such moves cost nothing, and placement loses less
//! if fewer buffers are held at a time and for a shorter time.

use cranelift_entity::EntityRef;

use crate::cutoff::Cutoff;
use crate::ids::Position;
use crate::random::Random;
use crate::search::arrange::Arrangement;
use crate::search::links::Node;

/// The most passes of tidying over all runs, and its most work per run.
const TIDY_ROUNDS: u32 = 12;
const TIDY_WORK: u64 = 2_000;
const MOST_TIDY_WORK: u64 = 40_000_000;
/// The number of runs after which the cutoff is looked at again.
const LOOK: usize = 256;

/// Moves of one stirring per run, the most moves, and its final temperature as a share of the first.
const STIR_MOVES: u64 = 300;
const MOST_MOVES: u64 = 1_000_000;
const COOLING: f64 = 1e-3;

impl Arrangement<'_> {
    /// Makes another order of the same runs within the budget: anneals the bytes that wait, from a
    /// temperature in hundredths of the mean bytes in use.
    pub fn stir(&mut self, heat: f64, cutoff: Cutoff<'_>, rng: &mut Random) {
        let n = self.seq.len();
        if n < 3 {
            return;
        }
        let limit = std::mem::replace(&mut self.budget, 0.0);
        let hot = heat * self.over(Position::FIRST, Position::new(n), 0.0) / n as f64 / 100.0;
        let moves = (STIR_MOVES * n as u64).min(MOST_MOVES);
        for k in 0..moves {
            if k.is_multiple_of(LOOK as u64) && cutoff.reached() {
                break;
            }
            let x = Node::new(1 + rng.below(n - 2));
            let Some(to) = self.place_for(x, rng) else {
                continue;
            };
            self.judge(x, to);
            let up = self.shift.excess;
            let temperature = hot * COOLING.powf(k as f64 / moves as f64);
            let accepted = up <= 0.0 || up < -temperature * (1.0 - rng.unit()).ln();
            if accepted && self.shift_fits(x, limit) {
                self.apply(x);
            }
        }
        self.budget = limit;
        self.excess = self.over(Position::FIRST, Position::new(n), 0.0);
    }

    /// Moves runs so that values wait less, as long as that helps and no position exceeds the budget. Fewer
    /// bytes at a time leave placement more freedom. Returns units of work.
    pub fn tidy(&mut self, cutoff: Cutoff<'_>) -> u64 {
        let limit = self.budget;
        let mut work = 0;
        let most = (TIDY_WORK * self.seq.len() as u64).min(MOST_TIDY_WORK);
        // With a budget of zero, every byte in use counts as excess.
        self.budget = 0.0;
        for _ in 0..TIDY_ROUNDS {
            let mut moved = false;
            for x in (1..self.seq.len() - 1).map(Node::new) {
                if work > most || x.index().is_multiple_of(LOOK) && cutoff.reached() {
                    break;
                }
                work += 4 + (self.before.of(x).len() + self.after.of(x).len()) as u64;
                let Some(to) = self.tidier(x, limit, &mut work) else {
                    continue;
                };
                self.judge(x, to);
                self.apply(x);
                moved = true;
            }
            if !moved || work > most || cutoff.reached() {
                break;
            }
        }
        self.budget = limit;
        self.excess = self.over(Position::FIRST, Position::new(self.seq.len()), 0.0);
        work
    }

    /// Of some places for a node, the one at which the fewest bytes wait; `None` if the node is already
    /// there.
    fn tidier(&mut self, x: Node, limit: f64, work: &mut u64) -> Option<Position> {
        let (lo, hi) = self.room(x);
        let from = self.pos[x];
        let mut best = (-0.5, None);
        let mut far = 1;
        let steps = std::iter::from_fn(|| {
            far *= 2;
            Some(far / 2)
        });
        let span = if hi > lo { hi - lo } else { 0 };
        let steps = steps.take_while(|&far| far < span);
        let near = steps.flat_map(|far| {
            [
                lo.max(from - far.min(from - Position::FIRST)),
                (from + far).min(hi),
            ]
        });
        for to in [lo, hi].into_iter().chain(near.collect::<Vec<_>>()) {
            if to == from || to < lo || to > hi {
                continue;
            }
            self.judge(x, to);
            *work += u64::from(to.distance(from)) / 32;
            if self.shift.excess < best.0 && self.shift_fits(x, limit) {
                best = (self.shift.excess, Some(to));
            }
        }
        best.1
    }

    /// Whether every position stays within a limit after the move that [`Self::judge`] computed.
    fn shift_fits(&self, x: Node, limit: f64) -> bool {
        let mut fits = self.shift.own <= limit;
        self.stretches(x, |from, to, level| {
            fits &= self.mem[from..to].iter().all(|m| m + level <= limit);
        });
        fits
    }
}
