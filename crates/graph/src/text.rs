//! A graph as text, for people and snapshots: given tensors, nodes in order, outputs. Equal graphs
//! give equal text, whatever their ids.

use std::fmt;

use crate::graph::{Graph, Init, Role, Tensor};

impl fmt::Display for Tensor {
    /// `name: f32[2,3]`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        write!(f, "{}: {}[{}]", self.name, self.dtype, shape.join(","))
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for (_, tensor) in self.given() {
            writeln!(
                f,
                "  {} {tensor}{}",
                role_name(&tensor.role),
                init_text(&tensor.role)
            )?;
        }
        for node in self.nodes().values() {
            let outputs: Vec<String> = node
                .outputs
                .iter()
                .map(|&id| self.tensor(id).to_string())
                .collect();
            let inputs: Vec<&str> = node
                .inputs
                .iter()
                .map(|&id| &*self.tensor(id).name)
                .collect();
            writeln!(
                f,
                "  {} = {:?}({})",
                outputs.join(", "),
                node.op,
                inputs.join(", ")
            )?;
        }
        let outputs: Vec<&str> = self
            .outputs()
            .iter()
            .map(|&id| &*self.tensor(id).name)
            .collect();
        writeln!(f, "  return {}", outputs.join(", "))
    }
}

/// One word per role.
pub(crate) fn role_name(role: &Role) -> &'static str {
    match role {
        Role::Activation => "activation",
        Role::Input => "input",
        Role::Parameter(_) => "parameter",
        Role::State(_) => "state",
        Role::Constant(_) => "constant",
        Role::Hyper => "hyper",
        Role::Seed => "seed",
    }
}

fn init_text(role: &Role) -> String {
    let (Role::Parameter(init) | Role::State(init) | Role::Constant(init)) = role else {
        return String::new();
    };
    match init {
        Init::Constant(value) => format!(" = {value}"),
        Init::Normal { std } => format!(" ~ normal({std})"),
        Init::Uniform { bound } => format!(" ~ uniform(±{bound})"),
        Init::Floats(values) => format!(" = {} floats", values.len()),
        Init::Stored(values) => format!(" = {} floats", values.len()),
        Init::Ints(values) => format!(" = {} integers", values.len()),
    }
}
