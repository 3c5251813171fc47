//! Functions and agents as resources: their types, validation and merging, and the planner that decides the next step.
//!
//! Everything here is pure: nothing reads a clock, touches a disk or blocks. A [platform](platform::Platform) (processes on
//! one machine, or a cluster) reports what it observes, [`plan::plan`] decides what to do, and the platform does it.

mod check;
pub mod conditions;
pub mod crd;
pub mod defaults;
pub mod events;
pub mod failure;
pub mod hash;
pub mod logs;
pub mod merge;
pub mod name;
pub mod observed;
pub mod plan;
pub mod platform;
pub mod request;
pub mod resource;
pub mod revision;
pub mod schema;
pub mod secrets;
pub mod triggers;
mod validate;
pub mod write;

pub use klambda_core::scalar;
