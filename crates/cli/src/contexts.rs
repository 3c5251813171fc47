//! Contexts: servers that have a name. One file in the user's configuration folder lists them; each token has a file of
//! its own, so that the list can be copied and shown without secrets.

mod folder;

pub use folder::{Folder, exposure};

use crate::args::Global;
use crate::exit::Usage;
use klambda_core::namespace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Entry {
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Where requests go, from flags, environment, context and defaults, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub server: String,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    pub namespace: String,
    pub timeout: Duration,
}

const SERVER: &str = "http://127.0.0.1:8080";

impl Contexts {
    pub fn entry(&self, name: &str) -> Result<&Entry, Usage> {
        self.contexts.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            Usage(match names.is_empty() {
                true => {
                    format!("no context named {name}; add one with `klambda context add {name} --server URL`")
                }
                false => format!("no context named {name}; contexts: {}", names.join(", ")),
            })
        })
    }

    /// The context that a command uses: the one named, or the current one.
    fn chosen(&self, named: Option<&str>) -> Result<Option<(&str, &Entry)>, Usage> {
        match named.or(self.current.as_deref()) {
            Some(name) => {
                let entry = self.entry(name)?;
                let name = self.contexts.get_key_value(name).map_or("", |(name, _)| name.as_str());
                Ok(Some((name, entry)))
            }
            None => Ok(None),
        }
    }
}

impl Connection {
    pub fn new(global: &Global) -> anyhow::Result<Connection> {
        let folder = Folder::of_user();
        let contexts = match (&folder, &global.context) {
            (Some(folder), _) => folder.read()?,
            (None, None) => Contexts::default(),
            (None, Some(_)) => return Err(Folder::missing().into()),
        };
        let chosen = contexts.chosen(global.context.as_deref())?;
        let token_file = chosen.zip(folder.as_ref()).and_then(|((name, _), folder)| folder.token(name));
        Ok(merged(global, chosen.map(|(_, entry)| entry), token_file))
    }
}

/// The token, the certificates and the namespace of a context belong to its server. A command that names another server
/// must not send the token there.
fn merged(global: &Global, context: Option<&Entry>, token_file: Option<PathBuf>) -> Connection {
    let is_its_server = |entry: &&Entry| {
        global.server.as_deref().is_none_or(|server| normal(server) == normal(&entry.server))
    };
    let context = context.filter(is_its_server);
    let server = global.server.clone().or_else(|| context.map(|entry| entry.server.clone()));
    let namespace = global.namespace.clone().or_else(|| context?.namespace.clone());
    Connection {
        server: server.unwrap_or_else(|| SERVER.to_owned()),
        token_file: global.token_file.clone().or_else(|| token_file.filter(|_| context.is_some())),
        ca_file: global.ca_file.clone().or_else(|| context?.ca_file.clone()),
        namespace: namespace.unwrap_or_else(|| namespace::DEFAULT.to_owned()),
        timeout: global.timeout,
    }
}

fn normal(server: &str) -> String {
    let server = server.trim_end_matches('/').to_ascii_lowercase();
    if server.contains("://") { server } else { format!("http://{server}") }
}

/// The name of a context is also the name of its token's file.
pub fn check_name(name: &str) -> Result<(), Usage> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(fits) {
        true => Ok(()),
        false => Err(Usage(format!(
            "{name:?} cannot name a context; use letters, digits, dots, dashes and underscores"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn global(line: &str) -> Global {
        let words = ["klambda", "status"].into_iter().chain(line.split_whitespace());
        // The environment of the test decides nothing.
        let mut global = Cli::try_parse_from(words).expect(line).global;
        if !line.contains("--server") {
            global.server = None;
        }
        global
    }

    fn prod() -> Entry {
        let ca_file = Some("ca.pem".into());
        Entry { server: "https://prod.example".to_owned(), ca_file, namespace: Some("shop".to_owned()) }
    }

    fn connection(line: &str) -> Connection {
        merged(&global(line), Some(&prod()), Some("prod.token".into()))
    }

    #[test]
    fn flags_win_over_the_context_and_the_context_over_defaults() {
        let used = connection("");
        assert_eq!((used.server.as_str(), used.namespace.as_str()), ("https://prod.example", "shop"));
        assert_eq!(used.token_file, Some("prod.token".into()));
        assert_eq!(used.ca_file, Some("ca.pem".into()));
        let used = connection("-n other --token-file mine --ca-file b.pem");
        assert_eq!((used.server.as_str(), used.namespace.as_str()), ("https://prod.example", "other"));
        assert_eq!((used.token_file, used.ca_file), (Some("mine".into()), Some("b.pem".into())));
        let none = merged(&global(""), None, None);
        assert_eq!(
            (none.server.as_str(), none.namespace.as_str(), none.token_file),
            (SERVER, "default", None)
        );
    }

    #[test]
    fn a_token_goes_to_no_other_server() {
        let other = connection("--server https://other.example");
        assert_eq!((other.token_file, other.ca_file, other.namespace.as_str()), (None, None, "default"));
        assert_eq!(connection("--server https://PROD.example/").token_file, Some("prod.token".into()));
    }

    #[test]
    fn names_are_names_of_files() {
        for good in ["prod", "eu-1.prod_2"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "..", ".x", "a/b", "a b", "ü"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_context_names_those_that_exist() {
        let contexts = Contexts { current: None, contexts: BTreeMap::from([("prod".to_owned(), prod())]) };
        let error = contexts.chosen(Some("dev")).expect_err("unknown").to_string();
        assert_eq!(error, "no context named dev; contexts: prod");
        assert!(contexts.chosen(None).expect("none").is_none());
    }
}
