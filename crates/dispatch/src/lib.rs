//! The data plane: takes events in, keeps every key of every subscription a lane, and delivers.

mod accept;
mod apply;
mod behind;
mod catch_up;
pub mod check;
pub mod client;
pub mod dead_letters;
mod delivery;
pub mod documents;
mod endpoint;
pub mod engine;
pub mod functions;
mod group;
pub mod held;
pub mod history;
mod keeping;
mod known;
mod lanes;
pub mod metrics;
pub mod operate;
mod overflow;
pub mod replay;
mod replies;
mod residency;
mod retiring;
mod rows;
pub mod runner;
pub mod seed;
pub mod snapshot;
mod subscription;
mod trail;
pub mod views;
pub mod workers;

pub use accept::{Judged, Rejection, Status};
pub use engine::{Answer, Config, Delivery, Engine, Failure, Place, Ticket, Token};
