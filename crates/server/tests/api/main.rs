//! The whole server through its HTTP API, with a scripted target.

#![allow(clippy::unwrap_used)]

mod access;
mod audit;
mod backups;
mod edits;
mod events;
mod failures;
mod lanes;
mod metrics;
mod namespaces;
mod openapi;
mod problems;
mod secrets;
mod subscriptions;
mod tokens;
mod webhook_calls;
mod webhooks;
mod world;
