//! Tests of the control plane with a real engine, an in-memory disk and an in-memory platform.

mod events;
mod failures;
mod life;
mod memory;
mod restarts;
mod revisions;
mod world;
