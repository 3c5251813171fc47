//! The lane machine against what the semantics page says of it: line by line (`lines`), against a naive model under random
//! inputs (`random`), over every state of a small world (`scope`), and what it shows of itself (`shows`).

mod harness;
mod lines;
mod model;
mod random;
mod scope;
mod shows;
