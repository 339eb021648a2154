//! `scrimp doctor`: what this machine offers.

use anyhow::Result;
use scrimp::machine;
use scrimp::plan::format_bytes;
use scrimp::run::Cpu;
use serde_json::json;

use crate::Answer;
use crate::args::DoctorArgs;
use crate::table::Table;

/// Asks the operating system and the processor.
pub fn run(args: &DoctorArgs) -> Result<Answer> {
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
    let json = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "threads": cpu.threads(),
        "instruction_set": cpu.isa(),
        "memory_bytes": memory.total,
        "available_bytes": memory.available,
        "device": cpu.signature(),
    });
    Ok(Answer::new(json, table.to_string()))
}
