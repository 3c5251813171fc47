//! Access control: roles, the namespaces in which a caller has a role, and tokens.
//!
//! Pure: nothing here reads a clock, a file or a socket.

mod grant;
mod role;
mod token;

pub use grant::{Grant, Identity, Namespaces, Reach};
pub use role::Role;
pub use token::{Hash, Secret, Token, Unreadable};
