//! Builds an artifact from a source folder: installs dependencies, checks the syntax, and compiles if the language needs it.
//! An artifact is a folder named after the hash of all its inputs, so the same content is built once. It is renamed into
//! place when it is complete, so partial artifacts are never visible.

mod artifact;
mod builder;
mod cancel;
mod error;
mod files;
mod go;
mod hash;
mod image_context;
mod language;
mod nodejs;
mod output;
mod python;
mod request;
mod slots;
mod stall;
mod step;
mod tools;
mod tracked;
mod wrappers;

pub use artifact::Artifact;
pub use builder::{Builder, Options};
pub use cancel::Cancel;
pub use error::Error;
pub use hash::{Hash, hash_folder};
pub use image_context::{BaseImages, write as write_image_context};
pub use language::Language;
pub use output::Printed;
pub use request::{Request, source_file};
pub use slots::{OnStage, Slots, Stage};
pub use tools::{Tool, Version};
pub use tracked::{ProcessTracker, TrackedProcess};
