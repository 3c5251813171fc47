//! Reads query parameters strictly: all unknown, repeated or invalid ones are reported together.

use crate::problem::{Fault, Problem};
use http::Uri;
use klambda_core::fault::unknown;
use klambda_core::ids::plain_number;
use percent_encoding::percent_decode_str;
use std::cell::RefCell;

pub struct Params {
    given: Vec<(String, String)>,
    faults: RefCell<Vec<Fault>>,
}

pub const LIMIT_DEFAULT: usize = 100;
const LIMIT_MAX: u64 = 1000;

impl Params {
    pub fn read(uri: &Uri, known: &[&str]) -> Params {
        let mut params = Params { given: Vec::new(), faults: RefCell::default() };
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decode(name), decode(value)) {
                (Some(name), Some(value)) => params.add(name, value, known),
                _ => params.fault(name, "is not percent-encoded UTF-8"),
            }
        }
        params
    }

    /// For resources without parameters.
    pub fn none(uri: &Uri) -> Result<(), Problem> {
        Params::read(uri, &[]).finish()
    }

    fn add(&mut self, name: String, value: String, known: &[&str]) {
        if !known.contains(&name.as_str()) {
            let message = match known {
                [] => format!("unknown parameter `{name}`: this resource has no parameters"),
                known => unknown("parameter", &name, known),
            };
            self.fault(&name, message);
        } else if self.text(&name).is_some() {
            self.fault(&name, "is set twice");
        } else {
            self.given.push((name, value));
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    pub fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// The value, if it is set and valid. An invalid value is a fault.
    pub fn parsed<T>(&self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match read(self.text(name)?) {
            Ok(value) => Some(value),
            Err(message) => {
                self.fault(name, message);
                None
            }
        }
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.parsed(name, |text| plain_number(text).ok_or_else(|| format!("`{text}` is not an integer")))
    }

    /// `?drain=true`. `?drain` alone means the same.
    pub fn flag(&self, name: &str) -> bool {
        let read = |text: &str| match text {
            "true" | "" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("`{other}` must be true or false")),
        };
        self.parsed(name, read).unwrap_or(false)
    }

    /// Maximum number of items on a page.
    pub fn limit(&self) -> usize {
        let limit = self.parsed("limit", |text| match plain_number(text) {
            Some(limit @ 1..=LIMIT_MAX) => Ok(limit as usize),
            _ => Err(format!("must be a number from 1 to {LIMIT_MAX}")),
        });
        limit.unwrap_or(LIMIT_DEFAULT)
    }

    pub fn fault(&self, name: &str, message: impl Into<String>) {
        self.faults.borrow_mut().push(Fault::new(name, message));
    }

    /// Call after the last parameter: returns the faults as a problem.
    pub fn finish(&self) -> Result<(), Problem> {
        let faults = self.faults.take();
        match faults.len() {
            0 => Ok(()),
            1 => Err(Problem::bad_request(format!("query parameter {}", faults[0])).faults(faults)),
            n => Err(Problem::bad_request(format!("the query has {n} errors")).faults(faults)),
        }
    }
}

/// Decodes a form value: plus is a space.
fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str, known: &[&str]) -> Params {
        Params::read(&format!("/x?{query}").parse().unwrap(), known)
    }

    #[test]
    fn values_are_decoded_and_everything_wrong_is_named() {
        let good = read("key=a%2Fb+c%2B&limit=7&drain", &["key", "limit", "drain"]);
        assert_eq!(good.text("key"), Some("a/b c+"));
        assert_eq!((good.limit(), good.flag("drain")), (7, true));
        assert!(good.finish().is_ok());

        let bad = read("keey=1&limit=0&limit=5&drain=maybe&x=%ff", &["key", "limit", "drain"]);
        assert_eq!((bad.limit(), bad.flag("drain")), (100, false));
        let json = String::from_utf8(bad.finish().unwrap_err().to_json()).unwrap();
        for part in ["did you mean `key`?", "from 1 to 1000", "set twice", "must be true or false", "UTF-8"] {
            assert!(json.contains(part), "{part} not in {json}");
        }
    }
}
