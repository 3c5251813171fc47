//! Functions on one machine: fetches their sources, runs them as processes, scales them and routes requests.
//!
//! - [`source`] fetches code from any kind of source into a new folder, and treats it as untrusted.
//! - [`process`] runs a command with its listening socket. The command never outlives this program.
//! - [`logs`] keeps the output of functions and builds.
//! - [`fleet`] keeps functions, their versions and replicas, gives replicas to callers, and scales from and to zero.
//! - [`platform`] connects these and the builds to the control plane.
//! - [`container`] runs images with the container engine of this machine, if there is one.
//! - [`child`] is the helper program between the server and a function, which ties their lifetimes together.

pub mod child;
pub mod container;
pub mod fleet;
pub mod logs;
pub mod platform;
pub mod process;
pub mod source;
