//! The result of a build.

use crate::Hash;
use std::ffi::OsString;
use std::path::PathBuf;

/// An immutable folder and the command that starts its content. The starter adds the socket, the name, the limits and the
/// environment of the function.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub hash: Hash,
    pub dir: PathBuf,
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}
