//! The arena: the contents of its bytes, step by step.

use super::draw::{LEFT, RIGHT, Scale, WIDTH, escape, grouped, memory, memory_ticks, phase, put};
use super::lanes::tip;
use scrimp_plan::{Buffer, BufferKind, CheckedLayout, DeviceId, Origin};

const HEIGHT: f64 = 380.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = HEIGHT - 24.0;
/// The most buffers that are drawn: those with the largest product of bytes and steps.
const BUFFERS: usize = 6000;

/// The picture for one device; `None` if its arena is empty.
pub(super) fn picture(layout: &CheckedLayout, device: DeviceId) -> Option<String> {
    let plan = layout.plan();
    let (problem, arena) = (plan.problem(), layout.arena_bytes(device));
    if arena == 0 {
        return None;
    }
    let steps = plan.steps().len();
    let x = Scale::new(steps as f64, LEFT, RIGHT);
    let y = Scale::new(arena as f64 * 1.04, BOTTOM, TOP);
    let mut out = String::new();
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Buffers in the arena over the plan's steps">"#
    );
    for (tick, label) in memory_ticks(problem.units(), y.max()) {
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
    put!(
        out,
        r#"<text class="tick" x="{LEFT}" y="{:.1}">step 0</text>"#,
        BOTTOM + 15.0
    );
    put!(
        out,
        r#"<text class="tick end" x="{RIGHT}" y="{:.1}">step {}</text>"#,
        BOTTOM + 15.0,
        grouped(steps as u64)
    );
    let here = plan
        .buffers()
        .iter()
        .filter(|(_, buffer)| buffer.device == device && buffer.bytes > 0);
    let mut buffers: Vec<_> = here.collect();
    let area = |buffer: &Buffer| buffer.bytes as f64 * (buffer.end - buffer.start) as f64;
    buffers.sort_by(|a, b| area(b.1).total_cmp(&area(a.1)).then(a.0.cmp(&b.0)));
    for &(id, buffer) in buffers.iter().take(BUFFERS) {
        let (from, to) = (x.at(buffer.start as f64), x.at(buffer.end as f64));
        let (low, high) = (
            y.at(layout.offset(id) as f64),
            y.at((layout.offset(id) + buffer.bytes) as f64),
        );
        let (class, name) = kind(layout, buffer);
        let tip = tip(&format!(
            "{name}\n{} at {}\nsteps {} to {}",
            memory(problem.units(), buffer.bytes),
            memory(problem.units(), layout.offset(id)),
            buffer.start,
            buffer.end - 1
        ));
        let (width, height) = ((to - from).max(0.4), (low - high).max(0.4));
        put!(
            out,
            r#"<rect class="buffer {class}" x="{from:.2}" y="{high:.2}" width="{width:.2}" height="{height:.2}" data-tip="{tip}"/>"#
        );
    }
    let top = y.at(arena as f64);
    put!(
        out,
        r#"<line class="budget" x1="{LEFT}" x2="{RIGHT}" y1="{top:.1}" y2="{top:.1}"/>"#
    );
    let text = escape(&memory(problem.units(), arena));
    put!(
        out,
        r#"<text class="note budgettext end" x="{:.1}" y="{:.1}">arena {text}</text></svg>"#,
        RIGHT - 4.0,
        top - 4.0
    );
    Some(out)
}

/// The style class and the name of a buffer's first contents.
fn kind(layout: &CheckedLayout, buffer: &Buffer) -> (&'static str, String) {
    let problem = layout.plan().problem();
    match buffer.kind {
        BufferKind::Workspace(task) => (
            "scratch",
            format!("workspace of {}", problem.task(task).name),
        ),
        BufferKind::Value(value) => {
            let what = problem.value(value);
            match what.origin {
                Origin::Given(_) => ("given", what.name.clone()),
                Origin::Task(task) => (phase(problem.task(task).phase).0, what.name.clone()),
            }
        }
    }
}
