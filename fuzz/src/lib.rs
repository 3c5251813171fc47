//! What the targets share: choices taken from a fuzzer's bytes, and what must hold of every event.

pub mod event;
pub mod input;
pub mod seal;
