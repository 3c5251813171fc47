//! Shared by all targets: choices from the bytes of a fuzzer, the properties of every event, and the HTTP library for
//! comparison.

pub mod event;
pub mod input;
pub mod library;
pub mod seal;
