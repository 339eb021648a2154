//! What is written follows the schemas in `docs/schema`, whose every property occurs; and what the
//! schemas call required is.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::*;
use scrimp_plan::testing::{Shape, random_problem};
use scrimp_plan::*;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::Path;

fn schema(name: &str) -> Json {
    let path = Path::new(&std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../docs/schema")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The part of JSON Schema that ours use. Notes the properties that occurred.
struct Validator<'a> {
    root: &'a Json,
    seen: BTreeSet<String>,
}

impl Validator<'_> {
    fn valid(&mut self, schema: &Json, value: &Json) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self
                .root
                .pointer(reference.trim_start_matches('#'))
                .unwrap()
                .clone();
            return self.valid(&target, value);
        }
        let known = ["description", "title", "$schema", "$defs", "pattern"];
        schema
            .as_object()
            .unwrap()
            .iter()
            .all(|(keyword, rule)| match keyword.as_str() {
                "type" => match rule.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_u64(),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                },
                "const" => value == rule,
                "enum" => rule.as_array().unwrap().contains(value),
                "anyOf" => rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|option| self.valid(option, value)),
                "required" => rule
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|key| value.get(key.as_str().unwrap()).is_some()),
                "minimum" => value.as_f64() >= rule.as_f64(),
                "maximum" => value.as_f64() <= rule.as_f64(),
                "exclusiveMinimum" => value.as_f64() > rule.as_f64(),
                "minItems" => value.as_array().unwrap().len() as u64 >= rule.as_u64().unwrap(),
                "maxItems" => value.as_array().unwrap().len() as u64 <= rule.as_u64().unwrap(),
                "items" => value
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|item| self.valid(rule, item)),
                "properties" => value.as_object().is_none_or(|object| {
                    object.iter().all(|(key, value)| match rule.get(key) {
                        Some(rule) => {
                            self.seen.insert(key.clone());
                            self.valid(rule, value)
                        }
                        None => schema["additionalProperties"] != Json::Bool(false),
                    })
                }),
                "additionalProperties" => match (rule, value.as_object()) {
                    (Json::Bool(_), _) | (_, None) => true,
                    (rule, Some(object)) => object.values().all(|value| self.valid(rule, value)),
                },
                other => known.contains(&other),
            })
    }
}

fn property_names(schema: &Json, names: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        names.extend(properties.keys().cloned());
    }
    match schema {
        Json::Object(fields) => fields
            .values()
            .for_each(|field| property_names(field, names)),
        Json::Array(items) => items.iter().for_each(|item| property_names(item, names)),
        _ => {}
    }
}

fn check_all(schema: &Json, texts: &[String]) {
    let mut validator = Validator {
        root: schema,
        seen: BTreeSet::new(),
    };
    for text in texts {
        let value: Json = serde_json::from_str(text).unwrap();
        assert!(validator.valid(schema, &value), "{text}");
    }
    let mut names = BTreeSet::new();
    property_names(schema, &mut names);
    assert_eq!(
        validator.seen, names,
        "properties of the schema that are never written, or the reverse"
    );
}

#[test]
fn problems_follow_their_schema() {
    let schema = schema("problem.schema.json");
    let mut small = parts();
    small.links[LinkId::from_u32(0)].seconds.insert(v(0), 1.5);
    small.links[LinkId::from_u32(0)].drag = 0.125;
    small.links[LinkId::from_u32(0)].joules = 0.5;
    small.links[LinkId::from_u32(0)].joules_per_byte = 0.25;
    small.links[LinkId::from_u32(1)].queue = Some(LinkId::from_u32(0));
    let concurrent = Link {
        concurrent: true,
        ..Link::new(d(0), d(2), 1.0, 0.0)
    };
    small.links.push(concurrent);
    small.devices[d(0)].concurrent = true;
    small.tasks[t(0)].modes[0].resident = 3;
    small.together = vec![vec![t(0), t(1)]];
    small.devices[d(1)].arithmetic = "gpu".into();
    let mut texts = vec![problem_to_json(
        &Problem::new(small).unwrap(),
        &Capacities::bytes_of(d(0), 100).with_joules(d(0), Some(1.5)),
    )];
    let random = |seed| random_problem(seed, &Shape::everything(20));
    texts.extend((0..20).map(|seed| problem_to_json(&random(seed), &Capacities::unlimited())));
    check_all(&schema, &texts);
    // The reader refuses what the schema refuses, and reads what it allows to be missing.
    let full: Json = serde_json::from_str(&texts[0]).unwrap();
    for key in full.as_object().unwrap().keys() {
        let mut less = full.clone();
        less.as_object_mut().unwrap().remove(key);
        let required = schema["required"]
            .as_array()
            .unwrap()
            .iter()
            .any(|required| required == key);
        assert_eq!(
            problem_from_json(&less.to_string()).is_err(),
            required,
            "{key}"
        );
    }
}

#[test]
fn plans_follow_their_schema() {
    let mut plan = Plan::keep_all(&problem(), d(0)).unwrap();
    plan.steps.push(copy(4, 0, 1));
    check_all(
        &schema("plan.schema.json"),
        &[plan_to_json(&problem(), &plan, Some("a device"))],
    );
}
