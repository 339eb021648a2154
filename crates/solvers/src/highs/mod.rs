//! HiGHS: linear and mixed-integer programs.

pub(crate) mod ffi;
mod model;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::error::SolverError;
use crate::library::Library;
use ffi::{Call, HighsApi, Instance, News, Watch};
pub use model::{Column, Kind, Model};

/// HiGHS, loaded. Copies are handles to the same library.
#[derive(Clone, Copy)]
pub struct Highs {
    api: &'static HighsApi,
}

/// How to solve linear programs (all of them, or the relaxations of a mixed-integer program).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LpMethod {
    /// HiGHS decides.
    #[default]
    Choose,
    /// Dual simplex.
    Simplex,
    /// Interior point with crossover.
    InteriorPoint,
}

/// Limits and tolerances of one solve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wall time. The solve returns at most about two seconds later, whatever HiGHS does.
    pub time_limit: Duration,
    /// Threads of this solve; at least 1.
    pub threads: usize,
    /// Of HiGHS' random choices.
    pub seed: u32,
    /// Stop when `(objective − bound) / |objective|` is at most this.
    pub relative_gap: f64,
    /// Stop when `objective − bound` is at most this.
    pub absolute_gap: f64,
    /// By how much a row, a bound or integrality may be violated.
    pub feasibility: f64,
    /// Solve the linear relaxation.
    pub relax: bool,
    /// For the linear programs.
    pub lp: LpMethod,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            time_limit: Duration::from_secs(3600),
            threads: 1,
            seed: 0,
            relative_gap: 1e-9,
            absolute_gap: 1e-9,
            feasibility: 1e-6,
            relax: false,
            lp: LpMethod::Choose,
        }
    }
}

/// A simplex basis, in HiGHS' codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    columns: Vec<i32>,
    rows: Vec<i32>,
}

/// Where to begin.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Values of all or some columns of a mixed-integer program; HiGHS completes the rest.
    pub values: Vec<(Column, f64)>,
    /// Of an earlier solve of a linear program with as many columns and rows; ignored otherwise.
    pub basis: Option<Basis>,
}

/// How a solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The objective is within the gaps of the bound.
    Optimal,
    /// A limit or a stop came first; there is a solution.
    Feasible,
    /// There is none.
    Infeasible,
    /// The objective has no minimum.
    Unbounded,
    /// A limit or a stop came first; there is no solution yet.
    Unknown,
}

/// What a solve found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// How it ended.
    pub status: Status,
    /// One per column; empty if there is no solution.
    pub values: Vec<f64>,
    /// By how much the objective of a linear program grows per unit of each column; empty for others.
    pub reduced_costs: Vec<f64>,
    /// Objective of `values`; infinity without.
    pub objective: f64,
    /// No solution has a smaller objective; minus infinity if nothing is known.
    pub bound: f64,
    /// Of a linear program that was solved.
    pub basis: Option<Basis>,
    /// Nodes of the branch-and-bound tree.
    pub nodes: i64,
    /// Wall time.
    pub elapsed: Duration,
    /// HiGHS didn't stop in time and was left behind; the values are its last incumbent.
    pub abandoned: bool,
}

/// What is known while a solve runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Wall time so far.
    pub elapsed: Duration,
    /// Objective of the incumbent; infinity without.
    pub objective: f64,
    /// Proven bound; minus infinity without.
    pub bound: f64,
    /// The incumbent, when it is new.
    pub values: Option<&'a [f64]>,
}

/// How long HiGHS may take to notice that it should stop before it is left behind.
const PATIENCE: Duration = Duration::from_millis(2500);
/// How often the caller is asked whether to go on.
const TICK: Duration = Duration::from_millis(50);

impl Highs {
    /// Loads HiGHS from `path` (a file or its folder), else from where `SCRIMP_HIGHS`, the Python
    /// environment or the system has it.
    ///
    /// # Errors
    /// If it isn't there, can't be loaded, or would be a second copy in this process.
    pub fn load(path: Option<&Path>) -> Result<Highs, SolverError> {
        crate::load::highs(path).map(|api| Highs { api })
    }

    /// The library's version, like `1.12.0`.
    #[must_use]
    pub fn version(&self) -> String {
        self.api.version()
    }

