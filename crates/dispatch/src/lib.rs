//! The data plane: takes events in, keeps every key of every subscription a lane, and delivers.

mod accept;
mod apply;
mod catch_up;
pub mod dead_letters;
mod delivery;
mod endpoint;
pub mod engine;
mod keeping;
mod lanes;
pub mod metrics;
pub mod operate;
pub mod replay;
mod residency;
mod rows;
mod subscription;

pub use accept::{Judged, Rejection, Status};
pub use engine::{Answer, Config, Delivery, Engine, Failure, Place, Ticket, Token};
