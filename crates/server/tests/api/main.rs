//! The whole server through its HTTP API, against a target that does as it is told.

#![allow(clippy::unwrap_used)]

mod access;
mod audit;
mod backups;
mod events;
mod failures;
mod lanes;
mod metrics;
mod namespaces;
mod problems;
mod subscriptions;
mod tokens;
mod world;
