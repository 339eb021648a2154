//! The trade-off between memory and time: added time over budgets, one curve per planner.

use super::draw::{
    LEFT, RIGHT, Scale, WIDTH, escape, memory, memory_ticks_between, plain, put, ticks,
};
use super::frame::{document, heading, legend, section, tile};
use scrimp_plan::Units;

const HEIGHT: f64 = 480.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 44.0;
/// Colours that distinguish curves; further curves are dashed.
const COLOURS: usize = 8;

/// Curves over budgets. Memory is in the problem's unit; added time is in percent of running every task once.
#[derive(Clone, Copy, Debug)]
pub struct TradeOff<'a> {
    /// The page's title, e.g. the model.
    pub title: &'a str,
    /// A line below it, e.g. the order of first runs.
    pub line: &'a str,
    /// The units of memory and cost.
    pub units: &'a Units,
    /// The peak of running every task once.
    pub base_peak: u64,
    /// Proven: no plan needs less.
    pub floor: u64,
    /// One per planner.
    pub curves: &'a [Curve],
}

/// One planner's results.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// The planner.
    pub name: String,
    /// One point per budget, in any order.
    pub points: Vec<Point>,
    /// Why points are missing, in a sentence.
    pub note: Option<String>,
}

/// The result of one planner for one budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The budget.
    pub budget: u64,
    /// The plan's numbers; `None` if no plan was found.
    pub found: Option<FoundPoint>,
}

/// A plan's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundPoint {
    /// The most memory in use.
    pub peak: u64,
    /// Added time.
    pub overhead: f64,
    /// Proven: no plan within the budget adds less.
    pub bound: f64,
    /// Runs beyond each task's first.
    pub recomputed: usize,
    /// Seconds of planning.
    pub seconds: f64,
}

/// The curves as one HTML page that needs no other files.
#[must_use]
pub fn tradeoff(input: &TradeOff<'_>) -> String {
    document(input.title, |out| {
        heading(out, input.title, input.line);
        input.tiles(out);
        section(
            out,
            "Added time over the budget",
            "Each dot is a plan that was checked; a smaller budget's plan also serves a larger one. \
             A cross is a budget for which no plan was found. Hover for numbers.",
        );
        input.keys(out);
        input.picture(out);
        for curve in input.curves {
            if let Some(note) = &curve.note {
                put!(
                    out,
                    "<p><b>{}</b>: {}</p>",
                    escape(&curve.name),
                    escape(note)
                );
            }
        }
        out.push_str("</section>");
        input.table(out);
    })
}

/// A percentage with its sign.
pub(super) fn signed(percent: f64) -> String {
    match percent {
        p if p.abs() < 0.005 => "±0 %".into(),
        p => format!("{}{:.2} %", if p < 0.0 { "−" } else { "+" }, p.abs()),
    }
}

/// The style of a curve.
pub(super) fn class(curve: usize) -> String {
    let dashed = if curve >= COLOURS { " dashed" } else { "" };
    format!("c{}{dashed}", curve % COLOURS)
}

impl Curve {
    /// Budgets for which there are plans, ascending.
    fn found(&self) -> Vec<(u64, &FoundPoint)> {
        let points = self.points.iter();
        let mut found: Vec<_> = points
            .filter_map(|point| Some((point.budget, point.found.as_ref()?)))
            .collect();
        found.sort_by_key(|(budget, _)| *budget);
        found
    }

    fn at(&self, budget: u64) -> Option<&Point> {
        self.points.iter().find(|point| point.budget == budget)
    }
}

