//! The page: a summary, then one section per picture.

use std::collections::BTreeMap;

use super::draw::{cost, escape, grouped, memory, phase, put};
use super::frame::{document, heading, legend, section, tile};
use super::recomputed::{self, Again};
use super::stages::Stages;
use super::{
    ReportInput, arena, devices, lanes, losses, matrices, memory as over_time, search, swapped,
};
use crate::stays::{Stay, stays};
use scrimp_plan::{CheckedPlan, DeviceId, TaskId, Timeline, simulate};

/// Both plans with their times, computed once.
struct Both<'a> {
    input: &'a ReportInput<'a>,
    base: Timeline,
    planned: Timeline,
    again: BTreeMap<TaskId, Again>,
    stays: Vec<Stay>,
}

/// The report as one HTML page that needs no other files.
#[must_use]
pub fn html(input: &ReportInput<'_>) -> String {
    let planned = simulate(input.planned);
    let both = Both {
        input,
        base: simulate(input.base),
        stays: all_stays(input.planned, &planned),
        planned,
        again: recomputed::find(input.base, input.planned, input.device()),
    };
    document(input.title, |out| {
        both.summary(out);
        both.over_time(out);
        both.devices(out);
        both.why(out);
        both.away(out);
        both.matrices(out);
        both.arena(out);
        both.losses(out);
        both.search(out);
        both.numbers(out);
    })
}

/// The stays of the values of every device that computes.
fn all_stays(plan: &CheckedPlan, timeline: &Timeline) -> Vec<Stay> {
    let devices = plan.problem().devices().iter();
    let computing = devices.filter(|(_, device)| device.computes);
    computing
        .flat_map(|(id, _)| stays(plan, timeline, id))
        .collect()
}

/// A change in per cent: `−20.0 %`, `+0.3 %`, `±0 %`.
fn change(from: f64, to: f64) -> String {
    let percent = if from > 0.0 {
        (to - from) / from * 100.0
    } else {
        0.0
    };
    match percent {
        p if p.abs() < 0.005 => "±0 %".into(),
        p if p.abs() < 1.0 => format!("{}{:.2} %", if p < 0.0 { "−" } else { "+" }, p.abs()),
        p => format!("{}{:.1} %", if p < 0.0 { "−" } else { "+" }, p.abs()),
    }
}

