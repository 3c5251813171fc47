//! Tests of the lane machine against its specification: rule by rule (`lines`), against a simple model with random
//! inputs (`random`), over all states of a small system (`scope`), and its read access (`shows`).

mod harness;
mod lines;
mod model;
mod random;
mod scope;
mod shows;
