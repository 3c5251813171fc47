//! What the bench's processes share to speak HTTP over raw sockets: readiness, connections, parsing, prebuilt requests.

pub mod conn;
pub mod http;
pub mod poll;
pub mod template;
