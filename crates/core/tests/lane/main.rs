//! The lane machine against what the semantics page says of it: line by line (`lines`), against a naive model under random
//! inputs (`random`), and over every state of a small world (`scope`).

mod harness;
mod lines;
mod model;
mod random;
mod scope;