impl Both<'_> {
    fn plans(&self) -> (&CheckedPlan, &CheckedPlan) {
        (self.input.base, self.input.planned)
    }

    /// The devices that a plan uses. The one that the summary describes comes first.
    fn used_devices(&self) -> Vec<DeviceId> {
        let (base, planned) = self.plans();
        let first = self.input.device();
        let mut devices: Vec<DeviceId> = planned.problem().devices().keys().collect();
        devices
            .retain(|&device| device == first || base.peak(device).max(planned.peak(device)) > 0);
        devices.sort_by_key(|&device| (device != first, device));
        devices
    }

    fn summary(&self, out: &mut String) {
        let (base, planned) = self.plans();
        let device = self.input.device();
        let units = planned.problem().units();
        let by = format!("planned by {}, {}", self.input.method, self.input.status);
        heading(out, self.input.title, &by);
        out.push_str("<div class=\"tiles\">");
        let mut tile = |name: &str, number: String, note: String| tile(out, name, &number, &note);
        let (before, after) = (base.peak(device), planned.peak(device));
        let saved = format!(
            "{} without a plan: {}",
            memory(units, before),
            change(before as f64, after as f64)
        );
        tile("peak memory", memory(units, after), saved);
        if let Some(budget) = self.input.budget_of(device) {
            let share = if budget > 0 {
                after as f64 / budget as f64 * 100.0
            } else {
                0.0
            };
            tile(
                "budget",
                memory(units, budget),
                format!("{share:.1} % of it used at the peak"),
            );
        }
        let (before, after) = (self.base.makespan(), self.planned.makespan());
        tile(
            "time per step",
            cost(units, after),
            format!("{} without a plan", cost(units, before)),
        );
        let extra = planned.recomputed();
        let runs = format!(
            "{extra} of {} runs repeat one",
            grouped((planned.problem().tasks().len() + extra) as u64)
        );
        tile("overhead", change(before, after), runs);
        if !self.stays.is_empty() {
            let problem = planned.problem();
            let bytes = self
                .stays
                .iter()
                .map(|stay| problem.value(stay.value).bytes);
            let waited = cost(units, self.stays.iter().map(|stay| stay.waited).sum());
            let times = if self.stays.len() == 1 {
                "time"
            } else {
                "times"
            };
            let note = format!("{} {times} away; waits {waited}", self.stays.len());
            tile("swapped", memory(units, bytes.sum()), note);
        }
        out.push_str("</div>");
    }

    fn over_time(&self, out: &mut String) {
        let (base, planned) = self.plans();
        let problem = planned.problem();
        let end = self.base.makespan().max(self.planned.makespan());
        section(out, "Memory over time", "");
        let devices = self.used_devices();
        let mut keys = vec![("planline", "planned"), ("baseline", "without a plan")];
        if devices
            .iter()
            .any(|&device| self.input.budget_of(device).is_some())
        {
            keys.push(("budgetline", "budget"));
        }
        if devices
            .iter()
            .any(|&device| problem.fixed_bytes(device) > 0)
        {
            keys.push(("fixedpart", "fixed: no plan can free it"));
        }
        if self.input.tiles {
            keys.push(("tilemark", "tiles, in turn light and dark"));
        }
        legend(out, &keys);
        for &device in &devices {
            if devices.len() > 1 {
                put!(out, "<h3>{}</h3>", escape(&problem.devices()[device].name));
            }
            let budget = self.input.budget_of(device);
            out.push_str(&over_time::picture(
                (base, &self.base),
                (planned, &self.planned),
                device,
                budget,
                end,
                self.input.tiles,
            ));
        }
        out.push_str("<h3>What runs when</h3>");
        let mut keys = self.phases();
        if !problem.links().is_empty() {
            keys.push(("copy", "copies"));
        }
        legend(out, &keys);
        out.push_str(&lanes::picture(
            (base, &self.base),
            (planned, &self.planned),
            end,
        ));
        out.push_str("</section>");
    }

    /// The legend's keys: the phases that occur, and repeated runs if there are any.
    fn phases(&self) -> Vec<(&'static str, &'static str)> {
        let mut keys = Vec::new();
        for task in self.input.planned.problem().tasks().values() {
            let key = phase(task.phase);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if !self.again.is_empty() {
            keys.push(("again", "runs again"));
        }
        keys
    }

    /// What each device and link does; with several devices that compute also which task runs where.
    fn devices(&self, out: &mut String) {
        let planned = self.input.planned;
        let devices = planned.problem().devices();
        if devices.len() < 2 {
            return;
        }
        let table = devices::work(planned, &self.planned, self.input.capacities);
        section(out, "Devices and links", "");
        put!(out, "<div class=\"scroll\">{table}</div>");
        if devices.values().filter(|device| device.computes).count() > 1 {
            let table = devices::runs(planned, &self.planned);
            put!(
                out,
                "<h3>What runs where, and why</h3><p class=\"quiet\">click a heading to sort by it</p><div \
                 class=\"scroll\">{table}</div>"
            );
        }
        out.push_str("</section>");
    }

    fn why(&self, out: &mut String) {
        let (base, planned) = self.plans();
        let problem = planned.problem();
        section(out, "What runs again, and why", "");
        if self.again.is_empty() {
            out.push_str("<p>Nothing: every task runs once.</p></section>");
            return;
        }
        let peak = recomputed::peak_task(base, self.input.device())
            .map_or("", |task| &problem.task(task).name);
        let freed: u64 = self.again.values().map(|again| again.freed).sum();
        let outcome = match freed {
            0 => "None of the tasks below frees anything there: they run again for another tight spot.".into(),
            freed => format!(
                "Dropping results of the tasks below frees {} by then; they are made again for the tasks that read \
                 them later. Those that free nothing there run again to make others' inputs, or for another tight \
                 spot.",
                memory(problem.units(), freed)
            ),
        };
        let (peak, outcome) = (escape(peak), escape(&outcome));
        put!(
            out,
            "<p>Without a plan, memory is scarcest while <b>{peak}</b> runs. {outcome}</p>"
        );
        let table = recomputed::table(problem, &self.again);
        let count = match self.again.len() {
            1 => "1 task".into(),
            count => format!("{} tasks", grouped(count as u64)),
        };
        put!(
            out,
            "<p class=\"quiet\">{count}; click a heading to sort by it</p><div class=\"scroll\">{table}</div></section>"
        );
    }

    fn away(&self, out: &mut String) {
        if self.stays.is_empty() {
            return;
        }
        let problem = self.input.planned.problem();
        let units = problem.units();
        let makespan = self.planned.makespan();
        let total: u64 = self
            .stays
            .iter()
            .map(|stay| problem.value(stay.value).bytes)
            .sum();
        let waited: f64 = self.stays.iter().map(|stay| stay.waited).sum();
        let text = format!(
            "Values of {} in all wait in another memory while others need their room; the device waits {} for \
             their copies, {} of the time per step.",
            memory(units, total),
            cost(units, waited),
            format_args!("{:.2} %", waited / makespan.max(f64::MIN_POSITIVE) * 100.0)
        );
        section(out, "What waits elsewhere, and why", &escape(&text));
        legend(out, &[("copy", "copies"), ("away", "away")]);
        let end = self.base.makespan().max(makespan);
        out.push_str(&swapped::picture(problem, &self.stays, makespan, end));
        let table = swapped::table(problem, &self.stays, makespan);
        put!(
            out,
            "<p class=\"quiet\">click a heading to sort by it</p><div class=\"scroll\">{table}</div></section>"
        );
    }

    fn matrices(&self, out: &mut String) {
        let problem = self.input.planned.problem();
        let mut text = String::from(
            "Tasks are counted in the order of their first executions; stage <i>t</i> ends with the <i>t</i>-th of \
             these. R: the tasks that run in each stage, with repeated ones off the diagonal. S: the tasks whose \
             results are in memory when the stage begins.",
        );
        let per_cell = matrices::tasks_per_cell(problem.tasks().len());
        if per_cell > 1 {
            put!(
                text,
                " Each cell stands for {per_cell} tasks and {per_cell} stages; the darker it is in S, the more of them are in memory."
            );
        }
        section(out, "The matrices R and S", &text);
        let stages = Stages::new(self.input.planned);
        let (runs, kept) = matrices::pictures(problem, &stages);
        out.push_str("<div class=\"pair\"><figure>");
        legend(out, &self.phases());
        put!(
            out,
            "{runs}<figcaption>R: what runs</figcaption></figure><figure>"
        );
        let mut keys = vec![("kept", "in memory")];
        if !stages.dropped.is_empty() {
            keys.push(("dropped", "dropped, and needed later"));
        }
        legend(out, &keys);
        put!(
            out,
            "{kept}<figcaption>S: what is kept</figcaption></figure></div></section>"
        );
    }

    fn arena(&self, out: &mut String) {
        let Some(layout) = self.input.layout else {
            return;
        };
        let pictures: Vec<_> = self
            .used_devices()
            .into_iter()
            .filter_map(|device| Some((device, arena::picture(layout, device)?)))
            .collect();
        if pictures.is_empty() {
            return;
        }
        section(
            out,
            "Where in memory",
            "Each rectangle is a buffer: its bytes in the arena, from the step that makes it to the step that frees it.",
        );
        let mut keys = vec![
            ("fwd", "made forward"),
            ("bwd", "made backward"),
            ("upd", "made by an update"),
            ("given", "given"),
            ("scratch", "workspace"),
        ];
        keys.retain(|(class, _)| {
            let mark = format!("\"buffer {class}\"");
            pictures.iter().any(|(_, picture)| picture.contains(&mark))
        });
        legend(out, &keys);
        for (device, picture) in &pictures {
            if pictures.len() > 1 {
                put!(
                    out,
                    "<h3>{}</h3>",
                    escape(&layout.plan().problem().devices()[*device].name)
                );
            }
            out.push_str(picture);
        }
        out.push_str("</section>");
    }

    fn losses(&self, out: &mut String) {
        let Some((series, picture)) = self
            .input
            .losses
            .and_then(|series| Some((series, losses::picture(series)?)))
        else {
            return;
        };
        let same = match series.base {
            [] => "",
            base if base
                .iter()
                .map(|loss| loss.to_bits())
                .eq(series.planned.iter().map(|loss| loss.to_bits())) =>
            {
                "The losses with and without the plan are the same, bit for bit."
            }
            _ => "The losses with and without the plan differ.",
        };
        section(out, "Training loss", same);
        legend(
            out,
            &[("planline", "planned"), ("baseline", "without a plan")],
        );
        put!(out, "{picture}</section>");
    }

    fn search(&self, out: &mut String) {
        let Some((history, picture)) = self
            .input
            .history
            .and_then(|history| Some((history, search::picture(history.moments())?)))
        else {
            return;
        };
        let outlook = history.outlook().map(|text| escape(&text));
        section(out, "The search", &outlook.unwrap_or_default());
        legend(
            out,
            &[
                ("planline", "added time of the best plan"),
                ("boundline", "proven: no plan adds less"),
            ],
        );
        put!(out, "{picture}</section>");
    }

    fn numbers(&self, out: &mut String) {
        let (base, planned) = self.plans();
        let (problem, device) = (planned.problem(), self.input.device());
        let units = problem.units();
        section(out, "Numbers", "");
        out.push_str("<table class=\"numbers\"><tbody>");
        let mut row = |name: &str, number: &str| {
            put!(
                out,
                "<tr><th>{}</th><td>{}</td></tr>",
                escape(name),
                escape(number)
            );
        };
        let exact = |amount: u64| match units.bytes_per_unit() {
            Some(1) => format!("{} B ({})", grouped(amount), memory(units, amount)),
            _ => format!("{} {}", grouped(amount), units.memory),
        };
        row("problem", problem.name());
        row("method", self.input.method);
        row("status", self.input.status);
        if let Some(budget) = self.input.budget_of(device) {
            row("budget", &exact(budget));
        }
        row("peak", &exact(planned.peak(device)));
        row("peak without a plan", &exact(base.peak(device)));
        row("fixed", &exact(problem.fixed_bytes(device)));
        if let Some(layout) = self.input.layout {
            row("arena", &exact(layout.arena_bytes(device)));
        }
        row("cost of all runs", &cost(units, planned.cost()));
        row("cost without a plan", &cost(units, base.cost()));
        row("time per step", &cost(units, self.planned.makespan()));
        row("time without a plan", &cost(units, self.base.makespan()));
        row(
            "tasks, values",
            &format!(
                "{}, {}",
                grouped(problem.tasks().len() as u64),
                grouped(problem.values().len() as u64)
            ),
        );
        row(
            "steps, runs beyond the first",
            &format!(
                "{}, {}",
                grouped(planned.steps().len() as u64),
                planned.recomputed()
            ),
        );
        row(
            "first runs in the given order",
            if planned.keeps_order() { "yes" } else { "no" },
        );
        for (name, number) in self.input.numbers {
            row(name, number);
        }
        out.push_str("</tbody></table></section>");
    }
}
