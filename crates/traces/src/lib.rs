//! Exports traces over OTLP, beside the path of events ([why it works this way](../../docs/decisions/0026-traces.md)).
//!
//! Spans wait in a bounded queue, and a thread of its own sends them. If the collector is slow or gone, spans are dropped
//! and counted. Nothing waits for it.

mod exemplars;
mod export;
mod otlp;
mod queue;
mod settings;

pub use exemplars::{Exemplar, Exemplars, Series};
pub use export::{Counts, Export, Stats};
pub use settings::{Error, Protocol, Settings, Target};
