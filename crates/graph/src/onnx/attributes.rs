//! Typed access to a node's attributes. Which attributes were asked for is recorded: one that no
//! one asked for isn't understood, and the importer refuses it rather than ignore it.

use std::cell::RefCell;
use std::collections::HashSet;

use super::error::{Outcome, invalid, unsupported};
use super::proto::{AttributeProto, NodeProto, TensorProto, attribute_type as kind};

/// The attributes of one node.
pub(super) struct Attributes<'a> {
    node: &'a NodeProto,
    asked: RefCell<HashSet<&'static str>>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(node: &'a NodeProto) -> Attributes<'a> {
        Attributes {
            node,
            asked: RefCell::default(),
        }
    }

    /// The attribute of this name, which must have one of these types; files of the first format
    /// versions state no types.
    fn find(&self, name: &'static str, kinds: &[i32]) -> Outcome<Option<&'a AttributeProto>> {
        self.asked.borrow_mut().insert(name);
        let found = self.node.attribute.iter().find(|a| a.name == name);
        match found {
            Some(a) if a.r#type != 0 && !kinds.contains(&a.r#type) => {
                invalid!("attribute {name} has the wrong type")
            }
            found => Ok(found),
        }
    }

    pub(super) fn has(&self, name: &'static str) -> bool {
        self.asked.borrow_mut().insert(name);
        self.node.attribute.iter().any(|a| a.name == name)
    }

    pub(super) fn int(&self, name: &'static str, default: i64) -> Outcome<i64> {
        Ok(self.find(name, &[kind::INT])?.map_or(default, |a| a.i))
    }

    pub(super) fn flag(&self, name: &'static str, default: bool) -> Outcome<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(super) fn required_int(&self, name: &'static str) -> Outcome<i64> {
        match self.find(name, &[kind::INT])? {
            Some(a) => Ok(a.i),
            None => invalid!("attribute {name} is missing"),
        }
    }

    pub(super) fn float(&self, name: &'static str, default: f32) -> Outcome<f64> {
        let value = self.find(name, &[kind::FLOAT])?.map_or(default, |a| a.f);
        if value.is_nan() {
            return invalid!("attribute {name} is not a number");
        }
        // The shortest decimal that gives this f32 is what the author wrote: 1e-5, not
        // 9.999999747378752e-6.
        Ok(value.to_string().parse().unwrap_or(f64::from(value)))
    }

    pub(super) fn text(&self, name: &'static str, default: &'static str) -> Outcome<&'a str> {
        match self.find(name, &[kind::STRING])? {
            None => Ok(default),
            Some(a) => match std::str::from_utf8(&a.s) {
                Ok(text) => Ok(text),
                Err(_) => invalid!("attribute {name} is not text"),
            },
        }
    }

    pub(super) fn ints(&self, name: &'static str) -> Outcome<Option<&'a [i64]>> {
        Ok(self.find(name, &[kind::INTS])?.map(|a| a.ints.as_slice()))
    }

    pub(super) fn floats(&self, name: &'static str) -> Outcome<Option<&'a [f32]>> {
        Ok(self
            .find(name, &[kind::FLOATS])?
            .map(|a| a.floats.as_slice()))
    }

    pub(super) fn tensor(&self, name: &'static str) -> Outcome<Option<&'a TensorProto>> {
        match self.find(name, &[kind::TENSOR])? {
            None => Ok(None),
            Some(a) => match &a.t {
                Some(t) => Ok(Some(t)),
                None => invalid!("attribute {name} has no tensor"),
            },
        }
    }

    /// These attributes don't change what is imported.
    pub(super) fn ignore(&self, names: &[&'static str]) {
        self.asked.borrow_mut().extend(names);
    }

    /// Refuses attributes that no one asked for.
    pub(super) fn all_understood(&self) -> Outcome<()> {
        let asked = self.asked.borrow();
        let unknown = self
            .node
            .attribute
            .iter()
            .find(|a| !asked.contains(a.name.as_str()));
        match unknown {
            None => Ok(()),
            Some(a) => unsupported!("attribute {}", a.name),
        }
    }
}
