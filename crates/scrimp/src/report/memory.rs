//! Memory over time: bytes in use on a device, planned and without a plan, against the budget.

use super::draw::{LEFT, RIGHT, Scale, WIDTH, escape, memory, memory_ticks, put, time_axis};
use super::tiles::marks;
use scrimp_plan::{BufferId, CheckedPlan, DeviceId, Step, Timeline, Units, simulate};

const HEIGHT: f64 = 300.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 24.0;
/// Columns that show their numbers under the pointer.
const COLUMNS: usize = 276;

/// Bytes in use from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    time: f64,
    bytes: u64,
}

/// Bytes in use on one device as a function of time. Several levels at one moment are a spike.
fn curve(plan: &CheckedPlan, timeline: &Timeline, device: DeviceId) -> Vec<Level> {
    let mut now = 0.0;
    let mut levels = Vec::new();
    let bytes_of = |buffer: BufferId| plan.buffers()[buffer].bytes;
    for (k, (&step, span)) in plan.steps().iter().zip(timeline.spans()).enumerate() {
        let bytes = plan.profile(device)[k];
        let binding = plan.binding(k);
        let passing = match step {
            Step::Run { device: at, .. } if at == device => binding.workspace.map(bytes_of),
            Step::Free { device: at, .. } if at == device => {
                binding.inputs.first().copied().map(bytes_of)
            }
            // The destination takes the bytes when the copy's turn comes, however long the link is busy.
            Step::Copy { to, .. } if to == device => {
                levels.push(Level { time: now, bytes });
                continue;
            }
            _ => continue,
        };
        levels.push(Level {
            time: span.start,
            bytes,
        });
        now = span.end;
        levels.push(Level {
            time: now,
            bytes: bytes - passing.unwrap_or(0),
        });
    }
    if let Some(last) = levels.last() {
        levels.push(Level {
            time: timeline.makespan(),
            bytes: last.bytes,
        });
    }
    levels
}

/// The curve as a path of horizontal and vertical lines, at most a few per pixel: of the levels in one pixel
/// column only the first, the least, the greatest and the last are drawn.
fn path(levels: &[Level], x: Scale, y: Scale) -> String {
    let mut out = String::new();
    let mut rest = levels;
    while let Some(first) = rest.first() {
        let column = (x.at(first.time) * 2.0).floor();
        let count = rest
            .iter()
            .take_while(|level| (x.at(level.time) * 2.0).floor() == column)
            .count();
        let (here, later) = rest.split_at(count);
        rest = later;
        let bytes = here.iter().map(|level| level.bytes);
        let (low, high) = (bytes.clone().min().unwrap_or(0), bytes.max().unwrap_or(0));
        let at = |bytes: u64| y.at(bytes as f64);
        let position = x.at(first.time);
        if out.is_empty() {
            put!(out, "M{position:.1},{:.1}", at(first.bytes));
        } else {
            put!(out, "H{position:.1}V{:.1}", at(first.bytes));
        }
        if count > 1 {
            put!(
                out,
                "V{:.1}V{:.1}V{:.1}",
                at(high),
                at(low),
                at(here[count - 1].bytes)
            );
        }
    }
    out
}

/// The picture for one device. `budget` is drawn as a line; `x` is shared with other pictures.
pub(super) fn picture(
    base: (&CheckedPlan, &Timeline),
    planned: (&CheckedPlan, &Timeline),
    device: DeviceId,
    budget: Option<u64>,
    end: f64,
    tiles: bool,
) -> String {
    let problem = planned.0.problem();
    let units = problem.units();
    let curves = [
        curve(base.0, base.1, device),
        curve(planned.0, planned.1, device),
    ];
    let peak = base.0.peak(device).max(planned.0.peak(device));
    // A budget far above both peaks would flatten the curves, so it is only named.
    let shown = budget.filter(|&budget| budget <= peak.saturating_mul(2));
    let y = Scale::new(peak.max(shown.unwrap_or(0)) as f64 * 1.06, BOTTOM, TOP);
    let x = Scale::new(end, LEFT, RIGHT);
    let mut out = String::new();
    let label = format!("Memory over time on {}", problem.devices()[device].name);
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{}">"#,
        escape(&label)
    );
    axes(&mut out, units, x, y);
    let fixed = problem.fixed_bytes(device);
    if fixed > 0 {
        let top = y.at(fixed as f64);
        put!(
            out,
            r#"<rect class="fixedpart" x="{LEFT}" y="{top:.1}" width="{:.1}" height="{:.1}"/>"#,
            RIGHT - LEFT,
            BOTTOM - top
        );
        put!(
            out,
            r#"<text class="note" x="{:.1}" y="{:.1}">fixed: {}</text>"#,
            LEFT + 6.0,
            top - 4.0,
            escape(&memory(units, fixed))
        );
    }
    for (levels, class) in curves.iter().zip(["base", "plan"]) {
        if let (Some(first), Some(last)) = (levels.first(), levels.last()) {
            let line = path(levels, x, y);
            let (from, to) = (x.at(first.time), x.at(last.time));
            put!(
                out,
                r#"<path class="area {class}" d="{line}H{to:.1}V{BOTTOM}H{from:.1}Z"/><path class="line {class}" d="{line}"/>"#
            );
        }
    }
    if let Some(budget) = shown {
        let at = y.at(budget as f64);
        put!(
            out,
            r#"<line class="budget" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/>"#
        );
        let text = escape(&memory(units, budget));
        put!(
            out,
            r#"<text class="note budgettext end" x="{:.1}" y="{:.1}">budget {text}</text>"#,
            RIGHT - 4.0,
            at - 5.0
        );
    }
    columns(&mut out, planned, device, &curves, x);
    if tiles {
        marks(&mut out, planned, device, x, [TOP - 8.0, 6.0]);
    }
    out.push_str("</svg>");
    out
}

