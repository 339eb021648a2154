//! Batch normalizations that an exporter has folded into convolutions: a file without them computes the same,
//! but doesn't train the same. What is left of them are names.

use super::proto::{GraphProto, NodeProto};
use std::collections::HashSet;

/// The remark about a file whose normalizations were folded.
pub(super) fn remark(graph: &GraphProto) -> Option<String> {
    let stored: HashSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
    let folded = graph.node.iter().filter(|node| is_folded(node, &stored));
    let count = folded.count();
    (count > 0).then(|| {
        format!(
            "the exporter has folded batch normalizations into {count} convolutions, which train without them; to keep \
             them, export with torch.onnx.export(model.train(), …, dynamo=True, optimize=False), or with dynamo=False, \
             training=TrainingMode.TRAINING, do_constant_folding=False"
        )
    })
}

/// Whether a convolution has weights that PyTorch's older exporter computed (it calls them `onnx::Conv_` and a
/// number; others keep the parameter's name) or writes what its newer one calls `getitem`: the first of several results, of
/// which a convolution has but one.
fn is_folded(node: &NodeProto, stored: &HashSet<&str>) -> bool {
    if !matches!(node.op_type.as_str(), "Conv" | "ConvTranspose") {
        return false;
    }
    let numbered = |name: &str, stem: &str| {
        let rest = name.strip_prefix(stem);
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let weight = node.input.get(1).map_or("", String::as_str);
    let computed = stored.contains(weight)
        && (numbered(weight, "onnx::Conv_") || numbered(weight, "onnx::ConvTranspose_"));
    let output = node.output.first().map_or("", String::as_str);
    computed || output == "getitem" || numbered(output, "getitem_")
}
