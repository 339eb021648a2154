//! `scrimp place`: offsets for buffers with known lifetimes.

use anyhow::Result;
use scrimp::Error;
use scrimp::plan::file::{AllocationInstance, read_text};
use scrimp::plan::{check_offsets, format_bytes, read_allocation_instance};
use scrimp::solve::{Cutoff, Placement, place_intervals};
use serde_json::json;

use crate::Answer;
use crate::args::PlaceArgs;
use crate::failure::{Failure, Kind};
use crate::interrupt;
use crate::output::Outputs;
use crate::table::Table;

/// Places and checks; the placement and the bytes that it takes. The first Ctrl-C leaves it at the best so far.
pub fn place(instance: &AllocationInstance, capacity: Option<u64>) -> Result<(Placement, u64)> {
    let stop = interrupt::flag();
    let placed = place_intervals(&instance.intervals, capacity, Cutoff::on(&stop));
    let arena = check_offsets(&instance.intervals, &placed.offsets).map_err(|violations| {
        let all: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let all = all.join("; ");
        let sentence = format!("the placement is wrong, please report this: {all}");
        Failure::new(Kind::Internal, sentence)
    })?;
    Ok((placed, arena))
}

/// Reads, places, checks.
pub fn run(args: &PlaceArgs) -> Result<Answer> {
    let output = Outputs::beside([&*args.instance]).claim(args.output.as_ref())?;
    let in_file = |source| Error::File {
        path: args.instance.clone(),
        source: Box::new(source),
    };
    let text = read_text(&args.instance).map_err(in_file)?;
    let instance = read_allocation_instance(&text).map_err(in_file)?;
    let capacity = args.capacity.or(instance.capacity);
    let (placed, arena) = place(&instance, capacity)?;
    if let Some(capacity) = capacity.filter(|&capacity| arena > capacity) {
        let sentence = format!(
            "the buffers were packed into {arena} bytes at best, but the capacity is {capacity}; \
             no packing is below {} bytes",
            placed.floor_bytes
        );
        let details = json!({ "budget_bytes": capacity, "least_found_bytes": arena, "floor_bytes": placed.floor_bytes });
        return Err(Failure::new(Kind::Budget, sentence).with(details).into());
    }
    let offsets: Vec<_> = instance.ids.iter().zip(&placed.offsets).collect();
    let json = json!({
        "name": instance.name,
        "buffers": offsets.len(),
        "capacity_bytes": capacity,
        "arena_bytes": arena,
        "live_bytes": placed.live_bytes,
        "floor_bytes": placed.floor_bytes,
        "optimal": arena == placed.floor_bytes,
        "offsets": offsets
            .iter()
            .map(|(id, offset)| json!({ "id": id, "offset": offset }))
            .collect::<Vec<_>>(),
    });
    if let Some(output) = output {
        output.write(format!("{json:#}\n").as_bytes())?;
    }
    let mut table = Table::new("lrl");
    if let Some(capacity) = capacity {
        table.row(["capacity", &format_bytes(capacity), ""]);
    }
    table
        .row(["arena", &format_bytes(arena), "computed and checked"])
        .row([
            "proven floor",
            &format_bytes(placed.floor_bytes),
            match arena == placed.floor_bytes {
                true => "no packing is below that: this one is optimal",
                false => "no packing is below that",
            },
        ])
        .row([
            "held at most",
            &format_bytes(placed.live_bytes),
            "at the worst moment",
        ]);
    Ok(Answer::new(
        json,
        format!("{}: {} buffers\n{table}", instance.name, offsets.len()),
    ))
}