impl TradeOff<'_> {
    /// All budgets, ascending.
    fn budgets(&self) -> Vec<u64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let mut budgets: Vec<u64> = points.map(|point| point.budget).collect();
        budgets.sort_unstable();
        budgets.dedup();
        budgets
    }

    /// The best proven bound at each budget. A bound that holds only for one order of first runs or one model
    /// belongs to its planner, so all bounds here are one planner's: the one that proves the most.
    fn bounds(&self) -> Option<(&str, Vec<(u64, f64)>)> {
        let of = |curve: &Curve| -> Vec<(u64, f64)> {
            let found = curve.found().into_iter();
            found.map(|(budget, point)| (budget, point.bound)).collect()
        };
        let sum = |bounds: &[(u64, f64)]| bounds.iter().map(|(_, bound)| bound).sum::<f64>();
        let order = |a: &(&str, Vec<_>), b: &(&str, Vec<_>)| {
            let most = sum(&a.1).total_cmp(&sum(&b.1));
            most.then(a.1.len().cmp(&b.1.len()))
        };
        let all = self
            .curves
            .iter()
            .map(|curve| (curve.name.as_str(), of(curve)));
        // Among equals the first one wins; `max_by` alone would return the last.
        let mut all: Vec<_> = all.filter(|(_, bounds)| !bounds.is_empty()).collect();
        all.reverse();
        all.into_iter().max_by(order)
    }

    fn tiles(&self, out: &mut String) {
        out.push_str("<div class=\"tiles\">");
        let share = |part: u64| {
            format!(
                "{:.1} % of it",
                part as f64 / self.base_peak.max(1) as f64 * 100.0
            )
        };
        tile(
            out,
            "peak without a plan",
            &memory(self.units, self.base_peak),
            "every task runs once",
        );
        let least = self.curves.iter().filter_map(|curve| {
            let (budget, point) = curve.found().first().copied()?;
            Some((budget, point.overhead, curve.name.as_str()))
        });
        if let Some((budget, overhead, name)) = least.min_by(|a, b| {
            (a.0, a.1)
                .partial_cmp(&(b.0, b.1))
                .unwrap_or(std::cmp::Ordering::Equal)
        }) {
            let note = format!("{}, {} by {name}", share(budget), signed(overhead));
            tile(
                out,
                "least budget with a plan",
                &memory(self.units, budget),
                &note,
            );
        }
        let note = format!("{}: no plan needs less", share(self.floor));
        tile(out, "proven floor", &memory(self.units, self.floor), &note);
        out.push_str("</div>");
    }

    fn keys(&self, out: &mut String) {
        let classes: Vec<String> = (0..self.curves.len()).map(class).collect();
        let curves = classes.iter().zip(self.curves);
        let mut keys: Vec<(&str, &str)> = curves
            .map(|(class, curve)| (class.as_str(), curve.name.as_str()))
            .collect();
        let proven = self
            .bounds()
            .map(|(name, _)| format!("proven bound ({name})"));
        if let Some(proven) = &proven {
            keys.push(("boundline", proven));
        }
        keys.push(("budgetline", "proven floor"));
        keys.push(("keepall", "without a plan"));
        legend(out, &keys);
    }

    fn picture(&self, out: &mut String) {
        let budgets = self.budgets();
        let above = budgets
            .iter()
            .copied()
            .filter(|&budget| budget >= self.floor);
        let ends = above.chain([self.base_peak, self.floor]);
        let (least, most) = (ends.clone().min().unwrap_or(0), ends.max().unwrap_or(1));
        let margin = (most - least) as f64 * 0.04;
        let low = (least as f64 - margin).max(0.0);
        let high = (most as f64 + margin).max(low + 1.0);
        let x = Scale::new(high - low, LEFT, RIGHT);
        let x = |amount: u64| x.at(amount as f64 - low);
        let overheads = self.curves.iter().flat_map(Curve::found);
        let top = overheads
            .map(|(_, point)| point.overhead)
            .fold(0.0, f64::max);
        let y = Scale::new(top.max(1.0) * 1.08, BOTTOM, TOP);
        put!(
            out,
            r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Added time over the budget">"#
        );
        for tick in ticks(y.max(), 6.0) {
            let at = y.at(tick);
            put!(
                out,
                r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{at:.1}" y2="{at:.1}"/>"#
            );
            let (text, below) = (plain(tick), at + 4.0);
            put!(
                out,
                r#"<text class="tick end" x="{:.1}" y="{below:.1}">{text} %</text>"#,
                LEFT - 8.0
            );
        }
        for (tick, label) in memory_ticks_between(self.units, low, high) {
            let (at, below) = (x(tick as u64), BOTTOM + 16.0);
            put!(
                out,
                r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{BOTTOM}"/>"#
            );
            put!(
                out,
                r#"<text class="tick mid" x="{at:.1}" y="{below:.1}">{label}</text>"#
            );
        }
        let (middle, bottom) = ((LEFT + RIGHT) / 2.0, HEIGHT - 8.0);
        put!(
            out,
            r#"<text class="tick mid" x="{middle:.1}" y="{bottom:.1}">budget</text>"#
        );
        put!(out, r#"<text class="tick" x="6" y="14">added time</text>"#);
        self.floor_line(out, x(self.floor));
        self.lines(out, &x, y);
        let (at, bottom) = (x(self.base_peak), y.at(0.0));
        put!(
            out,
            r#"<circle class="keepallpoint" cx="{at:.1}" cy="{bottom:.1}" r="5.5"/>"#
        );
        self.columns(out, &budgets, &x);
        out.push_str("</svg>");
    }

    fn floor_line(&self, out: &mut String, at: f64) {
        put!(
            out,
            r#"<line class="budget" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{BOTTOM}"/>"#
        );
        let text = escape(&memory(self.units, self.floor));
        put!(
            out,
            r#"<text class="note budgettext" x="{:.1}" y="{:.1}">no plan below {text}</text>"#,
            at + 6.0,
            TOP - 10.0
        );
    }

    fn lines(&self, out: &mut String, x: &dyn Fn(u64) -> f64, y: Scale) {
        let path = |points: &[(u64, f64)]| {
            let mut path = String::new();
            for (k, (budget, percent)) in points.iter().enumerate() {
                let pen = if k == 0 { 'M' } else { 'L' };
                put!(path, "{pen}{:.1},{:.1}", x(*budget), y.at(*percent));
            }
            path
        };
        if let Some((_, bounds)) = self.bounds() {
            put!(out, r#"<path class="line bound" d="{}"/>"#, path(&bounds));
        }
        for (k, curve) in self.curves.iter().enumerate() {
            let class = class(k);
            let found = curve.found();
            let points: Vec<(u64, f64)> = found.iter().map(|(b, p)| (*b, p.overhead)).collect();
            put!(
                out,
                r#"<path class="line curve {class}" d="{}"/>"#,
                path(&points)
            );
            let missed = curve.points.iter().filter(|point| point.found.is_none());
            for point in missed {
                let (at, up) = (x(point.budget), BOTTOM - 10.0 - 9.0 * (k % 12) as f64);
                put!(
                    out,
                    r#"<path class="line curve {class}" d="M{:.1},{:.1}l7,7m-7,0l7,-7"/>"#,
                    at - 3.5,
                    up - 3.5
                );
            }
            for (budget, percent) in points {
                let (at, up) = (x(budget), y.at(percent));
                put!(
                    out,
                    r#"<circle class="dot {class}" cx="{at:.1}" cy="{up:.1}" r="3.4"/>"#
                );
            }
        }
    }

    /// Invisible columns around the budgets; each shows every planner's numbers under the pointer.
    fn columns(&self, out: &mut String, budgets: &[u64], x: &dyn Fn(u64) -> f64) {
        for (k, &budget) in budgets.iter().enumerate() {
            let here = x(budget);
            let half = |other: Option<&u64>| other.map(|&other| f64::midpoint(here, x(other)));
            let before = k
                .checked_sub(1)
                .and_then(|before| half(budgets.get(before)));
            let from = before.unwrap_or(LEFT);
            let to = half(budgets.get(k + 1)).unwrap_or(RIGHT);
            let mut lines = vec![format!("budget {}", memory(self.units, budget))];
            for curve in self.curves {
                let text = match curve.at(budget) {
                    None => continue,
                    Some(Point { found: None, .. }) => "no plan found".into(),
                    Some(Point {
                        found: Some(found), ..
                    }) => {
                        format!("{}, proven {}", signed(found.overhead), signed(found.bound))
                    }
                };
                lines.push(format!("{}: {text}", curve.name));
            }
            put!(
                out,
                r#"<rect class="column" x="{from:.1}" y="{TOP}" width="{:.1}" height="{:.0}" data-tip="{}"/>"#,
                (to - from).max(0.0),
                BOTTOM - TOP,
                lines
                    .iter()
                    .map(|line| escape(line))
                    .collect::<Vec<_>>()
                    .join("\n")
            );
        }
    }

    fn table(&self, out: &mut String) {
        section(out, "Numbers", "");
        out.push_str("<div class=\"scroll\"><table class=\"sortable\"><thead><tr><th>planner</th>");
        for name in [
            "budget",
            "peak",
            "added time",
            "proven bound",
            "runs again",
            "planning",
        ] {
            put!(out, "<th class=\"n\">{name}</th>");
        }
        out.push_str("</tr></thead><tbody>");
        for curve in self.curves {
            let mut points: Vec<&Point> = curve.points.iter().collect();
            points.sort_by_key(|point| point.budget);
            for point in points {
                let budget = point.budget as f64;
                let name = escape(&curve.name);
                let none = || "–".to_owned();
                let mut row = vec![(budget, memory(self.units, point.budget))];
                match &point.found {
                    Some(found) => row.extend([
                        (found.peak as f64, memory(self.units, found.peak)),
                        (found.overhead, signed(found.overhead)),
                        (found.bound, signed(found.bound)),
                        (found.recomputed as f64, found.recomputed.to_string()),
                        (found.seconds, scrimp_plan::format_seconds(found.seconds)),
                    ]),
                    None => row.extend([
                        (f64::MAX, none()),
                        (f64::MAX, "no plan found".into()),
                        (f64::MAX, none()),
                        (f64::MAX, none()),
                        (f64::MAX, none()),
                    ]),
                }
                put!(out, "<tr><td>{name}</td>");
                for (value, text) in row {
                    put!(
                        out,
                        r#"<td class="n" data-v="{value}">{}</td>"#,
                        escape(&text)
                    );
                }
                out.push_str("</tr>");
            }
        }
        out.push_str("</tbody></table></div></section>");
    }
}
