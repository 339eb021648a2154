//! The operators: each function reads a node's attributes and inputs and adds operators of the graph
//! that compute the same. One file per kind.

mod attention;
mod condition;
mod count;
mod einsum;
mod elementwise;
mod gather;
mod interpolate;
mod loss;
mod mask;
mod matrix;
mod movement;
mod normalize;
mod random;
mod reduce;
mod resize;
mod rotary;
mod sequence;
mod window;

use super::context::{Node, Value};
use super::error::Outcome;
use crate::graph::TensorId;

/// How an operator is imported: the values of its outputs, in order. Outputs that are left out must
/// not be used, which the function has checked.
pub(super) type Build = fn(&mut Node<'_, '_>) -> Outcome<Vec<Value>>;

/// How an operator of the standard domain is imported.
pub(super) fn find(op: &str) -> Option<Build> {
    Some(match op {
        "Conv" => window::conv,
        "ConvTranspose" => window::conv_transpose,
        "MaxPool" => window::max_pool,
        "AveragePool" => window::average_pool,
        "GlobalAveragePool" => window::global_average_pool,
        "GlobalMaxPool" => window::global_max_pool,
        "LRN" => window::local_response,
        "Resize" => resize::resize,
        "Upsample" => resize::upsample,
        "BatchNormalization" => normalize::batch,
        "InstanceNormalization" => normalize::instance,
        "GroupNormalization" => normalize::group,
        "LayerNormalization" => normalize::layer,
        "RMSNormalization" => normalize::root_mean_square,
        "MeanVarianceNormalization" => normalize::mean_variance,
        "Softmax" => normalize::softmax,
        "LogSoftmax" => normalize::log_softmax,
        "Dropout" => normalize::dropout,
        "Relu" | "Sigmoid" | "Tanh" | "Exp" | "Log" | "Sqrt" | "Erf" | "Abs" | "Neg"
        | "Reciprocal" | "LeakyRelu" | "Gelu" | "HardSigmoid" => elementwise::function,
        "Clip" => elementwise::clip,
        "Pow" => elementwise::pow,
        "HardSwish" | "Swish" | "Elu" | "Celu" | "Selu" | "Softplus" | "Softsign" | "Mish" => {
            elementwise::composed
        }
        "PRelu" => elementwise::prelu,
        "Add" | "Sub" | "Mul" | "Div" => elementwise::arithmetic,
        "Sum" | "Mean" => elementwise::sum,
        "Max" | "Min" => elementwise::bound,
        "And" | "Or" => condition::both,
        "Not" => condition::not,
        "Equal" => count::equal,
        "CumSum" => count::cum_sum,
        "Where" => elementwise::choose,
        "Cast" => elementwise::cast,
        "CastLike" => elementwise::cast_like,
        "IsNaN" => normalize::is_nan,
        "RandomUniformLike" => random::uniform,
        "Less" => random::less,
        "Greater" => elementwise::greater,
        "Attention" => attention::attention,
        "RotaryEmbedding" => rotary::rotary,
        "MatMul" => matrix::matmul,
        "Gemm" => matrix::gemm,
        "Einsum" => einsum::einsum,
        "ReduceMean" | "ReduceSum" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare"
        | "ReduceLogSum" | "ReduceLogSumExp" => reduce::reduce,
        "Identity" => movement::identity,
        "Concat" => movement::concat,
        "Split" => movement::split,
        "Slice" => movement::slice,
        "Pad" => movement::pad,
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => movement::reshape,
        "Transpose" => movement::transpose,
        "Expand" => movement::expand,
        "Tile" => movement::tile,
        "Gather" => gather::gather,
        "GatherND" => gather::gather_nd,
        "GatherElements" => gather::gather_elements,
        "ScatterElements" => gather::scatter_elements,
        "ScatterND" => gather::scatter_nd,
        "SplitToSequence" => sequence::split,
        "SequenceAt" => sequence::at,
        "DepthToSpace" => movement::depth_to_space,
        "SpaceToDepth" => movement::space_to_depth,
        "SoftmaxCrossEntropyLoss" => loss::cross_entropy,
        "NegativeLogLikelihoodLoss" => loss::negative_log_likelihood,
        _ => return None,
    })
}

/// One output.
fn one(tensor: TensorId) -> Outcome<Vec<Value>> {
    Ok(vec![Value::Tensor(tensor)])
}
