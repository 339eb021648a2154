//! The fields of a published instance as the file has them, and what its readers share.

use serde::Deserialize;
use serde_json::Value as Json;

/// Numbers that a file states about its graph. They serve to check the reader and the semantics.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct InstanceStats {
    /// Nodes.
    pub n: Option<u64>,
    /// Edges.
    pub m: Option<u64>,
    /// Sum of the nodes' costs.
    pub total_cost: Option<f64>,
    /// Peak of running all nodes in order while keeping everything until its last use.
    pub peak_memory_no_remat: Option<u64>,
    /// Largest sum of a node's output and its inputs.
    pub max_working_set: Option<u64>,
}

/// The file's fields; unknown fields are ignored as notes.
#[derive(Deserialize)]
pub(super) struct Raw {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) units: RawUnits,
    pub(super) fixed_memory: Option<Json>,
    pub(super) batch_size: Option<Json>,
    pub(super) outputs: Option<Vec<Json>>,
    #[serde(default)]
    pub(super) published: Json,
    #[serde(default)]
    pub(super) stats: InstanceStats,
    pub(super) nodes: Vec<RawNode>,
    pub(super) edges: Vec<(u64, u64)>,
    pub(super) devices: Option<Vec<String>>,
    pub(super) budget_per_device: Option<Vec<Json>>,
    pub(super) copy_costs: Option<Vec<Vec<Vec<Json>>>>,
    pub(super) chipset: Option<Json>,
    pub(super) accelerators: Option<Json>,
    pub(super) accelerator_capacity: Option<Json>,
    pub(super) host_width: Option<Json>,
}

#[derive(Default, Deserialize)]
pub(super) struct RawUnits {
    #[serde(default)]
    pub(super) cost: String,
    #[serde(default)]
    pub(super) memory: String,
}

#[derive(Deserialize)]
pub(super) struct RawNode {
    #[serde(default)]
    pub(super) name: String,
    pub(super) cost: Option<Json>,
    pub(super) memory: Option<Json>,
    pub(super) is_backward: Option<bool>,
    pub(super) costs: Option<Vec<Json>>,
    pub(super) runtime_s: Option<Json>,
    pub(super) cpu: Option<Json>,
    pub(super) accelerator: Option<Json>,
    pub(super) bytes: Option<Json>,
    pub(super) transfer: Option<Json>,
    pub(super) colocate: Option<Json>,
}

/// Says where a node stands, for error messages.
pub(super) fn node_at(raw: &Raw, node: usize) -> String {
    format!("node {node} ({})", raw.nodes[node].name)
}