    /// Minimizes the model. `progress` is called on this thread, at every news and about twenty times
    /// a second; the solve stops early when it returns false.
    ///
    /// # Errors
    /// If HiGHS refuses the model or an option, or fails while solving.
    pub fn solve(
        &self,
        model: &Arc<Model>,
        options: &Options,
        start: Start,
        progress: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Result<Solution, SolverError> {
        model.check()?;
        let began = Instant::now();
        let stop = Arc::new(AtomicBool::new(false));
        let (news, hear) = channel();
        let (finish, done) = channel();
        let job = Job {
            api: self.api,
            model: Arc::clone(model),
            options: options.clone(),
            start,
            stop: Arc::clone(&stop),
        };
        let spawned = std::thread::Builder::new()
            .name("highs".into())
            .stack_size(64 << 20)
            .spawn(move || {
                let result = job.run(news);
                // Nobody waits for a solve that was left behind.
                let _ = finish.send(result);
            });
        if let Err(error) = spawned {
            return Err(SolverError::Failed {
                library: Library::Highs,
                reason: error.to_string(),
            });
        }
        let limit = began + options.time_limit;
        let mut wait = Wait {
            began,
            limit,
            stop: &stop,
            best: Best::default(),
        };
        let answer = wait.answer(&hear, &done, progress);
        let best = wait.best;
        match answer {
            Some(Ok(mut solution)) => {
                solution.elapsed = began.elapsed();
                solution.bound = solution.bound.max(best.bound);
                Ok(solution)
            }
            Some(Err(call)) => Err(SolverError::Refused {
                library: Library::Highs,
                call: call.into(),
            }),
            None => Ok(Solution {
                status: if best.values.is_some() {
                    Status::Feasible
                } else {
                    Status::Unknown
                },
                values: best.values.unwrap_or_default(),
                reduced_costs: Vec::new(),
                objective: best.objective,
                bound: best.bound,
                basis: None,
                nodes: 0,
                elapsed: began.elapsed(),
                abandoned: true,
            }),
        }
    }
}

/// The incumbent as the callbacks told it.
struct Best {
    objective: f64,
    bound: f64,
    values: Option<Vec<f64>>,
}

impl Default for Best {
    fn default() -> Self {
        Best {
            objective: f64::INFINITY,
            bound: f64::NEG_INFINITY,
            values: None,
        }
    }
}

/// The caller's side of a solve.
struct Wait<'a> {
    began: Instant,
    limit: Instant,
    stop: &'a AtomicBool,
    best: Best,
}

