//! Checks the data of events by the JSON Schema of their type.
//!
//! Users write schemas, and events arrive from outside. So nothing is ever fetched, patterns are matched in linear time,
//! and the work for one event is bounded before the schema is accepted: [`bounds`] counts how often a schema can look
//! at one value of the data.

mod bounds;

pub use bounds::{CHAIN_MAX, DEPTH_MAX, EVALUATIONS_MAX};

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use klambda_core::event::{Attributes, Event};
use klambda_core::fault::Fault;
use serde_json::Value;

/// Of one compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;
const MESSAGE_CHARS_MAX: usize = 300;

const DRAFTS: [(&str, Draft); 2] = [
    ("https://json-schema.org/draft/2020-12/schema", Draft::Draft202012),
    ("http://json-schema.org/draft-07/schema", Draft::Draft7),
];

/// A compiled JSON Schema.
pub struct Schema(Validator);

/// Why data does not match a schema. It contains names of members, but no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The JSON pointer of the value in the data; empty for the data as a whole.
    pub pointer: String,
    /// The keyword of the schema, for example `required`.
    pub rule: String,
    pub message: String,
}

impl Schema {
    /// Compiles a schema. The path of a fault is a JSON pointer in the schema.
    pub fn compile(schema: &Value) -> Result<Schema, Fault> {
        let draft = draft(schema)?;
        bounds::check(schema)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::options().with_draft(draft).with_pattern_options(patterns).offline();
        // The specification leaves formats to tools. Here they describe a value and do not restrict it.
        let compiled = options.should_validate_formats(false).build(schema);
        compiled.map(Schema).map_err(|error| fault_of(&error))
    }

    /// Checks the data of an event.
    pub fn check(&self, event: &Event) -> Result<(), Violation> {
        let Some(data) = event.json_data() else {
            let message = if event.data.is_none() { "the event has no data" } else { "the data is not JSON" };
            return Err(not_json(message));
        };
        match serde_json::from_slice(data) {
            Ok(value) => self.check_value(&value),
            Err(error) => Err(not_json(&format!("the data cannot be read as JSON: {error}"))),
        }
    }

    pub fn check_value(&self, data: &Value) -> Result<(), Violation> {
        self.0.validate(data).map_err(|error| violation_of(&error))
    }
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Schema")
    }
}

/// 2020-12 unless the schema says draft-07.
fn draft(schema: &Value) -> Result<Draft, Fault> {
    let Some(said) = schema.get("$schema") else { return Ok(Draft::Draft202012) };
    let said = said.as_str().map(|said| said.trim_end_matches('#')).unwrap_or_default();
    let known = DRAFTS.iter().find(|(address, _)| *address == said);
    let wanted = || format!("must be {} or {}#", DRAFTS[0].0, DRAFTS[1].0);
    known.map(|(_, draft)| *draft).ok_or_else(|| Fault::new("/$schema", wanted()))
}

fn not_json(message: &str) -> Violation {
    Violation { pointer: String::new(), rule: "json".to_owned(), message: message.to_owned() }
}

fn violation_of(error: &ValidationError<'_>) -> Violation {
    Violation {
        pointer: shortened(error.instance_path().as_str()),
        rule: error.kind().keyword().to_owned(),
        message: shortened(&error.masked().to_string()),
    }
}

/// The schema itself was checked by the schema of schemas, or one of its keywords cannot be compiled.
fn fault_of(error: &ValidationError<'_>) -> Fault {
    let (place, keyword) = (error.instance_path().as_str(), error.schema_path().as_str());
    let message = match error.kind() {
        ValidationErrorKind::Format { .. } => {
            "is not a pattern that matches in linear time, without look-around and back-references, or is too large"
                .to_owned()
        }
        _ => shortened(&error.to_string()),
    };
    Fault::new(shortened(if place.is_empty() { keyword } else { place }), message)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
