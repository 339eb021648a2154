//! CP-SAT: constraint programs.

pub(crate) mod ffi;
mod model;
mod proto;

use prost::Message;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::error::SolverError;
use crate::library::Library;
use ffi::{CpSatApi, Env};
pub use model::{Change, Expr, Interval, Literal, Model, Var};
use proto::{Parameters, Response};

/// CP-SAT, loaded. Copies are handles to the same library.
#[derive(Clone, Copy)]
pub struct CpSat {
    api: &'static CpSatApi,
}

/// Limits of one solve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wall time. The solve returns at most about two seconds later, whatever CP-SAT does.
    pub time_limit: Duration,
    /// Threads, each with a search strategy of its own; at least 1.
    pub threads: usize,
    /// Of the random choices.
    pub seed: u32,
    /// Stop when `(objective − bound) / |objective|` is at most this.
    pub relative_gap: f64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            time_limit: Duration::from_secs(3600),
            threads: 1,
            seed: 0,
            relative_gap: 0.0,
        }
    }
}

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The objective is within the gap of the bound.
    Optimal,
    /// A limit or a stop came first; there is a solution.
    Feasible,
    /// There is none.
    Infeasible,
    /// A limit or a stop came first; there is no solution yet.
    Unknown,
}

/// What a solve found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// How it ended.
    pub status: Status,
    /// One per variable; empty if there is no solution.
    pub values: Vec<i64>,
    /// Objective of `values`; infinity without.
    pub objective: f64,
    /// No solution has a smaller objective; minus infinity if nothing is known.
    pub bound: f64,
    /// Conflicts met.
    pub conflicts: i64,
    /// Wall time.
    pub elapsed: Duration,
    /// CP-SAT didn't stop in time and was left behind, with what it had.
    pub abandoned: bool,
}

impl Solution {
    /// A variable's value.
    ///
    /// # Panics
    /// If there is no solution or the variable isn't of its model.
    #[must_use]
    pub fn value(&self, var: Var) -> i64 {
        self.values[var.index()]
    }

    /// Whether a literal holds.
    ///
    /// # Panics
    /// As [`Solution::value`].
    #[must_use]
    pub fn holds(&self, literal: Literal) -> bool {
        (self.value(literal.var()) == 1) != literal.is_negation()
    }
}

/// How long CP-SAT may take to notice that it should stop before it is left behind.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How often the caller is asked whether to go on.
const TICK: Duration = Duration::from_millis(50);

impl CpSat {
    /// Loads CP-SAT from `path` (OR-tools' library or its folder), else from where `SCRIMP_ORTOOLS`,
    /// the Python environment or the system has it.
    ///
    /// # Errors
    /// If it isn't there, can't be loaded, or clashes with a HiGHS of this process.
    pub fn load(path: Option<&Path>) -> Result<CpSat, SolverError> {
        crate::load::cpsat(path).map(|api| CpSat { api })
    }

    /// Minimizes the model's objective, or just satisfies it. `go_on` is called on this thread about
    /// twenty times a second; the solve stops early when it returns false.
    ///
    /// # Errors
    /// If CP-SAT finds the model malformed or gives no answer.
    pub fn solve(
        &self,
        model: &Model,
        options: &Options,
        go_on: &mut dyn FnMut(Duration) -> bool,
    ) -> Result<Solution, SolverError> {
        let encoded = model.proto.encode_to_vec();
        if encoded.len() >= i32::MAX as usize {
            let (what, count) = ("bytes", encoded.len());
            return Err(SolverError::TooLarge {
                library: Library::OrTools,
                what,
                count,
            });
        }
        let began = Instant::now();
        let env = Arc::new(Env::new(self.api));
        let (finish, done) = channel();
        let worker = Arc::clone(&env);
        let parameters = parameters(options).encode_to_vec();
        let spawned = std::thread::Builder::new()
            .name("cp-sat".into())
            .stack_size(64 << 20)
            .spawn(move || {
                let answer = worker.solve(&encoded, &parameters);
                drop(worker);
                // Nobody waits for a solve that was left behind.
                let _ = finish.send(answer);
            });
        if let Err(error) = spawned {
            return Err(failed(error.to_string()));
        }
        let mut deadline = began + options.time_limit;
        let mut stopped = false;
        loop {
            match done.recv_timeout(TICK) {
                Ok(answer) => return solution(&answer, began.elapsed()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed("its thread ended without an answer".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if !stopped && (now >= deadline || !go_on(began.elapsed())) {
                env.stop();
                stopped = true;
                deadline = deadline.min(now);
            }
            if stopped && now >= deadline + PATIENCE {
                return Ok(Solution {
                    status: Status::Unknown,
                    values: Vec::new(),
                    objective: f64::INFINITY,
                    bound: f64::NEG_INFINITY,
                    conflicts: 0,
                    elapsed: began.elapsed(),
                    abandoned: true,
                });
            }
        }
    }
}

fn failed(reason: String) -> SolverError {
    SolverError::Failed {
        library: Library::OrTools,
        reason,
    }
}

fn parameters(options: &Options) -> Parameters {
    Parameters {
        random_seed: Some((options.seed & 0x7fff_ffff) as i32),
        max_time_in_seconds: Some(options.time_limit.as_secs_f64()),
        // Its handler would replace the program's own.
        catch_sigint_signal: Some(false),
        relative_gap_limit: Some(options.relative_gap),
        num_workers: Some(options.threads.clamp(1, 1024) as i32),
    }
}

fn solution(answer: &[u8], elapsed: Duration) -> Result<Solution, SolverError> {
    let response = Response::decode(answer)
        .map_err(|error| failed(format!("its answer can't be read: {error}")))?;
    let status = match response.status {
        0 => Status::Unknown,
        2 => Status::Feasible,
        3 => Status::Infeasible,
        4 => Status::Optimal,
        _ => {
            return Err(failed(format!(
                "the model is invalid: {}",
                response.solution_info
            )));
        }
    };
    let found = matches!(status, Status::Optimal | Status::Feasible);
    Ok(Solution {
        status,
        objective: if found {
            response.objective_value
        } else {
            f64::INFINITY
        },
        bound: match status {
            Status::Infeasible => f64::INFINITY,
            _ => response.best_objective_bound,
        },
        values: if found { response.solution } else { Vec::new() },
        conflicts: response.num_conflicts,
        elapsed,
        abandoned: false,
    })
}
