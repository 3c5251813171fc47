//! The pure core of knative-lambda: events, subscriptions, keys, sequences and the lane machine.
//!
//! Nothing here reads a clock, accesses a disk or blocks. Every function gets its input as arguments and returns the
//! result.

pub mod address;
pub mod binding;
pub mod breaker;
pub mod event;
pub mod event_codec;
mod event_out;
pub mod event_type;
pub mod fault;
pub mod filter;
pub mod http1;
pub mod ids;
mod json;
pub mod key;
pub mod kinds;
pub mod lane;
pub mod lane_row;
pub mod namespace;
pub mod os_error;
pub mod outcome;
pub mod planted;
pub mod quantity;
mod readable;
pub mod retry;
pub mod scalar;
pub mod scan;
pub mod schema;
pub mod strict_json;
pub mod subscription;
pub mod time;
pub mod trace;
pub mod webhook;
pub mod wire;

pub use event_out::header_value;

#[cfg(test)]
mod arbitrary;
