//! Functions through the real binary: from a document over REST to a process that answers, and back to nothing.

#[path = "../support/mod.rs"]
mod support;

mod backups;
mod bad_input;
mod calls;
mod commands;
mod images;
mod isolation;
mod lifecycle;
mod logs;
mod many;
mod metrics;
mod outbound;
mod revisions;
mod runtimes;
mod secrets;
mod sources;
mod world;
mod writes;
