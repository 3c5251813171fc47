//! Secrets and config maps of one machine.
//!
//! A secret is looked for in the store first, then in the configured folder: a folder for each namespace, in it one for
//! each secret or config map, with a file for each key. Values are never printed.

mod folder;
mod revision;

use super::Options;
use crate::fleet::files::{Files, SecretFiles};
use crate::source::Credentials;
use folder::Folder;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{self, EnvVar, KeyRef, SecretRef};
use klambda_secrets::{OpenError, Stored, Value};
use zeroize::Zeroizing;

pub use revision::revisions;

type Result<T> = std::result::Result<T, Box<Failure>>;

/// One secret, wherever it is.
enum Place {
    Stored(Box<Stored>),
    Folder(Folder),
    Nowhere,
}

/// One secret of a namespace.
struct Secret<'a> {
    namespace: &'a str,
    name: &'a str,
    place: Place,
}

impl<'a> Secret<'a> {
    fn find(options: &Options, namespace: &'a str, name: &'a str) -> Result<Secret<'a>> {
        let secret = |place| Secret { namespace, name, place };
        if let Some(reader) = &options.stored_secrets {
            let read = reader.read(namespace, name).map_err(|why| {
                unreadable(format!("Secret {name} of namespace {namespace} cannot be read: {why}"))
            })?;
            if let Some(stored) = read {
                return Ok(secret(Place::Stored(Box::new(stored))));
            }
        }
        let folder = options.secrets.as_deref().and_then(|root| Folder::of(root, namespace, name));
        Ok(secret(folder.map_or(Place::Nowhere, Place::Folder)))
    }

    fn get(&self, key: &str) -> Result<Option<Value>> {
        match &self.place {
            Place::Stored(stored) => stored.get(key).map_err(|why| self.lost(key, &why)),
            Place::Folder(folder) => folder.read(key),
            Place::Nowhere => Ok(None),
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        let text = |value: Value| String::from_utf8(value.to_vec()).ok().filter(|text| !text.contains('\0'));
        match self.get(key)? {
            None => Ok(None),
            Some(value) => match text(value) {
                Some(text) => Ok(Some(text)),
                None => Err(unreadable(format!("Key {key} of secret {} is not text", self.name))),
            },
        }
    }

    /// The first of these keys that exists.
    fn any(&self, keys: &[&str]) -> Result<Option<String>> {
        for key in keys {
            if let Some(value) = self.text(key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn need(&self, keys: &[&str]) -> Result<String> {
        let lacks = || missing(self.lacks("The source", &[keys.first().copied().unwrap_or_default()]));
        self.any(keys)?.ok_or_else(lacks)
    }

    /// The missing secret or key, and the command that adds it.
    fn lacks(&self, user: &str, keys: &[&str]) -> String {
        let Secret { namespace, name, place } = self;
        let what = match (place, keys) {
            (Place::Nowhere, _) | (_, []) => {
                format!("secret {name}, which does not exist in namespace {namespace}")
            }
            (_, keys) => format!("key {} of secret {name}, which the secret does not have", keys.join(", ")),
        };
        format!("{user} needs {what}: run `{}`", command(namespace, name, keys))
    }

    fn lost(&self, key: &str, why: &OpenError) -> Box<Failure> {
        let Secret { namespace, name, .. } = self;
        let command = command(namespace, name, &[key]);
        let failure = unreadable(format!("Key {key} of secret {name} cannot be decrypted: {why}"));
        let advice =
            format!("Run `{command}` to set it again, or restore the key file and restart the server");
        Box::new(failure.advising(advice))
    }

    fn files(&self, files: &resource::SecretFiles) -> Result<Option<SecretFiles>> {
        let keys: Vec<String> = match &self.place {
            Place::Stored(stored) => stored.secret.keys().map(str::to_owned).collect(),
            Place::Folder(folder) => folder.keys(),
            Place::Nowhere if files.optional => return Ok(None),
            Place::Nowhere => return Err(missing(self.lacks("spec.secretFiles", &[]))),
        };
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let value = self.get(&key)?.unwrap_or_default();
            found.push((key, value));
        }
        Ok(Some(SecretFiles { secret: self.name.to_owned(), path: files.path.clone(), files: found }))
    }
}

// ---- what sources need ----------------------------------------------------------------------------------------

pub fn for_git(options: &Options, namespace: &str, secret: Option<&SecretRef>) -> Result<Credentials> {
    let Some(SecretRef { name }) = secret else { return Ok(Credentials::None) };
    let secret = Secret::find(options, namespace, name)?;
    if let Some(private_key) = secret.any(&["sshKey", "ssh-privatekey"])? {
        return Ok(Credentials::SshKey { private_key });
    }
    let password = secret.need(&["password", "token"])?;
    let username = secret.text("username")?.unwrap_or_else(|| "git".into());
    Ok(Credentials::Basic { username, password })
}

pub fn for_buckets(options: &Options, namespace: &str, secret: Option<&SecretRef>) -> Result<Credentials> {
    let Some(SecretRef { name }) = secret else { return Ok(Credentials::None) };
    let secret = Secret::find(options, namespace, name)?;
    let id = secret.need(&["accessKey", "accessKeyId"])?;
    let key = secret.need(&["secretKey", "secretAccessKey"])?;
    Ok(Credentials::AccessKey { id, secret: key, session_token: secret.text("sessionToken")? })
}

pub fn for_google(options: &Options, namespace: &str, secret: Option<&SecretRef>) -> Result<Credentials> {
    let Some(SecretRef { name }) = secret else { return Ok(Credentials::None) };
    let json = Secret::find(options, namespace, name)?.need(&["key.json"])?;
    Ok(Credentials::ServiceAccount { json })
}

// ---- what replicas need ---------------------------------------------------------------------------------------

/// The function's own environment.
pub fn environment(env: &[EnvVar], namespace: &str, options: &Options) -> Result<Vec<(String, String)>> {
    let mut read = Vec::with_capacity(env.len() + 8);
    for variable in env {
        let from = variable.value_from.as_deref();
        let value = match from.map(|from| (&from.secret_key_ref, &from.config_map_key_ref)) {
            Some((Some(key), _)) => from_secret(key, &variable.name, namespace, options)?,
            Some((None, Some(key))) => from_config_map(key, &variable.name, namespace, options)?,
            _ => Some(variable.value.clone().unwrap_or_default()),
        };
        read.extend(value.map(|value| (variable.name.clone(), value)));
    }
    Ok(read)
}

fn from_secret(key: &KeyRef, variable: &str, namespace: &str, options: &Options) -> Result<Option<String>> {
    let secret = Secret::find(options, namespace, &key.name)?;
    match secret.text(&key.key)? {
        None if !key.optional => Err(missing(secret.lacks(&format!("Variable {variable}"), &[&key.key]))),
        found => Ok(found),
    }
}

fn from_config_map(
    key: &KeyRef,
    variable: &str,
    namespace: &str,
    options: &Options,
) -> Result<Option<String>> {
    let folder = options.secrets.as_deref().and_then(|root| Folder::of(root, namespace, &key.name));
    let found = folder.map(|folder| folder.read(&key.key)).transpose()?.flatten();
    match found.map(|value| String::from_utf8(value.to_vec())) {
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(_)) => Err(unreadable(format!("Key {} of config map {} is not text", key.key, key.name))),
        None if key.optional => Ok(None),
        None => Err(missing(format!(
            "Variable {variable} needs key {} of config map {}: create the file {namespace}/{}/{} in the folder that the \
             server's setting functions.secrets names",
            key.key, key.name, key.name, key.key
        ))),
    }
}

/// The files that a replica finds; nothing if it needs none.
pub fn files(files: &[resource::SecretFiles], namespace: &str, options: &Options) -> Result<Option<Files>> {
    let mut secrets = Vec::new();
    for wanted in files {
        secrets.extend(Secret::find(options, namespace, &wanted.secret)?.files(wanted)?);
    }
    Ok((!files.is_empty()).then_some(Files { secrets }))
}

fn command(namespace: &str, name: &str, keys: &[&str]) -> String {
    let place = if namespace == "default" { String::new() } else { format!(" -n {namespace}") };
    let keys: String = if keys.is_empty() {
        " KEY=VALUE".into()
    } else {
        keys.iter().map(|key| format!(" {key}=VALUE")).collect()
    };
    format!("klambda{place} secret set {name}{keys}")
}

fn missing(detail: String) -> Box<Failure> {
    Box::new(Failure::new(Reason::SecretNotFound, detail))
}

fn unreadable(detail: String) -> Box<Failure> {
    Box::new(Failure::new(Reason::SecretUnreadable, detail))
}

/// A value of a file, without the line break at its end.
fn without_line_break(mut value: Vec<u8>) -> Value {
    if value.last() == Some(&b'\n') {
        value.pop();
    }
    Zeroizing::new(value)
}
