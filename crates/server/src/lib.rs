//! The HTTP server: configuration, limits, safety at the door, and one file per resource behind it.

pub mod auth;
pub mod body;
pub mod config;
pub mod connection;
pub mod extract;
pub mod front;
pub mod guard;
pub mod listener;
pub mod problem;
pub mod router;
pub mod shutdown;
mod socket;
pub mod telemetry;
pub mod tls;

pub use config::Config;
pub use front::{Error, Front};
pub use problem::Problem;
pub use shutdown::Shutdown;
