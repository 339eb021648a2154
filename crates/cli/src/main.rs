//! The `scrimp` command: reads the command line, runs one subcommand, prints its answer and ends with an exit
//! code that says what happened.

mod args;
mod budgets;
mod commands;
mod costing;
mod failure;
mod interrupt;
mod output;
mod progress;
mod reports;
mod stdout;
mod table;
mod target;
mod terminal;

use std::process::ExitCode;

use clap::Parser;
use serde_json::Value;

use crate::args::Cli;
use crate::failure::{Failure, Kind};
use crate::stdout::print;
use crate::terminal::{tell, visible};

/// A command's answer, for programs and for people.
pub struct Answer {
    /// The JSON object that `--json` prints.
    pub json: Value,
    /// The text that is printed without `--json`.
    pub text: String,
    /// Set if the command answered but did not end well.
    pub failure: Option<Failure>,
}

impl Answer {
    /// The answer of a command that ended well.
    pub fn new(json: Value, text: impl Into<String>) -> Answer {
        Answer {
            json,
            text: text.into(),
            failure: None,
        }
    }
}

#[allow(unsafe_code, reason = "the environment is set up")]
fn main() -> ExitCode {
    // SAFETY: there is no other thread yet.
    unsafe { scrimp::run::wait_briefly() };
    // People get clap's own message; with --json programs get an object, as for every other error.
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let json = cli.json;
    stdout::set_aside();
    match interrupt::install()
        .map_err(anyhow::Error::from)
        .and_then(|()| commands::run(cli))
    {
        Ok(answer) => finish(json, answer),
        Err(error) => {
            let failure = Failure::from(error);
            tell(&failure.to_string());
            if json {
                print(&object(&failure.to_json()));
            }
            failure.exit()
        }
    }
}

fn finish(json: bool, answer: Answer) -> ExitCode {
    if let Some(failure) = &answer.failure {
        tell(&failure.to_string());
    }
    if !print(&if json {
        object(&answer.json)
    } else {
        visible(&answer.text).into_owned()
    }) {
        // The reader went away (`scrimp … | head`), so there is nobody left to tell.
        return ExitCode::from(Kind::Output.code());
    }
    answer
        .failure
        .map_or(ExitCode::SUCCESS, |failure| failure.exit())
}

fn usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|arg| arg == "--json");
    if error.use_stderr() && wants_json {
        let text = error.render().to_string();
        let sentence = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        print(&object(&Failure::new(Kind::Usage, sentence).to_json()));
    }
    // Help and versions go to standard output and are no errors, and neither is a closed pipe.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() {
        Kind::Usage.code()
    } else {
        0
    })
}

fn object(json: &Value) -> String {
    format!("{json:#}\n")
}
