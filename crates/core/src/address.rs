//! Where a replica of a function listens on this machine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp(SocketAddr),
    /// A socket that has a name in the kernel and no file. Calls over it cost less than over TCP, and no web page reaches it.
    Local(Arc<str>),
}

/// What such a name is written as where a path is wanted.
pub fn path_of(name: &str) -> String {
    format!("\0{name}")
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Local(name) => write!(f, "@{name}"),
        }
    }
}
