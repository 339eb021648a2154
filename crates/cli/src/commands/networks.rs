//! `scrimp networks`: what is built in.

use scrimp::graph::networks::{NAMES, Network};
use serde_json::{Value, json};

use crate::Answer;
use crate::table::Table;

/// The list of built-in networks with their options.
pub fn run() -> Answer {
    let mut table = Table::new("lll");
    for network in NAMES {
        let options = network
            .options()
            .into_iter()
            .map(|(name, value)| format!("--{name} {value}"));
        table.row([
            network.name.into(),
            network.summary.into(),
            options.collect::<Vec<_>>().join(" "),
        ]);
    }
    let json = json!({ "networks": NAMES.iter().map(object).collect::<Vec<_>>() });
    Answer::new(json, table.to_string())
}

fn object(network: &Network) -> Value {
    let option = |(name, value): (&str, String)| json!({ "name": name, "default": value });
    let options: Vec<Value> = network.options().into_iter().map(option).collect();
    json!({
        "name": network.name,
        "summary": network.summary,
        "source": network.source,
        "options": options,
    })
}
