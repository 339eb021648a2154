//! Launches of normalizations.

use scrimp_graph::{Norm, Unary};

use super::lower::function;
use super::program::Argument::{Input, Output};
use super::program::{Argument, Builder, Walk, constant, team, word};

/// Lines of elements: how many, how long, where they start and how their elements follow.
struct Lines {
    lines: usize,
    length: usize,
    kept: Walk,
    summed: Walk,
}

/// Which elements share statistics and which share parameters.
struct Geometry {
    statistics: Lines,
    parameters: Lines,
    /// From an element's index to its statistics and to its parameters.
    to_statistics: Walk,
    to_parameter: Walk,
}

impl Geometry {
    fn new(norm: Norm, shape: &[usize]) -> Geometry {
        let lines = |kept: [usize; 2], summed: [&[usize]; 2]| Lines {
            lines: kept[0],
            length: summed[0].iter().product(),
            kept: Walk::new(&[kept[0]], &[kept[1]]),
            summed: Walk::new(summed[0], summed[1]),
        };
        let (n, c, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
        let axes = [n, c, inner];
        let whole = |rows: usize, length: usize| lines([rows, length], [&[length], &[1]]);
        let channels = || lines([c, inner], [&[n, inner], &[c * inner, 1]]);
        let to_channel = Walk::new(&axes, &[0, 1, 0]);
        let (statistics, parameters, to_statistics, to_parameter) = match norm {
            Norm::Batch => (channels(), channels(), to_channel, to_channel),
            Norm::Instance => (
                whole(n * c, inner),
                channels(),
                Walk::new(&axes, &[c, 1, 0]),
                to_channel,
            ),
            Norm::Group { groups } => {
                let length = c / groups * inner;
                let walk = Walk::new(&[n * groups, length], &[1, 0]);
                (whole(n * groups, length), channels(), walk, to_channel)
            }
            Norm::Layer { axis } => {
                let rows: usize = shape[..axis].iter().product();
                let length: usize = shape[axis..].iter().product();
                let columns = lines([length, 1], [&[rows], &[length]]);
                let walks = [[1, 0], [0, 1]].map(|steps| Walk::new(&[rows, length], &steps));
                (whole(rows, length), columns, walks[0], walks[1])
            }
        };
        Geometry {
            statistics,
            parameters,
            to_statistics,
            to_parameter,
        }
    }
}

/// ε, the activation and its constants.
fn formula(b: &Builder<'_>, epsilon: f64, activation: Option<Unary>) -> [Argument; 4] {
    let (f, x, y) = function(activation);
    [b.real(epsilon), constant(&f), b.real(x), b.real(y)]
}

pub fn stats(b: &mut Builder<'_>, norm: Norm) {
    let lines = Geometry::new(norm, b.shape(0)).statistics;
    let team = team(lines.length);
    let arguments = vec![
        Input(0),
        Output(0),
        word(lines.lines),
        word(lines.length),
        word(team),
        constant(&lines.kept),
        constant(&lines.summed),
    ];
    b.items("norm_stats", lines.lines * team, arguments);
}

pub fn apply(b: &mut Builder<'_>, norm: Norm, epsilon: f64, activation: Option<Unary>) {
    let g = Geometry::new(norm, b.shape(0));
    let sizes = [word(b.count()), word(g.statistics.lines)];
    let walks = [constant(&g.to_statistics), constant(&g.to_parameter)];
    let tensors = (0..4).map(Input).chain([Output(0)]);
    let arguments = tensors
        .chain(sizes)
        .chain(formula(b, epsilon, activation))
        .chain(walks)
        .collect();
    b.items("norm_apply", b.count(), arguments);
}

/// What the kernels of gradients read: x, statistics, scale, shift and dy.
type Tensors = [Argument; 5];

/// Σ dz·x̂ and Σ dz over lines, both times scale if `scaled`.
fn sums(
    b: &mut Builder<'_>,
    g: &Geometry,
    lines: &Lines,
    tensors: &Tensors,
    to: [Argument; 2],
    scaled: bool,
    formula: &[Argument; 4],
) {
    let team = team(lines.length);
    let sizes = [
        lines.lines,
        g.statistics.lines,
        lines.length,
        team,
        usize::from(scaled),
    ]
    .map(word);
    let walks = [
        &g.to_statistics,
        &g.to_parameter,
        &lines.kept,
        &lines.summed,
    ]
    .map(constant);
    let all = [&tensors[..], &to, &sizes, formula, &walks].concat();
    b.items("norm_sums", lines.lines * team, all);
}

pub fn gradients(b: &mut Builder<'_>, norm: Norm, epsilon: f64, activation: Option<Unary>) {
    let g = Geometry::new(norm, b.shape(0));
    let formula = formula(b, epsilon, activation);
    // Without an activation the shift isn't read.
    let shift = Input(if activation.is_some() { 4 } else { 2 });
    let tensors = [Input(0), Input(1), Input(2), shift, Input(3)];
    let sums_of_lines = [b.scratch(g.statistics.lines), b.scratch(g.statistics.lines)];
    sums(
        b,
        &g,
        &g.statistics,
        &tensors,
        sums_of_lines.clone(),
        true,
        &formula,
    );
    sums(
        b,
        &g,
        &g.parameters,
        &tensors,
        [Output(1), Output(2)],
        false,
        &formula,
    );
    let sizes = [b.count(), g.statistics.lines, g.statistics.length].map(word);
    let walks = [constant(&g.to_statistics), constant(&g.to_parameter)];
    let all = [
        &tensors[..],
        &sums_of_lines,
        &[Output(0)],
        &sizes,
        &formula,
        &walks,
    ]
    .concat();
    b.items("norm_dx", b.count(), all);
}

pub fn param_gradients(b: &mut Builder<'_>, norm: Norm, epsilon: f64, activation: Option<Unary>) {
    let g = Geometry::new(norm, b.shape(0));
    let formula = formula(b, epsilon, activation);
    // Without an activation neither scale nor shift is read.
    let affine = if activation.is_some() {
        [Input(3), Input(4)]
    } else {
        [Input(1), Input(1)]
    };
    let [scale, shift] = affine;
    let tensors = [Input(0), Input(1), scale, shift, Input(2)];
    sums(
        b,
        &g,
        &g.parameters,
        &tensors,
        [Output(0), Output(1)],
        false,
        &formula,
    );
}
