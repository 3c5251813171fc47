//! The control plane: stores functions and agents as documents of the engine, and makes the platform match them.
//!
//! A write changes a document and returns. One task then plans each function that changed. It stores the new status and
//! the events about it in one step, and lets the [platform] act. The next plan sees the result.
//!
//! - [`Control`] holds the resources; `writes` changes them for callers; `reconcile` is the planning task.
//! - `subscriptions` keeps triggers in the engine.
//! - `replicas` gives the engine replicas to deliver to; `invoke` calls a function directly; `commands` runs commands that arrive
//!   as events.
//!
//! **Invariant:** the resources in memory are never older than those that the engine has stored. A step of the engine
//! sends each stored change over a channel, and taking the lock reads the channel first.
//!
//! **Invariant:** the lock is never taken inside a step of the engine, and never held during a call of the platform.
//!
//! [platform]: klambda_functions::platform::Platform

mod addresses;
mod archive;
mod commands;
mod control;
mod counts;
mod deleted;
mod invoke;
mod one_shot;
mod options;
mod reconcile;
mod remote;
mod replicas;
mod revisions;
mod secrets;
mod shared_state;
mod state;
mod subscriptions;
mod traces;
mod writes;

pub use archive::{Archive, Still};
pub use commands::is_command;
pub use control::{Control, Error as StartError};
pub use counts::{Calls, Counts, Durations, OfFunction};
pub use invoke::{Error as InvokeError, Invocation, Rest};
pub use klambda_functions::name::Name;
pub use options::Options;
pub use revisions::Page as RevisionPage;
pub use writes::{Applied, Error, has_functions};
