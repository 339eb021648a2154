//! `scrimp doctor`: what this machine offers.

use scrimp::machine;
use scrimp::plan::format_bytes;
use scrimp::run::Cpu;
use scrimp::solve::published::Published;
use scrimp::solve::solvers::{Installed, Library, SolverError, installed};
use serde_json::{Value, json};

use crate::Answer;
use crate::args::DoctorArgs;
use crate::table::Table;

/// Asks the operating system and the processor.
pub fn run(args: &DoctorArgs) -> anyhow::Result<Answer> {
    let cpu = Cpu::new(args.threads.map_or(0, usize::from)).map_err(scrimp::Error::from)?;
    let memory = machine::memory();
    let shown = |bytes: Option<u64>| bytes.map_or("unknown".into(), format_bytes);
    let mut table = Table::new("lrl");
    table
        .row(["version", env!("CARGO_PKG_VERSION"), ""])
        .row([
            "threads",
            &cpu.threads().to_string(),
            "used unless --threads says otherwise",
        ])
        .row([
            "instruction set",
            cpu.isa(),
            "the widest that the kernels use here",
        ])
        .row([
            "memory",
            &shown(memory.total),
            "or this process's limit, if less",
        ])
        .row(["memory free to take", &shown(memory.available), "now"])
        .row([
            "device",
            &cpu.signature(),
            "a plan's workspaces belong to it",
        ]);
    let solvers = [Library::OrTools, Library::Highs].map(|library| (library, found(library, args)));
    for (library, found) in &solvers {
        let methods = methods(*library).join(", ");
        match found {
            Ok(found) => {
                let version = found.version.as_deref().unwrap_or("found");
                let note = format!("{}; for {methods}", found.path.display());
                table.row([&library.to_string(), version, &note]);
            }
            Err(SolverError::NotFound { .. }) => {
                let note = format!("for {methods}; `pip install ortools` brings CP-SAT and HiGHS");
                table.row([&library.to_string(), "not found", &note]);
            }
            Err(error) => {
                table.row([library.to_string(), "unusable".into(), error.to_string()]);
            }
        }
    }
    let json = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "threads": cpu.threads(),
        "instruction_set": cpu.isa(),
        "memory_bytes": memory.total,
        "available_bytes": memory.available,
        "device": cpu.signature(),
        "solvers": solvers.iter().map(|(library, found)| object(*library, found)).collect::<Vec<_>>(),
    });
    Ok(Answer::new(json, table.to_string()))
}

/// Loads a library as the methods that need it would.
fn found(library: Library, args: &DoctorArgs) -> Result<Installed, SolverError> {
    let path = match library {
        Library::Highs => &args.highs,
        Library::OrTools => &args.ortools,
    };
    installed(library, path.as_deref())
}

/// The methods that need a library.
fn methods(library: Library) -> Vec<&'static str> {
    let needs = |method: &&Published| method.library() == Some(library);
    let all = Published::ALL.iter().filter(needs);
    all.map(|method| method.name()).collect()
}

fn object(library: Library, found: &Result<Installed, SolverError>) -> Value {
    json!({
        "library": library.to_string(),
        "path": found.as_ref().ok().map(|found| &found.path),
        "version": found.as_ref().ok().and_then(|found| found.version.as_ref()),
        "error": found.as_ref().err().map(ToString::to_string),
        "methods": methods(library),
    })
}
