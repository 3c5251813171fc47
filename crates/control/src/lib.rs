//! The control plane: keeps functions and agents as documents of the engine, and brings what runs to what they ask for.
//!
//! A write changes a document and is answered; one task then plans each function that changed or that something happened
//! to, stores the status with the events that tell of it in one step, and has the platform act. What the platform
//! comes to is seen the next time the function is planned.
//!
//! - [`Control`] holds the resources; `writes` is what people do to them, `reconcile` the task.
//! - `platform` fetches, builds and runs; `subscriptions` keeps triggers in the engine.
//! - `seam` gives the engine replicas to deliver to; `invoke` calls one directly; `obey` acts on received events.
//!
//! **Invariant:** the resources in memory are those of the engine: they change in the engine's own step, by whoever wrote
//! them there.

mod control;
mod counts;
mod elsewhere;
mod gone;
mod invoke;
mod names;
mod obey;
mod observe;
mod options;
mod parser;
mod platform;
mod reconcile;
mod seam;
mod secrets;
mod state;
mod subscriptions;
mod writes;

pub use control::{Control, Error as StartError};
pub use counts::{Counts, Durations, OfFunction};
pub use invoke::{Error as InvokeError, Invocation, Rest};
pub use names::Name;
pub use obey::acts;
pub use options::Options;
pub use platform::cache::Limits as CacheLimits;
pub use writes::{Applied, Error};
