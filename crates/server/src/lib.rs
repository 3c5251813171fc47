//! The HTTP server: configuration, limits, safety at the door, and one file per resource behind it.

mod answer;
mod api;
pub mod auth;
mod backup;
pub mod body;
pub mod config;
pub mod connection;
mod dead_letters;
mod events;
pub mod extract;
mod fast;
pub mod front;
pub mod guard;
mod lanes;
pub mod listener;
mod members;
mod metrics;
mod params;
pub mod problem;
mod refusal;
mod replays;
pub mod router;
pub mod serve;
pub mod shutdown;
mod socket;
mod status;
mod stream;
mod subscriptions;
pub mod telemetry;
pub mod tls;

pub use answer::Answer;
pub use config::Config;
pub use front::{Error, Front};
pub use problem::Problem;
pub use serve::{Server, run, runtime};
pub use shutdown::Shutdown;
