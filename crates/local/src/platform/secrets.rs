//! Secrets and config maps of one machine: a folder for each namespace, in it one for each of them, with a file for each
//! key. What is in them is never printed.

use super::Options;
use crate::source::Credentials;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{EnvVar, KeyRef, SecretRef};
use std::path::PathBuf;

/// Longer ones are no secrets.
const BYTES_MAX: u64 = 1 << 20;

/// One secret; or none, where the manifest names none.
pub struct Secret<'a> {
    options: &'a Options,
    namespace: &'a str,
    name: Option<&'a str>,
}

fn missing(detail: String) -> Box<Failure> {
    Box::new(Failure::new(Reason::SecretNotFound, detail))
}

impl<'a> Secret<'a> {
    pub fn open(options: &'a Options, namespace: &'a str, secret: Option<&'a SecretRef>) -> Secret<'a> {
        Secret { options, namespace, name: secret.map(|secret| secret.name.as_str()) }
    }

    fn get(&self, key: &str) -> Result<Option<String>, Box<Failure>> {
        self.name.map_or(Ok(None), |name| read(self.options, self.namespace, name, key))
    }

    /// The first of these keys that is there.
    fn any(&self, keys: &[&str]) -> Result<Option<String>, Box<Failure>> {
        for key in keys {
            if let Some(value) = self.get(key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn lacks(&self, keys: &str) -> Box<Failure> {
        let name = self.name.unwrap_or_default();
        missing(format!("Secret {name} of namespace {} has no {keys}", self.namespace))
    }

    pub fn for_git(&self) -> Result<Credentials, Box<Failure>> {
        if self.name.is_none() {
            return Ok(Credentials::None);
        }
        if let Some(private_key) = self.any(&["sshKey", "ssh-privatekey"])? {
            return Ok(Credentials::SshKey { private_key });
        }
        let password = self.any(&["password", "token"])?.ok_or_else(|| self.lacks("password or sshKey"))?;
        let username = self.get("username")?.unwrap_or_else(|| "git".into());
        Ok(Credentials::Basic { username, password })
    }

    pub fn for_buckets(&self) -> Result<Credentials, Box<Failure>> {
        if self.name.is_none() {
            return Ok(Credentials::None);
        }
        let id = self.any(&["accessKey", "accessKeyId"])?.ok_or_else(|| self.lacks("accessKey"))?;
        let secret = self.any(&["secretKey", "secretAccessKey"])?.ok_or_else(|| self.lacks("secretKey"))?;
        Ok(Credentials::AccessKey { id, secret, session_token: self.get("sessionToken")? })
    }

    pub fn for_google(&self) -> Result<Credentials, Box<Failure>> {
        if self.name.is_none() {
            return Ok(Credentials::None);
        }
        let json = self.get("key.json")?.ok_or_else(|| self.lacks("key.json"))?;
        Ok(Credentials::ServiceAccount { json })
    }
}

/// The function's own environment.
pub fn environment(
    env: &[EnvVar],
    namespace: &str,
    options: &Options,
) -> Result<Vec<(String, String)>, Box<Failure>> {
    let mut read = Vec::with_capacity(env.len() + 8);
    for variable in env {
        let named = variable.value_from.as_ref();
        let reference =
            named.and_then(|from| from.secret_key_ref.as_ref().or(from.config_map_key_ref.as_ref()));
        let value = match reference {
            Some(reference) => look_up(reference, &variable.name, namespace, options)?,
            None => Some(variable.value.clone().unwrap_or_default()),
        };
        read.extend(value.map(|value| (variable.name.clone(), value)));
    }
    Ok(read)
}

fn look_up(
    reference: &KeyRef,
    variable: &str,
    namespace: &str,
    options: &Options,
) -> Result<Option<String>, Box<Failure>> {
    let found = read(options, namespace, &reference.name, &reference.key);
    match found {
        Ok(None) | Err(_) if reference.optional => Ok(None),
        Ok(None) => Err(missing(format!(
            "The variable {variable} needs key {} of {} in namespace {namespace}, which is not there",
            reference.key, reference.name
        ))),
        other => other,
    }
}

fn read(options: &Options, namespace: &str, name: &str, key: &str) -> Result<Option<String>, Box<Failure>> {
    let Some(folder) = &options.secrets else {
        return Err(missing("The server has no folder of secrets (functions.secrets)".into()));
    };
    if ![namespace, name, key].into_iter().all(is_plain) {
        return Err(missing(format!("{key} of {name} is no name of a file")));
    }
    let path: PathBuf = folder.join(namespace).join(name).join(key);
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() && found.len() <= BYTES_MAX => {}
        Ok(_) => return Err(missing(format!("Key {key} of {name} is no file of at most 1Mi"))),
        Err(_) => return Ok(None),
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|error| missing(format!("Key {key} of {name} cannot be read: {}", error.kind())))?;
    Ok(Some(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text)))
}

/// A name of something in a folder, and not a way out of it.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
