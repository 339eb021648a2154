//! What Python gets back: a checked plan with its numbers, and a placement. Lists travel as native
//! 64-bit integers in one `bytes`, which the Python side wraps into arrays.

use std::borrow::Cow;

use cranelift_entity::EntityRef;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scrimp::History;
use scrimp::plan::{
    BufferKind, Capacities, CheckedLayout, CheckedPlan, DeviceId, Origin, Step, format_bytes,
    format_seconds, plan_to_json, problem_to_json, simulate,
};
use scrimp::report::{ReportInput, html, perfetto};
use scrimp::solve::{Placement, place};

use crate::failure::Failure;

/// What the planner says of a plan.
pub struct Found {
    pub method: &'static str,
    pub lower_bound: f64,
    pub optimal: bool,
    pub seconds: f64,
    pub attempts: usize,
    pub history: Option<History>,
}

/// A checked plan of one computing device.
#[pyclass(frozen, module = "scrimp._native")]
pub struct Planned {
    pub plan: CheckedPlan,
    pub base: CheckedPlan,
    pub device: DeviceId,
    pub budget: u64,
    pub fixed: u64,
    pub found: Found,
    pub layout: Option<CheckedLayout>,
    pub interrupted: bool,
}

impl Planned {
    fn swaps(&self) -> bool {
        let steps = self.plan.steps();
        steps.iter().any(|step| matches!(step, Step::Copy { .. }))
    }
}

/// Native 64-bit integers, one after another.
fn packed<'py>(py: Python<'py>, numbers: impl Iterator<Item = u64>) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = numbers.flat_map(u64::to_ne_bytes).collect();
    PyBytes::new(py, &bytes)
}

#[pymethods]
impl Planned {
    #[getter]
    fn name(&self) -> &str {
        self.plan.problem().name()
    }

