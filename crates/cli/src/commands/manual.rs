//! `scrimp completions` and `scrimp man`: made from the table of the command line.

use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

use crate::Answer;
use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::failure::{Failure, Kind};

/// A completion script.
pub fn completions(args: &CompletionsArgs) -> Answer {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "scrimp", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    Answer::new(
        json!({ "shell": args.shell.to_string(), "script": script }),
        script,
    )
}

/// A manual page in roff.
pub fn page(args: &ManArgs) -> Result<Answer> {
    let mut command = Cli::command();
    command.build();
    if let Some(name) = &args.subcommand {
        let names: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let unknown = format!(
            "there is no subcommand '{name}'; choose one of {}",
            names.join(", ")
        );
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| Failure::new(Kind::Usage, unknown))?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    let page = String::from_utf8_lossy(&page).into_owned();
    Ok(Answer::new(json!({ "format": "roff", "page": page }), page))
}
