//! A constraint program over integers and Booleans, built piece by piece.

use super::proto::{
    AllDifferent, Constraint, CpModel, Cumulative, Hint, IntervalConstraint, Linear,
    LinearConstraint, Literals, Objective, Reservoir, Rule, Variable,
};

/// An integer variable of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(i32);

impl Var {
    /// Its place among the variables, hence in solutions.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A Boolean variable or its negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Literal(i32);

impl std::ops::Not for Literal {
    type Output = Literal;

    fn not(self) -> Literal {
        Literal(-self.0 - 1)
    }
}

impl Literal {
    /// The variable, 0 or 1. Of a negation, the variable negated.
    #[must_use]
    pub fn var(self) -> Var {
        Var(if self.is_negation() {
            -self.0 - 1
        } else {
            self.0
        })
    }

    /// Whether it is the negation of its variable.
    #[must_use]
    pub fn is_negation(self) -> bool {
        self.0 < 0
    }
}

/// Σ coefficient·variable + constant.
#[derive(Clone, Debug, Default)]
pub struct Expr {
    terms: Vec<(Var, i64)>,
    constant: i64,
}

impl Expr {
    /// Σ coefficient·variable.
    #[must_use]
    pub fn sum(terms: impl IntoIterator<Item = (Var, i64)>) -> Expr {
        Expr {
            terms: terms.into_iter().collect(),
            constant: 0,
        }
    }

    /// This plus a number.
    #[must_use]
    pub fn plus(mut self, constant: i64) -> Expr {
        self.constant += constant;
        self
    }

    fn proto(&self) -> Linear {
        Linear {
            vars: self.terms.iter().map(|term| term.0.0).collect(),
            coeffs: self.terms.iter().map(|term| term.1).collect(),
            offset: self.constant,
        }
    }
}

impl From<Var> for Expr {
    fn from(var: Var) -> Expr {
        Expr {
            terms: vec![(var, 1)],
            constant: 0,
        }
    }
}

impl From<i64> for Expr {
    fn from(constant: i64) -> Expr {
        Expr {
            terms: Vec::new(),
            constant,
        }
    }
}

/// A half-open interval of time, perhaps absent.
#[derive(Clone, Copy, Debug)]
pub struct Interval(i32);

/// A change of a reservoir's level: when, by how much, and whether at all.
pub type Change = (Expr, i64, Literal);

/// Variables, constraints, an objective to minimize, and a hint.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub(super) proto: CpModel,
}

impl Model {
    /// Without variables.
    #[must_use]
    pub fn new() -> Model {
        Model::default()
    }

    /// A variable between two numbers, both included.
    pub fn integer(&mut self, first: i64, last: i64) -> Var {
        self.variable(vec![first, last])
    }

    /// A variable that takes one of these values, ascending and without repetition.
    pub fn one_of(&mut self, values: &[i64]) -> Var {
        let mut domain: Vec<i64> = Vec::new();
        for &value in values {
            match domain.last_mut() {
                Some(last) if *last + 1 == value => *last = value,
                _ => domain.extend([value, value]),
            }
        }
        self.variable(domain)
    }

    fn variable(&mut self, domain: Vec<i64>) -> Var {
        self.proto.variables.push(Variable { domain });
        Var((self.proto.variables.len() - 1) as i32)
    }

    /// A Boolean.
    pub fn boolean(&mut self) -> Literal {
        Literal(self.integer(0, 1).0)
    }

    /// A Boolean that is true.
    pub fn truth(&mut self) -> Literal {
        Literal(self.integer(1, 1).0)
    }

    fn push(&mut self, rule: Rule, only_if: &[Literal]) -> i32 {
        let enforcement_literal = only_if.iter().map(|literal| literal.0).collect();
        self.proto.constraints.push(Constraint {
            enforcement_literal,
            rule: Some(rule),
        });
        (self.proto.constraints.len() - 1) as i32
    }

