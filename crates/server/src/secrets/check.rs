//! Whether the secrets in a data folder can be read. For commands that work on the folder of a stopped server.

use super::vault::{KIND, OpenError, Origin, read_keys, split};
use klambda_dispatch::{Engine, Failure};
use klambda_secrets::{KeyRing, Place, Secret};
use std::path::Path;

const PAGE: usize = 16;

/// The encryption keys of a data folder. There are none if the key file is missing.
pub struct Keys(KeyRing);

/// The result of a check of the secrets. It never contains a value.
#[derive(Debug, Default)]
pub struct CheckedSecrets {
    pub secrets: u64,
    /// Secrets that are damaged, or in a namespace that does not exist.
    pub damaged: Vec<String>,
    /// Secrets that these keys do not open.
    pub unreadable: Vec<String>,
}

impl Keys {
    /// From the variable, from the named file, or from the key file in the folder, as a server reads them. A server
    /// creates a named file that does not exist; here it is an error.
    pub fn read(folder: &Path, named: Option<&Path>) -> Result<Keys, OpenError> {
        let (ring, origin) = read_keys(folder, named)?;
        match origin {
            Origin::File(file) if named.is_some() && ring.is_empty() => {
                Err(OpenError::NoFile(file.path().to_owned()))
            }
            _ => Ok(Keys(ring)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn check(&self, engine: &Engine) -> Result<CheckedSecrets, Failure> {
        let mut checked = CheckedSecrets::default();
        let mut after: Option<String> = None;
        loop {
            let page = engine.documents(KIND, after.as_deref(), PAGE)?;
            let Some(last) = page.last() else { return Ok(checked) };
            after = Some(last.key.clone());
            for stored in &page {
                self.check_one(engine, &stored.key, &stored.content, &mut checked);
            }
        }
    }

    fn check_one(&self, engine: &Engine, key: &str, content: &[u8], checked: &mut CheckedSecrets) {
        checked.secrets += 1;
        let (namespace, name) = split(key);
        if engine.namespace_id(namespace).is_err() {
            checked.damaged.push(format!("secret {key}: there is no namespace {namespace}"));
        }
        let secret = match Secret::decode(content) {
            Ok(secret) => secret,
            Err(why) => return checked.damaged.push(format!("secret {key}: {why}")),
        };
        let opened = |key: &str| secret.open(&self.0, Place { namespace, name, key }).map(drop);
        if let Some(why) = secret.keys().find_map(|key| opened(key).err()) {
            checked.unreadable.push(format!("secret {key} cannot be read: {why}"));
        }
    }
}
