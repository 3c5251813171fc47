//! Guards calls to addresses that users choose: targets of subscriptions, functions at a URL, sources of functions.
//!
//! Without the guard, anyone who may create a subscription could make the server call what only the server can reach:
//! itself, its neighbours, the metadata service of a cloud. The guard allows public addresses, and those that the operator
//! lists for a namespace.
//!
//! The check is part of the resolver that opens connections ([`Reach::resolve`]). A name is looked up once, and only
//! addresses that passed the check are connected to. So a name that changes its address after a check gains nothing.
//! Documents are checked when they are written too ([`Reach::check_url`]), but only to report mistakes early.

mod address;
#[cfg(feature = "client")]
pub mod client;
mod forbidden;
mod guard;
mod host;
mod network;
mod resolver;

pub use address::Rule;
pub use forbidden::Forbidden;
pub use guard::{Allow, Guard, Reach, Settings, split_authority};
pub use host::Host;
pub use network::{Network, Ports};
pub use resolver::{Error, Found, Names, System};
