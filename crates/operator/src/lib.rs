//! Functions and agents on Kubernetes: a second platform under the same types, validation, planner and events as on one
//! machine. The only crate that knows `kube`.
//!
//! A reconcile has four steps, and only the last two talk to the cluster:
//!
//! 1. [`read`]: a custom resource becomes a resource, or its faults.
//! 2. [`step`]: what the caches hold ([`snapshot`]) becomes an observation ([`observe`]), the planner decides, and
//!    [`desired`] builds every object that should exist. No client, no clock, no failure.
//! 3. [`reconcile`]: applies what differs, deletes what is no longer desired.
//! 4. [`reconcile`]: emits the events, then writes the status if it changed.
//!
//! Every replica watches. Only the holder of the [`lease`] reconciles.

pub mod cache;
mod child;
mod cluster;
pub mod config;
mod controller;
pub mod desired;
mod emit;
mod installed;
pub mod kinds;
pub mod lease;
mod metrics;
pub mod names;
pub mod observe;
mod queue;
pub mod read;
mod reconcile;
pub mod run;
pub mod snapshot;
pub mod step;
mod watch;

pub use child::Child;
pub use config::Config;
