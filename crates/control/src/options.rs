//! Limits of the control plane, and where it is reached.

use klambda_functions::plan;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Functions and agents together.
    pub functions_max: usize,
    pub limits: plan::Limits,
    /// How long a call may wait in a replica that is coming up.
    pub start_timeout: Duration,
    /// Functions that are counted by name; the others are counted together.
    pub named_max: usize,
    /// Where this server is reached, for the addresses in statuses.
    pub url: String,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            functions_max: 10_000,
            limits: plan::Limits::default(),
            start_timeout: Duration::from_secs(60),
            named_max: 100,
            url: String::new(),
        }
    }
}
