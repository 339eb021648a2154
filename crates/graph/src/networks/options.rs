//! What can be chosen when a built-in network is made, and how a choice can be wrong.

use thiserror::Error;

use crate::error::GraphError;

/// Sizes of a network; `None` takes the network's default.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkOptions {
    /// Samples per step.
    pub batch: usize,
    /// Height and width of the image.
    pub image: Option<[usize; 2]>,
    /// Number of classes.
    pub classes: Option<usize>,
    /// Blocks of the transformer.
    pub layers: Option<usize>,
    /// Features per token of the transformer, channels of the U-Net.
    pub width: Option<usize>,
    /// Attention heads per block; divides the width.
    pub heads: Option<usize>,
    /// Tokens per sample.
    pub sequence: Option<usize>,
    /// Number of different tokens.
    pub vocabulary: Option<usize>,
    /// Probability that dropout drops; 0 leaves the operators out.
    pub dropout: Option<f64>,
}

impl Default for NetworkOptions {
    /// A batch of 8, everything else by the network's defaults.
    fn default() -> Self {
        NetworkOptions {
            batch: 8,
            image: None,
            classes: None,
            layers: None,
            width: None,
            heads: None,
            sequence: None,
            vocabulary: None,
            dropout: None,
        }
    }
}

/// Why a network can't be built.
#[derive(Clone, Debug, Error)]
pub enum NetworkError {
    /// No such network.
    #[error("there is no built-in network {name:?}; the names are {known}")]
    Unknown {
        /// As asked.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The network doesn't have this option.
    #[error("{network} has no option {option}; leave it out")]
    NotAnOption {
        /// The network.
        network: String,
        /// The option's name.
        option: &'static str,
    },
    /// The option's value is out of range.
    #[error("{network}: {option} = {value} is not possible: {requirement}")]
    Value {
        /// The network.
        network: String,
        /// The option's name.
        option: &'static str,
        /// As asked.
        value: String,
        /// What it must be.
        requirement: String,
    },
    /// The sizes are too large to be counted, or an image becomes too small on its way.
    #[error("{network} can't be built with these options: {source}")]
    Graph {
        /// The network.
        network: String,
        /// The node at fault.
        source: Box<GraphError>,
    },
}

/// The options by name, for tables and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionName {
    Image,
    Classes,
    Layers,
    Width,
    Heads,
    Sequence,
    Vocabulary,
    Dropout,
}

impl OptionName {
    pub(super) const ALL: [OptionName; 8] = [
        OptionName::Image,
        OptionName::Classes,
        OptionName::Layers,
        OptionName::Width,
        OptionName::Heads,
        OptionName::Sequence,
        OptionName::Vocabulary,
        OptionName::Dropout,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            OptionName::Image => "image",
            OptionName::Classes => "classes",
            OptionName::Layers => "layers",
            OptionName::Width => "width",
            OptionName::Heads => "heads",
            OptionName::Sequence => "sequence",
            OptionName::Vocabulary => "vocabulary",
            OptionName::Dropout => "dropout",
        }
    }

    /// The largest value of a count.
    fn most(self) -> usize {
        match self {
            OptionName::Layers => MAX_LAYERS,
            _ => MAX_COUNT,
        }
    }
}

/// The choices for one network: a field is there exactly if the network has the option.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    pub(super) batch: usize,
    /// Whether the network is the common variant for images of 32×32: its first convolutions don't shrink
    /// them. Not an option: such variants have names of their own.
    pub(super) small: bool,
    pub(super) image: Option<[usize; 2]>,
    pub(super) classes: Option<usize>,
    pub(super) layers: Option<usize>,
    pub(super) width: Option<usize>,
    pub(super) heads: Option<usize>,
    pub(super) sequence: Option<usize>,
    pub(super) vocabulary: Option<usize>,
    pub(super) dropout: Option<f64>,
}

/// No count in the options may be larger: far above any network, far below any overflow.
const MAX_COUNT: usize = 1 << 24;

/// Layers are counted one by one, in nodes of the graph, where other counts are sizes of its tensors.
const MAX_LAYERS: usize = 1 << 12;

impl Choices {
    /// A network without options.
    pub(super) const NONE: Choices = Choices {
        batch: 1,
        small: false,
        image: None,
        classes: None,
        layers: None,
        width: None,
        heads: None,
        sequence: None,
        vocabulary: None,
        dropout: None,
    };

    /// The default of an option, if the network has it.
    pub(super) fn shown(&self, name: OptionName) -> Option<String> {
        match name {
            OptionName::Image => self.image.map(|[h, w]| format!("{h}x{w}")),
            OptionName::Classes => self.classes.map(|n| n.to_string()),
            OptionName::Layers => self.layers.map(|n| n.to_string()),
            OptionName::Width => self.width.map(|n| n.to_string()),
            OptionName::Heads => self.heads.map(|n| n.to_string()),
            OptionName::Sequence => self.sequence.map(|n| n.to_string()),
            OptionName::Vocabulary => self.vocabulary.map(|n| n.to_string()),
            OptionName::Dropout => self.dropout.map(|p| p.to_string()),
        }
    }

    /// These defaults, overridden by what was asked for.
    pub(super) fn with(
        &self,
        network: &str,
        asked: &NetworkOptions,
    ) -> Result<Choices, NetworkError> {
        let count = |name: OptionName, default: Option<usize>, value: Option<usize>| {
            let value = merge(network, name, default, value)?;
            match value {
                Some(n) => positive(network, name.as_str(), n, name.most()).map(Some),
                None => Ok(None),
            }
        };
        let image = merge(network, OptionName::Image, self.image, asked.image)?;
        for length in image.into_iter().flatten() {
            positive(network, "image", length, MAX_COUNT)?;
        }
        let dropout = merge(network, OptionName::Dropout, self.dropout, asked.dropout)?;
        if let Some(p) = dropout.filter(|p| !(0.0..1.0).contains(p)) {
            let requirement = "it must be at least 0 and below 1";
            return Err(value_error(network, "dropout", p, requirement));
        }
        Ok(Choices {
            small: self.small,
            batch: positive(network, "batch", asked.batch, MAX_COUNT)?,
            image,
            classes: count(OptionName::Classes, self.classes, asked.classes)?,
            layers: count(OptionName::Layers, self.layers, asked.layers)?,
            width: count(OptionName::Width, self.width, asked.width)?,
            heads: count(OptionName::Heads, self.heads, asked.heads)?,
            sequence: count(OptionName::Sequence, self.sequence, asked.sequence)?,
            vocabulary: count(OptionName::Vocabulary, self.vocabulary, asked.vocabulary)?,
            dropout,
        })
    }
}

fn merge<T>(
    network: &str,
    name: OptionName,
    default: Option<T>,
    asked: Option<T>,
) -> Result<Option<T>, NetworkError> {
    match (&default, &asked) {
        (None, Some(_)) => Err(NetworkError::NotAnOption {
            network: network.to_owned(),
            option: name.as_str(),
        }),
        _ => Ok(asked.or(default)),
    }
}

fn positive(
    network: &str,
    option: &'static str,
    value: usize,
    most: usize,
) -> Result<usize, NetworkError> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    let requirement = format!("it must be between 1 and {most}");
    Err(value_error(network, option, value, requirement))
}

pub(super) fn value_error(
    network: &str,
    option: &'static str,
    value: impl ToString,
    requirement: impl Into<String>,
) -> NetworkError {
    NetworkError::Value {
        network: network.to_owned(),
        option,
        value: value.to_string(),
        requirement: requirement.into(),
    }
}
