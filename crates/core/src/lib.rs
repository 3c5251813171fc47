//! The pure heart of knative-lambda: events, subscriptions, keys, sequences and the lane machine.
//!
//! Nothing here reads a clock, touches a disk or waits: every function is given what it needs and says what follows.

pub mod time;