fn axes(out: &mut String, units: &Units, x: Scale, y: Scale) {
    time_axis(out, units, x, TOP, BOTTOM, true);
    for (tick, label) in memory_ticks(units, y.max()) {
        let at = y.at(tick);
        put!(
            out,
            r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/>"#
        );
        put!(
            out,
            r#"<text class="tick end" x="{:.1}" y="{:.1}">{label}</text>"#,
            LEFT - 8.0,
            at + 4.0
        );
    }
}

/// Invisible columns that show the numbers of their stretch of time. Neighbours with the same numbers are
/// merged.
fn columns(
    out: &mut String,
    planned: (&CheckedPlan, &Timeline),
    device: DeviceId,
    curves: &[Vec<Level>; 2],
    x: Scale,
) {
    let units = planned.0.problem().units();
    let mut most = curves.each_ref().map(|levels| Most {
        levels,
        next: 0,
        last: 0,
    });
    let mut running = Running {
        plan: planned.0,
        timeline: planned.1,
        device,
        step: 0,
    };
    let moment = |column: f64| column / COLUMNS as f64 * x.max();
    let mut joined: Vec<(usize, String)> = Vec::new();
    for column in 0..COLUMNS {
        let [base, plan] = most
            .each_mut()
            .map(|most| most.until(moment(column as f64 + 1.0)));
        let mut lines: Vec<String> = Vec::new();
        lines.extend(running.at(moment(column as f64 + 0.5)).map(escape));
        let bytes = |name: &str, bytes: Option<u64>| {
            Some(format!("{name}: {}", escape(&memory(units, bytes?))))
        };
        lines.extend(bytes("planned", plan));
        lines.extend(bytes("without a plan", base));
        let tip = lines.join("\n");
        if joined.last().is_none_or(|(_, last)| *last != tip) {
            joined.push((column, tip));
        }
    }
    let width = (RIGHT - LEFT) / COLUMNS as f64;
    let ends = joined
        .iter()
        .skip(1)
        .map(|(column, _)| *column)
        .chain([COLUMNS]);
    for ((start, tip), end) in joined.iter().zip(ends) {
        let (at, wide) = (LEFT + *start as f64 * width, (end - start) as f64 * width);
        put!(
            out,
            r#"<rect class="column" x="{at:.1}" y="{TOP}" width="{wide:.1}" height="{:.0}" data-tip="{tip}"/>"#,
            BOTTOM - TOP
        );
    }
}

/// Walks over a timeline and names the task that runs at each of some ascending moments.
struct Running<'a> {
    plan: &'a CheckedPlan,
    timeline: &'a Timeline,
    device: DeviceId,
    step: usize,
}

impl<'a> Running<'a> {
    fn at(&mut self, moment: f64) -> Option<&'a str> {
        let spans = self.timeline.spans();
        while let Some(&step) = self.plan.steps().get(self.step) {
            match step {
                Step::Run { task, device }
                    if device == self.device && spans[self.step].end > moment =>
                {
                    let here = spans[self.step].start <= moment;
                    return here.then(|| self.plan.problem().task(task).name.as_str());
                }
                _ => self.step += 1,
            }
        }
        None
    }
}

/// Walks over a curve and gives the most bytes in use in each stretch.
struct Most<'a> {
    levels: &'a [Level],
    next: usize,
    last: u64,
}

impl Most<'_> {
    /// `None` after the end of the curve.
    fn until(&mut self, end: f64) -> Option<u64> {
        let mut most = (self.next > 0 && self.next < self.levels.len()).then_some(self.last);
        while let Some(level) = self.levels.get(self.next).filter(|level| level.time < end) {
            most = Some(most.unwrap_or(0).max(level.bytes));
            self.last = level.bytes;
            self.next += 1;
        }
        most
    }
}

/// Memory over time on one device as an SVG file, in light colours.
///
/// # Panics
/// If the device isn't one of the plans' problem.
#[must_use]
pub fn svg_memory(
    base: &CheckedPlan,
    planned: &CheckedPlan,
    device: DeviceId,
    budget: Option<u64>,
) -> String {
    let (base_times, times) = (simulate(base), simulate(planned));
    let end = base_times.makespan().max(times.makespan());
    let curves = ((base, &base_times), (planned, &times));
    let picture = picture(curves.0, curves.1, device, budget, end, false);
    let style = concat!(
        "<style>",
        include_str!("colours.css"),
        include_str!("pictures.css"),
        "</style>"
    );
    picture
        .replacen(
            "<svg ",
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"alone\" ",
            1,
        )
        .replacen('>', &format!(">{style}"), 1)
}
