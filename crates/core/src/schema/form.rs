//! Strings with special syntax. An API server validates such a string by its pattern. Our checks recognize the
//! pattern and return a readable message.

use crate::fault::unknown;
use crate::filter::{ATTRIBUTE_RULE, is_attribute_name};
use crate::key::Pointer;
use crate::namespace::{LABEL_RULE, is_label};
use crate::quantity::{
    format_bytes, format_cpu, format_duration_ms, parse_bytes, parse_cpu, parse_duration_ms,
};
use crate::subscription;
use serde::Deserialize;

pub(crate) const DURATION: &str = "^(0|([0-9]+(d|h|m|s|ms))+)$";
pub(crate) const SIZE: &str = "^[0-9]+(Ki|Mi|Gi|Ti|Pi|Ei|k|K|M|G|T|P|E)?$";
pub(crate) const CPU: &str = "^([0-9]+m|[0-9]+([.][0-9]{1,3})?)$";
pub(crate) const LABEL: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";
pub(crate) const NAME: &str = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$";
pub(crate) const ATTRIBUTE: &str = "^[a-z0-9]+$";
pub(crate) const POINTER: &str = "^(/([^~]|~0|~1)*)?$";
pub(crate) const URL: &str = "^[hH][tT][tT][pP][sS]?://[^#]+$";
pub(crate) const FROM: &str = "^(latest|earliest|[-+0-9].*)$";
pub(crate) const START: &str = "^(auto|first)$";
pub(crate) const ATTEMPTS: &str = "^unlimited$";

/// How a string is validated: as a quantity with a unit, or by a rule.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(from = "String")]
pub(super) enum Form {
    Amount { read: fn(&str) -> Result<u64, String>, print: fn(u64) -> String },
    Rule(fn(&str) -> Result<(), String>),
}

const FORMS: [(&str, Form); 11] = [
    (DURATION, Form::Amount { read: parse_duration_ms, print: format_duration_ms }),
    (SIZE, Form::Amount { read: parse_bytes, print: format_bytes }),
    (CPU, Form::Amount { read: parse_cpu, print: format_cpu }),
    (LABEL, Form::Rule(|text| rule(is_label(text), LABEL_RULE))),
    (NAME, Form::Rule(|text| rule(subscription::is_name(text), subscription::NAME_RULE))),
    (ATTRIBUTE, Form::Rule(|text| rule(is_attribute_name(text), ATTRIBUTE_RULE))),
    (POINTER, Form::Rule(|text| Pointer::parse(text).map(drop))),
    (URL, Form::Rule(subscription::check_url)),
    (FROM, Form::Rule(|text| rule(subscription::From::parse(text).is_some(), subscription::FROM_RULE))),
    (START, Form::Rule(|text| word(text, &["auto", "first"]))),
    (
        ATTEMPTS,
        Form::Rule(|text| match text {
            "unlimited" => Ok(()),
            _ => Err("must be a whole number from 1, or unlimited".to_owned()),
        }),
    ),
];

impl From<String> for Form {
    fn from(pattern: String) -> Form {
        let known = FORMS.into_iter().find(|(known, _)| *known == pattern);
        known.map(|(_, form)| form).unwrap_or_else(|| panic!("no check exists for the pattern {pattern}"))
    }
}

impl Form {
    pub(super) fn check(&self, text: &str, bounds: Option<(u64, u64)>) -> Result<(), String> {
        let (read, print) = match self {
            Form::Rule(check) => return check(text),
            Form::Amount { read, print } => (read, print),
        };
        let amount = read(text)?;
        match bounds {
            Some((least, most)) if !(least..=most).contains(&amount) => {
                Err(format!("must be between {} and {}", print(least), print(most)))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn print(&self, amount: u64) -> String {
        match self {
            Form::Amount { print, .. } => print(amount),
            Form::Rule(_) => amount.to_string(),
        }
    }
}

fn rule(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

fn word(text: &str, known: &[&str]) -> Result<(), String> {
    if known.contains(&text) { Ok(()) } else { Err(unknown("value", text, known)) }
}
