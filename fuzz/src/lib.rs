//! What the targets share: choices taken from a fuzzer's bytes, what must hold of every event, and the HTTP
//! library to compare with.

pub mod event;
pub mod input;
pub mod library;
pub mod seal;
