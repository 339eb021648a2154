//! The values that wait in other memories: when, what that makes wait, and what making them again would cost.

use super::draw::{LEFT, RIGHT, Scale, WIDTH, cost, escape, memory, put, time_axis};
use crate::stays::Stay;
use scrimp_plan::Problem;

/// Rows of the picture, and of the table.
const ROWS: usize = 60;
const LINES: usize = 200;
const ROW: f64 = 7.0;

/// When each value is away: its copy out, its stay and its copy back. The largest values are shown.
pub(super) fn picture(problem: &Problem, stays: &[Stay], makespan: f64, end: f64) -> String {
    let bytes = |stay: &Stay| problem.value(stay.value).bytes;
    let mut shown: Vec<&Stay> = stays.iter().collect();
    shown.sort_by_key(|stay| std::cmp::Reverse(bytes(stay)));
    shown.truncate(ROWS);
    shown.sort_by(|a, b| a.left.total_cmp(&b.left).then(a.value.cmp(&b.value)));
    let x = Scale::new(end, LEFT, RIGHT);
    let bottom = shown.len() as f64 * ROW + 6.0;
    let height = bottom + 24.0;
    let mut out = String::new();
    put!(
        out,
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="What is away when">"#
    );
    time_axis(&mut out, problem.units(), x, 0.0, bottom, true);
    for (row, stay) in shown.into_iter().enumerate() {
        let y = row as f64 * ROW + 4.0;
        let tip = words(problem, stay, makespan)
            .map(|line| escape(&line))
            .join("\n");
        let back = stay.back.unwrap_or((makespan, makespan));
        let parts = [
            ("copy", stay.sent.unwrap_or((0.0, 0.0))),
            ("away", (stay.left, back.0)),
            ("copy", back),
        ];
        for (class, (start, end)) in parts.into_iter().filter(|(_, (start, end))| end > start) {
            let width = (x.at(end) - x.at(start)).max(0.4);
            put!(
                out,
                r#"<rect class="{class}" x="{:.2}" y="{y:.1}" width="{width:.2}" height="{:.1}" data-tip="{tip}"/>"#,
                x.at(start),
                ROW - 2.0
            );
        }
    }
    out.push_str("</svg>");
    out
}

fn words(problem: &Problem, stay: &Stay, makespan: f64) -> [String; 3] {
    let units = problem.units();
    let value = problem.value(stay.value);
    let until = match stay.back {
        Some((_, end)) => format!("back at {}", cost(units, end)),
        None => "stays there".into(),
    };
    [
        format!("{}, {}", value.name, memory(units, value.bytes)),
        format!(
            "away from {} for {}, {until}",
            cost(units, stay.left),
            cost(units, stay.end(makespan) - stay.left)
        ),
        why(problem, stay),
    ]
}

/// Why sending the value away is worth it.
fn why(problem: &Problem, stay: &Stay) -> String {
    let units = problem.units();
    let waits = match stay.waited {
        waited if waited > 0.0 => {
            format!("its copies make the device wait {}", cost(units, waited))
        }
        _ => "its copies are hidden behind runs".into(),
    };
    match (stay.again, stay.back) {
        (Some(again), _) => format!("{waits}; making it again would take {}", cost(units, again)),
        (None, Some(_)) => format!("{waits}; it can't be made again"),
        (None, None) => waits,
    }
}

/// The table. The values that wait the longest for their copies come first, then the largest.
pub(super) fn table(problem: &Problem, stays: &[Stay], makespan: f64) -> String {
    let units = problem.units();
    let bytes = |stay: &Stay| problem.value(stay.value).bytes;
    let mut rows: Vec<&Stay> = stays.iter().collect();
    rows.sort_by(|a, b| {
        let order = b.waited.total_cmp(&a.waited);
        order
            .then(bytes(b).cmp(&bytes(a)))
            .then(a.left.total_cmp(&b.left))
    });
    let mut out = String::new();
    out.push_str(r#"<table class="sortable"><thead><tr><th>value</th><th>waits in</th><th class="n">size</th><th class="n">leaves at</th><th class="n">away for</th><th class="n">copies take</th><th class="n">of that waited for</th><th class="n">making it again takes</th></tr></thead><tbody>"#);
    for stay in rows.iter().take(LINES) {
        let value = problem.value(stay.value);
        let length = |copy: Option<(f64, f64)>| copy.map_or(0.0, |(start, end)| end - start);
        let copies = length(stay.sent) + length(stay.back);
        let memory_name = &problem.devices()[stay.memory].name;
        put!(
            out,
            r#"<tr><td>{}</td><td>{}</td><td class="n" data-v="{}">{}</td>"#,
            escape(&value.name),
            escape(memory_name),
            value.bytes,
            escape(&memory(units, value.bytes))
        );
        let again = stay.again.map(|again| (again, cost(units, again)));
        let times = [
            (stay.left, cost(units, stay.left)),
            {
                let away = stay.end(makespan) - stay.left;
                (away, cost(units, away))
            },
            (copies, cost(units, copies)),
            (stay.waited, cost(units, stay.waited)),
            again.unwrap_or((f64::MAX, "can't be made again".into())),
        ];
        for (number, text) in times {
            put!(
                out,
                r#"<td class="n" data-v="{number}">{}</td>"#,
                escape(&text)
            );
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table>");
    if rows.len() > LINES {
        put!(
            out,
            r#"<p class="quiet">and {} more</p>"#,
            rows.len() - LINES
        );
    }
    out
}
