//! What a build gives.

use crate::Hash;
use std::ffi::OsString;
use std::path::PathBuf;

/// A folder that is never changed, and how to start what is in it. The starter adds the socket, the name, the limits
/// and the function's own environment.
#[derive(Clone, Debug)]
pub struct Artifact {
    pub hash: Hash,
    pub dir: PathBuf,
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}
