//! The control plane with a real engine, on a disk and a platform in memory.

mod events;
mod failures;
mod life;
mod memory;
mod restarts;
mod world;
