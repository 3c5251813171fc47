//! Tests of the local platform with real processes, repositories, archives and sockets.

#![allow(clippy::unwrap_used)]

mod archive;
mod fleet;
mod process;
mod source;
mod support;
