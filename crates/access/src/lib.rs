//! Who may do what: roles, and the namespaces in which somebody has one.
//!
//! Pure: nothing here reads a clock, a file or a socket.

mod grant;
mod role;

pub use grant::{Grant, Identity, Namespaces, Reach};
pub use role::Role;
