//! The simulator: the real engine, store and lane machine on a simulated disk, network and clock. One seed determines
//! the whole run. The invariants are in `checkers`, one file each.

#[cfg(feature = "planted")]
pub mod bugs;
mod calls;
pub mod checkers;
mod editing;
mod endpoints;
mod event;
mod faults;
mod finale;
pub mod found;
pub mod fresh;
mod history;
mod limits;
pub mod many;
pub mod mix;
mod network;
mod operator;
mod outside;
mod producer;
mod recovery;
mod rng;
mod rules;
pub mod run;
pub mod shrink;
mod world;
