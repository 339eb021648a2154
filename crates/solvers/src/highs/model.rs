//! A linear or mixed-integer program to minimize, as HiGHS takes it: rows in compressed form.

use crate::error::SolverError;
use crate::library::Library;

/// Which values a column takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any number between its bounds.
    Continuous,
    /// Whole numbers between its bounds.
    Integer,
}

/// A column of one model: an index into solutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Column(pub(super) u32);

impl Column {
    /// Its place among the columns.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Minimize `offset + Σ cost·x` under bounds on columns and rows.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) offset: f64,
    pub(super) costs: Vec<f64>,
    pub(super) lower: Vec<f64>,
    pub(super) upper: Vec<f64>,
    pub(super) kinds: Vec<Kind>,
    pub(super) starts: Vec<i32>,
    pub(super) indices: Vec<i32>,
    pub(super) coefficients: Vec<f64>,
    pub(super) row_lower: Vec<f64>,
    pub(super) row_upper: Vec<f64>,
}

impl Default for Model {
    fn default() -> Self {
        Model::new()
    }
}

impl Model {
    /// Without columns and rows.
    #[must_use]
    pub fn new() -> Model {
        Model {
            offset: 0.0,
            costs: Vec::new(),
            lower: Vec::new(),
            upper: Vec::new(),
            kinds: Vec::new(),
            starts: vec![0],
            indices: Vec::new(),
            coefficients: Vec::new(),
            row_lower: Vec::new(),
            row_upper: Vec::new(),
        }
    }

    /// A new column; bounds may be infinite.
    pub fn column(&mut self, cost: f64, lower: f64, upper: f64, kind: Kind) -> Column {
        self.costs.push(cost);
        self.lower.push(lower);
        self.upper.push(upper);
        self.kinds.push(kind);
        Column((self.kinds.len() - 1) as u32)
    }

    /// A column that is 0 or 1.
    pub fn binary(&mut self, cost: f64) -> Column {
        self.column(cost, 0.0, 1.0, Kind::Integer)
    }

    /// Adds to the objective whatever the columns are.
    pub fn add_offset(&mut self, cost: f64) {
        self.offset += cost;
    }

    /// Other bounds for a column.
    pub fn set_bounds(&mut self, column: Column, lower: f64, upper: f64) {
        self.lower[column.index()] = lower;
        self.upper[column.index()] = upper;
    }

    /// Another objective coefficient.
    pub fn set_cost(&mut self, column: Column, cost: f64) {
        self.costs[column.index()] = cost;
    }

    /// A new row, `lower ≤ Σ coefficient·column ≤ upper`. A column may be listed more than once.
    pub fn row(&mut self, lower: f64, upper: f64, terms: &[(Column, f64)]) {
        let mut sorted = terms.to_vec();
        sorted.sort_unstable_by_key(|term| term.0);
        let begin = self.indices.len();
        for (column, coefficient) in sorted {
            if self.indices.len() > begin && self.indices.last() == Some(&(column.0 as i32)) {
                if let Some(last) = self.coefficients.last_mut() {
                    *last += coefficient;
                }
            } else {
                self.indices.push(column.0 as i32);
                self.coefficients.push(coefficient);
            }
        }
        self.starts.push(self.indices.len() as i32);
        self.row_lower.push(lower);
        self.row_upper.push(upper);
    }

    /// Number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.kinds.len()
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.row_lower.len()
    }

    /// Number of entries in the rows.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.indices.len()
    }

    /// HiGHS counts in 32 bits.
    pub(super) fn check(&self) -> Result<(), SolverError> {
        let counts = [
            ("columns", self.columns()),
            ("rows", self.rows()),
            ("entries", self.entries()),
        ];
        for (what, count) in counts {
            if count >= i32::MAX as usize {
                return Err(SolverError::TooLarge {
                    library: Library::Highs,
                    what,
                    count,
                });
            }
        }
        Ok(())
    }
}
