//! Functions and agents as resources: their types, validation and merging, and the plan that brings what runs to what
//! is asked for.
//!
//! Everything here is pure: nothing reads a clock, touches a disk or waits. A [platform](platform::Platform) (processes
//! on one machine, or a cluster) observes, is told by [`plan::plan`] what to do, does it, and observes again.

mod check;
pub mod conditions;
pub mod crd;
pub mod defaults;
pub mod events;
pub mod failure;
pub mod hash;
pub mod merge;
pub mod name;
pub mod observed;
pub mod plan;
pub mod platform;
pub mod request;
pub mod resource;
pub mod scalar;
pub mod schema;
pub mod triggers;
mod validate;
pub mod write;