    /// `first ≤ expr ≤ last` where all of `only_if` hold.
    pub fn between(&mut self, expr: &Expr, first: i64, last: i64, only_if: &[Literal]) {
        let linear = expr.proto();
        // The ends of the 64-bit range stand for infinity and must stay where they are.
        let shift = |bound: i64| match bound {
            i64::MIN | i64::MAX => bound,
            _ => bound - linear.offset,
        };
        let domain = vec![shift(first), shift(last)];
        let rule = LinearConstraint {
            vars: linear.vars,
            coeffs: linear.coeffs,
            domain,
        };
        self.push(Rule::Linear(rule), only_if);
    }

    /// `a ≤ b` where all of `only_if` hold.
    pub fn at_most(&mut self, a: impl Into<Expr>, b: impl Into<Expr>, only_if: &[Literal]) {
        let (mut difference, b) = (a.into(), b.into());
        difference.terms.extend(
            b.terms
                .iter()
                .map(|&(var, coefficient)| (var, -coefficient)),
        );
        difference.constant -= b.constant;
        self.between(&difference, i64::MIN, 0, only_if);
    }

    /// At least one of these holds, where all of `only_if` do.
    pub fn any(&mut self, literals: &[Literal], only_if: &[Literal]) {
        let literals = literals.iter().map(|literal| literal.0).collect();
        self.push(Rule::BoolOr(Literals { literals }), only_if);
    }

    /// `a` implies `b`.
    pub fn implies(&mut self, a: Literal, b: Literal) {
        self.any(&[b], &[a]);
    }

    /// Exactly one of these holds.
    pub fn exactly_one(&mut self, literals: &[Literal]) {
        let literals = literals.iter().map(|literal| literal.0).collect();
        self.push(Rule::ExactlyOne(Literals { literals }), &[]);
    }

    /// No two of these are equal.
    pub fn all_different(&mut self, exprs: &[Expr]) {
        let exprs = exprs.iter().map(Expr::proto).collect();
        self.push(Rule::AllDifferent(AllDifferent { exprs }), &[]);
    }

    /// `[start, end)`, of that size, where `present` holds.
    pub fn interval(
        &mut self,
        start: &Expr,
        size: &Expr,
        end: &Expr,
        present: Literal,
    ) -> Interval {
        let rule = IntervalConstraint {
            start: Some(start.proto()),
            size: Some(size.proto()),
            end: Some(end.proto()),
        };
        Interval(self.push(Rule::Interval(rule), &[present]))
    }

    /// At every time, the demands of the intervals that hold then sum to at most the capacity.
    pub fn cumulative(&mut self, intervals: &[(Interval, i64)], capacity: impl Into<Expr>) {
        let rule = Cumulative {
            capacity: Some(capacity.into().proto()),
            intervals: intervals.iter().map(|pair| pair.0.0).collect(),
            demands: intervals
                .iter()
                .map(|pair| Expr::from(pair.1).proto())
                .collect(),
        };
        self.push(Rule::Cumulative(rule), &[]);
    }

    /// At every time, the sum of the changes up to and at that time is at least `least`.
    pub fn reservoir(&mut self, changes: &[Change], least: i64) {
        let rule = Reservoir {
            min_level: least,
            max_level: changes.iter().map(|change| change.1.max(0)).sum(),
            time_exprs: changes.iter().map(|change| change.0.proto()).collect(),
            level_changes: changes
                .iter()
                .map(|change| Expr::from(change.1).proto())
                .collect(),
            active_literals: changes.iter().map(|change| change.2.0).collect(),
        };
        self.push(Rule::Reservoir(rule), &[]);
    }

    /// What to minimize.
    pub fn minimize(&mut self, expr: &Expr) {
        let linear = expr.proto();
        self.proto.objective = Some(Objective {
            vars: linear.vars,
            offset: linear.offset as f64,
            coeffs: linear.coeffs,
        });
    }

    /// Values to try first: one per variable, in order.
    pub fn hint(&mut self, values: &[i64]) {
        let count = values.len().min(self.proto.variables.len());
        self.proto.hint = Some(Hint {
            vars: (0..count as i32).collect(),
            values: values[..count].to_vec(),
        });
    }

    /// Number of variables.
    #[must_use]
    pub fn variables(&self) -> usize {
        self.proto.variables.len()
    }

    /// Number of constraints.
    #[must_use]
    pub fn constraints(&self) -> usize {
        self.proto.constraints.len()
    }
}
