//! The subcommands, one file each.

mod bench;
mod check;
mod doctor;
mod energy;
mod inspect;
mod manual;
mod max_batch;
mod networks;
mod place;
mod plan;
mod run;
mod sweep;
mod train;
mod trained;

use anyhow::Result;

use crate::Answer;
use crate::args::{Cli, Command};

/// Runs one subcommand.
pub fn run(cli: Cli) -> Result<Answer> {
    let quiet = cli.quiet;
    match cli.command {
        Command::Inspect(args) => inspect::run(&args, quiet),
        Command::Train(args) => train::run(&args, quiet),
        Command::Run(args) => run::run(&args, quiet),
        Command::Sweep(args) if args.energy => energy::run(&args, quiet),
        Command::Sweep(args) => sweep::run(&args, quiet),
        Command::MaxBatch(args) => max_batch::run(&args, quiet),
        Command::Place(args) => place::run(&args),
        Command::Bench(args) => bench::run(&args, quiet),
        Command::Doctor(args) => doctor::run(&args),
        Command::Plan(args) => plan::run(&args, quiet),
        Command::Check(args) => check::run(&args),
        Command::Networks(_) => Ok(networks::run()),
        Command::Completions(args) => Ok(manual::completions(&args)),
        Command::Man(args) => manual::page(&args),
    }
}
