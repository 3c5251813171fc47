//! Functions on one machine: fetching their sources, running them as processes, scaling and routing.
//!
//! - [`source`] brings code into a fresh folder, whatever it is kept in, and trusts none of it.
//! - [`process`] runs a command that is handed its listening socket, and that never outlives this program.
//! - [`fleet`] keeps functions, their versions and replicas; gives out replicas to callers; scales from zero and back.
//! - [`platform`] joins these and the builds to what the control plane asks for.
//! - [`container`] runs images through an engine of this machine, where there is one.
//! - [`child`] is the little program between this one and a function: it ties the two lives together.

pub mod child;
pub mod container;
pub mod fleet;
pub mod platform;
pub mod process;
pub mod source;
