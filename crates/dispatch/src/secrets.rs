//! The interface to the secrets of a namespace: signing keys and header values of webhook endpoints.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use zeroize::Zeroizing;

/// The opened values of a secret, by key.
pub type Values = BTreeMap<String, Zeroizing<Vec<u8>>>;

pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Values, String>> + Send + 'a>>;

/// Opens secrets.
pub trait Secrets: Send + Sync {
    /// The error says why the secret cannot be read, and never contains a value.
    fn open<'a>(&'a self, namespace: &'a str, name: &'a str) -> Opening<'a>;
}

/// For a server without secrets.
pub struct NoSecrets;

impl Secrets for NoSecrets {
    fn open<'a>(&'a self, _: &'a str, name: &'a str) -> Opening<'a> {
        Box::pin(async move { Err(format!("secret {name} does not exist")) })
    }
}
