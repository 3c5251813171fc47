//! HTTP over raw sockets for the processes of the bench: readiness, connections, parsing, prebuilt requests.

pub mod conn;
pub mod http;
pub mod poll;
pub mod template;
