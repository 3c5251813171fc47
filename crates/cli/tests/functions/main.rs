//! Functions through the real binary: from a document over REST to a process that answers, and back to nothing.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod calls;
mod commands;
mod lifecycle;
mod many;
mod metrics;
mod runtimes;
mod sources;
mod world;
mod writes;
