//! The protocol-buffer messages of CP-SAT's interface, as far as they are used here. Numbers are
//! those of OR-tools' `cp_model.proto` and `sat_parameters.proto`.

/// Σ coefficient·variable + offset. A negative index `-i - 1` is the negation of Boolean `i`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Linear {
    #[prost(int32, repeated, tag = "1")]
    pub(super) vars: Vec<i32>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) coeffs: Vec<i64>,
    #[prost(int64, tag = "3")]
    pub(super) offset: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Variable {
    /// Pairs of first and last value.
    #[prost(int64, repeated, tag = "2")]
    pub(super) domain: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Literals {
    #[prost(int32, repeated, tag = "1")]
    pub(super) literals: Vec<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinearConstraint {
    #[prost(int32, repeated, tag = "1")]
    pub(super) vars: Vec<i32>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) coeffs: Vec<i64>,
    /// Pairs of first and last value.
    #[prost(int64, repeated, tag = "3")]
    pub(super) domain: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AllDifferent {
    #[prost(message, repeated, tag = "1")]
    pub(super) exprs: Vec<Linear>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IntervalConstraint {
    #[prost(message, optional, tag = "4")]
    pub(super) start: Option<Linear>,
    #[prost(message, optional, tag = "5")]
    pub(super) end: Option<Linear>,
    #[prost(message, optional, tag = "6")]
    pub(super) size: Option<Linear>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Cumulative {
    #[prost(message, optional, tag = "1")]
    pub(super) capacity: Option<Linear>,
    /// Indices of interval constraints.
    #[prost(int32, repeated, tag = "2")]
    pub(super) intervals: Vec<i32>,
    #[prost(message, repeated, tag = "3")]
    pub(super) demands: Vec<Linear>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Reservoir {
    #[prost(int64, tag = "1")]
    pub(super) min_level: i64,
    #[prost(int64, tag = "2")]
    pub(super) max_level: i64,
    #[prost(message, repeated, tag = "3")]
    pub(super) time_exprs: Vec<Linear>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) active_literals: Vec<i32>,
    #[prost(message, repeated, tag = "6")]
    pub(super) level_changes: Vec<Linear>,
}

/// One of the kinds of constraint; it holds where all its literals do.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Constraint {
    #[prost(int32, repeated, tag = "2")]
    pub(super) enforcement_literal: Vec<i32>,
    #[prost(oneof = "Rule", tags = "3, 12, 13, 19, 22, 24, 29")]
    pub(super) rule: Option<Rule>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Rule {
    #[prost(message, tag = "3")]
    BoolOr(Literals),
    #[prost(message, tag = "12")]
    Linear(LinearConstraint),
    #[prost(message, tag = "13")]
    AllDifferent(AllDifferent),
    #[prost(message, tag = "19")]
    Interval(IntervalConstraint),
    #[prost(message, tag = "22")]
    Cumulative(Cumulative),
    #[prost(message, tag = "24")]
    Reservoir(Reservoir),
    #[prost(message, tag = "29")]
    ExactlyOne(Literals),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Objective {
    #[prost(int32, repeated, tag = "1")]
    pub(super) vars: Vec<i32>,
    #[prost(double, tag = "2")]
    pub(super) offset: f64,
    #[prost(int64, repeated, tag = "4")]
    pub(super) coeffs: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Hint {
    #[prost(int32, repeated, tag = "1")]
    pub(super) vars: Vec<i32>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) values: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CpModel {
    #[prost(message, repeated, tag = "2")]
    pub(super) variables: Vec<Variable>,
    #[prost(message, repeated, tag = "3")]
    pub(super) constraints: Vec<Constraint>,
    #[prost(message, optional, tag = "4")]
    pub(super) objective: Option<Objective>,
    #[prost(message, optional, tag = "6")]
    pub(super) hint: Option<Hint>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Parameters {
    #[prost(int32, optional, tag = "31")]
    pub(super) random_seed: Option<i32>,
    #[prost(double, optional, tag = "36")]
    pub(super) max_time_in_seconds: Option<f64>,
    #[prost(bool, optional, tag = "135")]
    pub(super) catch_sigint_signal: Option<bool>,
    #[prost(double, optional, tag = "160")]
    pub(super) relative_gap_limit: Option<f64>,
    #[prost(int32, optional, tag = "206")]
    pub(super) num_workers: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Response {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
    #[prost(int64, repeated, tag = "2")]
    pub(super) solution: Vec<i64>,
    #[prost(double, tag = "3")]
    pub(super) objective_value: f64,
    #[prost(double, tag = "4")]
    pub(super) best_objective_bound: f64,
    #[prost(int64, tag = "11")]
    pub(super) num_conflicts: i64,
    #[prost(string, tag = "20")]
    pub(super) solution_info: String,
}
