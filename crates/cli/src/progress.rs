//! Progress on standard error. It is silent with `--quiet` or if standard error isn't a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal::visible;

/// A line that changes while a stage runs and disappears when the stage ends.
#[derive(Debug)]
pub struct Line(ProgressBar);

impl Line {
    /// A line for a stage of unknown length.
    pub fn spinner(quiet: bool, stage: &'static str) -> Line {
        Line::new(
            quiet,
            stage,
            ProgressBar::no_length(),
            "{spinner} {prefix} {elapsed} {wide_msg}",
        )
    }

    /// A bar for a stage of `length` parts.
    pub fn bar(quiet: bool, stage: &'static str, length: u64) -> Line {
        let style = "{prefix} {bar:30} {pos}/{len} {eta} {wide_msg}";
        Line::new(quiet, stage, ProgressBar::new(length), style)
    }

    fn new(quiet: bool, stage: &'static str, bar: ProgressBar, style: &str) -> Line {
        // indicatif hides the bar itself when standard error isn't a terminal.
        bar.set_draw_target(if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(8)
        });
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.set_prefix(stage);
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Line(bar)
    }

    /// Shows this text after the stage's name. While the line is hidden, the text isn't made.
    pub fn say(&self, text: impl FnOnce() -> String) {
        if !self.0.is_hidden() {
            self.0.set_message(visible(&text()).into_owned());
        }
    }

    pub fn at(&self, position: u64) {
        self.0.set_position(position);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
