//! Where a replica of a function listens on this machine.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    Tcp(SocketAddr),
    /// A socket that has a name in the kernel and no file. It costs half of what TCP costs, and no web page reaches it.
    Local(Arc<str>),
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
