//! The control plane: keeps functions and agents as documents of the engine, and brings what runs to what they ask for.
//!
//! A write changes a document and is answered; one task then plans each function that changed or that something happened
//! to, stores the status with the events that tell of it in one step, and has the [platform] act. What the platform
//! comes to is seen the next time the function is planned.
//!
//! - [`Control`] holds the resources; `writes` is what people do to them, `reconcile` the task.
//! - `subscriptions` keeps triggers in the engine.
//! - `seam` gives the engine replicas to deliver to; `invoke` calls one directly; `obey` acts on received events.
//!
//! **Invariant:** the resources in memory are never behind those that the engine has stored. A step of the engine sends
//! what it stored over a channel, and taking the lock reads the channel first.
//!
//! **Invariant:** the lock is never taken inside a step of the engine, nor held while the platform is used.
//!
//! [platform]: klambda_functions::platform::Platform

mod control;
mod counts;
mod elsewhere;
mod gone;
mod invoke;
mod obey;
mod options;
mod parser;
mod reconcile;
mod seam;
mod shared_state;
mod state;
mod subscriptions;
mod writes;

pub use control::{Control, Error as StartError};
pub use counts::{Counts, Durations, OfFunction};
pub use invoke::{Error as InvokeError, Invocation, Rest};
pub use klambda_functions::name::Name;
pub use obey::acts;
pub use options::Options;
pub use writes::{Applied, Error, has_functions};
