//! Looks up names and keeps only addresses that may be called. Connectors connect to nothing else.

use crate::address::Rule;
use crate::forbidden::Forbidden;
use crate::guard::{Limits, Reach};
use crate::host::Host;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use tokio::net::lookup_host;

/// The addresses of a name, when they are known.
pub type Found<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// A name service.
pub trait Names: Send + Sync {
    fn look_up<'a>(&'a self, name: &'a str, port: u16) -> Found<'a>;
}

/// The resolver of the machine.
pub struct System;

impl Names for System {
    fn look_up<'a>(&'a self, name: &'a str, port: u16) -> Found<'a> {
        Box::pin(async move { Ok(lookup_host((name, port)).await?.collect()) })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Forbidden(#[from] Forbidden),
    /// The name service did not answer, or does not know the name.
    #[error(transparent)]
    Lookup(#[from] io::Error),
}

impl Reach {
    /// The addresses of a host that may be called. Every connection to an address that a user chose begins here.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Error> {
        let Some(limits) = &self.0 else { return Ok(System.look_up(host, port).await?) };
        limits.counted(limits.look_up(limits.check(host, port), port).await)
    }

    /// The same for a client that puts the port into the addresses itself. It must check the port.
    #[cfg(feature = "client")]
    pub(crate) async fn resolve_host(&self, host: &str) -> Result<Vec<SocketAddr>, Error> {
        let Some(limits) = &self.0 else { return Ok(System.look_up(host, 0).await?) };
        limits.counted(limits.look_up(limits.check_host(host), 0).await)
    }
}

impl Limits {
    fn counted<T>(&self, resolved: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::Forbidden(forbidden)) = &resolved {
            self.shared.count(forbidden);
        }
        resolved
    }

    async fn look_up(&self, host: Result<Host, Forbidden>, port: u16) -> Result<Vec<SocketAddr>, Error> {
        match host? {
            Host::Address(address) => Ok(vec![SocketAddr::new(address, port)]),
            Host::Name(name) => {
                let found = self.shared.names.look_up(&name, port).await?;
                Ok(self.allowed(&name, found)?)
            }
        }
    }

    /// Only the allowed addresses of a name. It is forbidden if none is left.
    fn allowed(&self, name: &str, mut found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Forbidden> {
        let mut broken: Option<Rule> = None;
        found.retain(|address| self.check_address(address.ip()).map_err(|rule| broken = Some(rule)).is_ok());
        match broken {
            Some(rule) if found.is_empty() => Err(Forbidden::Name { name: name.to_owned(), rule }),
            _ => Ok(found),
        }
    }
}