    #[getter]
    fn method(&self) -> &'static str {
        self.found.method
    }

    #[getter]
    fn budget(&self) -> u64 {
        self.budget
    }

    #[getter]
    fn peak(&self) -> u64 {
        self.plan.peak(self.device)
    }

    #[getter]
    fn fixed(&self) -> u64 {
        self.fixed
    }

    #[getter]
    fn base_peak(&self) -> u64 {
        self.base.peak(self.device)
    }

    /// The makespan; without copies that is the sum of all runs.
    #[getter]
    fn cost(&self) -> f64 {
        if self.swaps() {
            simulate(&self.plan).makespan()
        } else {
            self.plan.cost()
        }
    }

    #[getter]
    fn base_cost(&self) -> f64 {
        self.base.cost()
    }

    #[getter]
    fn lower_bound(&self) -> f64 {
        self.found.lower_bound
    }

    #[getter]
    fn optimal(&self) -> bool {
        self.found.optimal
    }

    #[getter]
    fn seconds(&self) -> f64 {
        self.found.seconds
    }

    #[getter]
    fn attempts(&self) -> usize {
        self.found.attempts
    }

    #[getter]
    fn recomputed(&self) -> usize {
        self.plan.recomputed()
    }

    #[getter]
    fn keeps_order(&self) -> bool {
        self.plan.keeps_order()
    }

    #[getter]
    fn interrupted(&self) -> bool {
        self.interrupted
    }

    #[getter]
    fn memory_unit(&self) -> &str {
        &self.plan.problem().units().memory
    }

    #[getter]
    fn cost_unit(&self) -> &str {
        &self.plan.problem().units().cost
    }

    #[getter]
    fn arena(&self) -> Option<u64> {
        let layout = self.layout.as_ref()?;
        Some(layout.arena_bytes(self.device))
    }

    /// The given values that live in a memory.
    fn homes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let values = self.plan.problem().values().iter();
        let away = values.filter(
            |(_, value)| matches!(value.origin, Origin::Given(device) if device != self.device),
        );
        packed(py, away.map(|(id, _)| id.index() as u64))
    }

    /// Per step: 0 runs a task, 1 frees a value, 2 stores it in a memory, 3 brings it from one, 4 frees it
    /// there.
    fn step_kinds<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(
            py,
            self.plan.steps().iter().map(|step| match *step {
                Step::Run { .. } => 0,
                Step::Free { device, .. } if device == self.device => 1,
                Step::Copy { from, .. } if from == self.device => 2,
                Step::Copy { .. } => 3,
                Step::Free { .. } => 4,
            }),
        )
    }

    /// Per step: the task or the value.
    fn step_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(
            py,
            self.plan.steps().iter().map(|step| match *step {
                Step::Run { task, .. } => task.index() as u64,
                Step::Free { value, .. } | Step::Copy { value, .. } => value.index() as u64,
            }),
        )
    }

    /// Bytes in use during each step.
    fn profile<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, self.plan.profile(self.device).iter().copied())
    }

    /// Per buffer: value (or −1 for workspace), first step, step after the last, bytes, offset.
    fn buffers<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let layout = self.layout.as_ref()?;
        let rows = layout.plan().buffers().iter().flat_map(|(id, buffer)| {
            let value = match buffer.kind {
                BufferKind::Value(value) => value.index() as u64,
                BufferKind::Workspace(_) => u64::MAX,
            };
            [
                value,
                buffer.start as u64,
                buffer.end as u64,
                buffer.bytes,
                layout.offset(id),
            ]
        });
        Some(packed(py, rows))
    }

    fn to_json(&self) -> String {
        plan_to_json(self.plan.problem(), self.plan.plan(), None)
    }

    fn problem_json(&self) -> String {
        problem_to_json(
            self.plan.problem(),
            &Capacities::bytes_of(self.device, self.budget),
        )
    }

    fn perfetto(&self) -> String {
        perfetto(&self.plan)
    }

    /// The report as one HTML page.
    fn report(
        &self,
        py: Python<'_>,
        title: &str,
        mut numbers: Vec<(String, String)>,
    ) -> Result<String, Failure> {
        py.detach(|| {
            let base = self.base.cost();
            numbers.insert(
                0,
                (
                    "lower bound on the overhead, proven".into(),
                    format!(
                        "{:+.2} %",
                        scrimp::percent_over(self.found.lower_bound, base)
                    ),
                ),
            );
            numbers.insert(
                1,
                ("planning took".into(), format_seconds(self.found.seconds)),
            );
            let layout = match &self.layout {
                Some(layout) => Some(Cow::Borrowed(layout)),
                // The picture of the arena is worth a placement, whether or not it fits.
                None => {
                    let placed = place(&self.plan, &Capacities::unlimited())
                        .map_err(|e| Failure::Internal(e.to_string()))?;
                    Some(Cow::Owned(placed))
                }
            };
            Ok(html(&ReportInput {
                title,
                method: self.found.method,
                status: if self.found.optimal {
                    "optimal: proven to cost the least"
                } else {
                    "feasible: checked, perhaps not the cheapest"
                },
                capacities: &Capacities::bytes_of(self.device, self.budget),
                numbers: &numbers,
                base: &self.base,
                planned: &self.plan,
                tiles: false,
                layout: layout.as_deref(),
                history: self.found.history.as_ref(),
                losses: None,
            }))
        })
    }

    fn __repr__(&self) -> String {
        format!(
            "<plan with a peak of {}>",
            format_bytes(self.plan.peak(self.device))
        )
    }
}

/// Offsets of bare intervals.
#[pyclass(frozen, module = "scrimp._native")]
pub struct Placed(pub Placement);

#[pymethods]
impl Placed {
    fn offsets<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        packed(py, self.0.offsets.iter().copied())
    }

    #[getter]
    fn arena(&self) -> u64 {
        self.0.arena_bytes
    }

    #[getter]
    fn live(&self) -> u64 {
        self.0.live_bytes
    }
}
