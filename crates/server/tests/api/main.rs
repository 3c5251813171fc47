//! The whole server through its HTTP API, with a scripted target.

#![allow(clippy::unwrap_used)]

mod access;
mod audit;
mod backups;
mod edits;
mod event_types;
mod events;
mod failures;
mod lanes;
mod metrics;
mod namespaces;
mod openapi;
mod page;
mod problems;
mod secrets;
mod subscriptions;
mod tokens;
mod webhook_batches;
mod webhook_calls;
mod webhook_feed;
mod webhook_tls;
mod webhooks;
mod world;
