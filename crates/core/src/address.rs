//! The address at which a replica of a function listens on this machine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaAddress {
    Tcp(SocketAddr),
    /// A Unix socket in the abstract namespace: it has a name in the kernel but no file. A call over it costs less
    /// than over TCP, and a web page cannot reach it.
    Local(Arc<str>),
}

/// The form of such a name for APIs that expect a path.
pub fn path_of(name: &str) -> String {
    format!("\0{name}")
}

impl From<SocketAddr> for ReplicaAddress {
    fn from(address: SocketAddr) -> ReplicaAddress {
        ReplicaAddress::Tcp(address)
    }
}

impl fmt::Display for ReplicaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplicaAddress::Tcp(address) => address.fmt(f),
            ReplicaAddress::Local(name) => write!(f, "@{name}"),
        }
    }
}