impl Wait<'_> {
    /// Passes on news until the answer is there; nothing if HiGHS overran its limit by too much.
    fn answer(
        &mut self,
        hear: &Receiver<News>,
        done: &Receiver<Call<Solution>>,
        progress: &mut dyn FnMut(&Progress<'_>) -> bool,
    ) -> Option<Call<Solution>> {
        let mut deadline = self.limit;
        loop {
            match hear.recv_timeout(TICK) {
                Ok(news) => {
                    let fresh = self.best.take(news);
                    self.tell(fresh, progress);
                }
                Err(RecvTimeoutError::Timeout) => self.tell(false, progress),
                // The sender goes when the solve ends.
                Err(RecvTimeoutError::Disconnected) => return done.recv().ok(),
            }
            let now = Instant::now();
            if self.stop.load(Ordering::Relaxed) {
                deadline = deadline.min(now);
            } else if now >= self.limit {
                self.stop.store(true, Ordering::Relaxed);
            }
            if self.stop.load(Ordering::Relaxed) && now >= deadline + PATIENCE {
                return None;
            }
        }
    }

    fn tell(&self, fresh: bool, progress: &mut dyn FnMut(&Progress<'_>) -> bool) {
        let go_on = progress(&Progress {
            elapsed: self.began.elapsed(),
            objective: self.best.objective,
            bound: self.best.bound,
            values: self.best.values.as_deref().filter(|_| fresh),
        });
        if !go_on {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Best {
    /// Whether there is a new incumbent.
    fn take(&mut self, news: News) -> bool {
        self.bound = self.bound.max(news.dual);
        self.objective = self.objective.min(news.primal);
        let fresh = news.values.is_some();
        if fresh {
            self.values = news.values;
        }
        fresh
    }
}

/// The solver's side: everything it needs, owned.
struct Job {
    api: &'static HighsApi,
    model: Arc<Model>,
    options: Options,
    start: Start,
    stop: Arc<AtomicBool>,
}

impl Job {
    fn run(&self, news: Sender<News>) -> Call<Solution> {
        let columns = self.model.columns();
        let watch = Watch {
            api: self.api,
            columns,
            stop: &self.stop,
            news,
        };
        let mut highs = Instance::new(self.api)?;
        self.set_options(&mut highs)?;
        highs.pass(&self.model, self.options.relax)?;
        let mip = !self.options.relax && self.model.kinds.contains(&Kind::Integer);
        highs.watch(&watch, mip)?;
        self.set_start(&mut highs, mip)?;
        highs.run()?;
        self.solution(&highs, mip)
    }

    fn set_options(&self, highs: &mut Instance<'_>) -> Call<()> {
        let options = &self.options;
        // Before anything else, for options that are refused are told about.
        highs.set_bool(c"output_flag", false)?;
        highs.set_bool(c"log_to_console", false)?;
        highs.set_double(c"time_limit", options.time_limit.as_secs_f64())?;
        highs.set_int(c"threads", options.threads.clamp(1, 1024) as i32)?;
        highs.set_int(c"random_seed", (options.seed & 0x7fff_ffff) as i32)?;
        highs.set_double(c"mip_rel_gap", options.relative_gap)?;
        highs.set_double(c"mip_abs_gap", options.absolute_gap)?;
        highs.set_double(c"mip_feasibility_tolerance", options.feasibility)?;
        highs.set_double(c"primal_feasibility_tolerance", options.feasibility)?;
        let lp = match options.lp {
            LpMethod::Choose => return Ok(()),
            LpMethod::Simplex => "simplex",
            LpMethod::InteriorPoint => "ipm",
        };
        highs.set_string(c"solver", lp)
    }

    fn set_start(&self, highs: &mut Instance<'_>, mip: bool) -> Call<()> {
        if mip && !self.start.values.is_empty() {
            let (columns, values): (Vec<i32>, Vec<f64>) = self
                .start
                .values
                .iter()
                .map(|(column, value)| (column.index() as i32, *value))
                .unzip();
            highs.start(&columns, &values)?;
        }
        match &self.start.basis {
            Some(basis)
                if !mip
                    && basis.columns.len() == self.model.columns()
                    && basis.rows.len() == self.model.rows() =>
            {
                highs.set_basis(&basis.columns, &basis.rows)
            }
            _ => Ok(()),
        }
    }

    fn solution(&self, highs: &Instance<'_>, mip: bool) -> Call<Solution> {
        let (columns, rows) = (self.model.columns(), self.model.rows());
        let found = highs.int_info(c"primal_solution_status") == Some(2);
        let status = match highs.status() {
            6 | 7 => Status::Optimal,
            8 => Status::Infeasible,
            9 | 10 => Status::Unbounded,
            11..=14 | 16 | 17 if found && mip => Status::Feasible,
            11..=14 | 16 | 17 => Status::Unknown,
            _ => return Err("Highs_run"),
        };
        let has_values = matches!(status, Status::Optimal | Status::Feasible);
        let objective = highs
            .double_info(c"objective_function_value")
            .unwrap_or(f64::INFINITY);
        let objective = if has_values { objective } else { f64::INFINITY };
        let bound = match (status, mip) {
            (Status::Infeasible, _) => f64::INFINITY,
            (_, true) => highs
                .double_info(c"mip_dual_bound")
                .unwrap_or(f64::NEG_INFINITY),
            (Status::Optimal, false) => objective,
            (_, false) => f64::NEG_INFINITY,
        };
        let (values, mut reduced_costs) = if has_values {
            highs.solution(columns, rows)?
        } else {
            Default::default()
        };
        if mip {
            reduced_costs.clear();
        }
        Ok(Solution {
            status,
            values,
            reduced_costs,
            objective,
            bound,
            basis: if mip {
                None
            } else {
                highs.basis(columns, rows)
            }
            .map(|(columns, rows)| Basis { columns, rows }),
            nodes: highs.int64_info(c"mip_node_count").unwrap_or(0),
            elapsed: Duration::ZERO,
            abandoned: false,
        })
    }
}
