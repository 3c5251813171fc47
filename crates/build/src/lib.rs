//! From a folder of source to an artifact that can be started: dependencies installed, syntax checked, compiled where
//! the language compiles. An artifact is a folder named by the hash of everything it was made from, so the same
//! content is built once, and it is renamed into its place when it is whole, so there is never half of one.

mod artifact;
mod cancel;
mod error;
mod files;
mod go;
mod hash;
mod language;
mod nodejs;
mod output;
mod python;
mod request;
mod slots;
mod stall;
mod step;
mod tended;
mod tools;
mod workshop;
mod wrappers;

pub use artifact::Artifact;
pub use cancel::Cancel;
pub use error::Error;
pub use hash::{Hash, hash_folder};
pub use language::Language;
pub use request::{Request, source_file};
pub use slots::{Slots, Stage, Told};
pub use tended::{Tended, Tender};
pub use tools::{Tool, Version};
pub use workshop::{Options, Workshop};
