//! The local platform with real processes, repositories, archives and sockets.

mod archive;
mod fleet;
mod process;
mod source;
mod support;
