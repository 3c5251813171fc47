//! Limits of the control plane and the URL of the server.

use klambda_dispatch::traces::Tracer;
use klambda_functions::plan;
use klambda_outbound as outbound;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Limit on functions and agents together.
    pub functions_max: usize,
    pub limits: plan::Limits,
    /// How long a call may wait for a starting replica.
    pub start_timeout: Duration,
    /// Number of functions with metrics of their own. All other functions share one total.
    pub named_max: usize,
    /// Base URL of this server, used for URLs in statuses.
    pub url: String,
    /// Limits the addresses that documents may name, and that functions at a URL may have.
    pub outbound: outbound::Guard,
    /// Records the work on functions, if the server exports traces.
    pub tracer: Option<Tracer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            functions_max: 10_000,
            limits: plan::Limits::default(),
            start_timeout: Duration::from_secs(60),
            named_max: 100,
            url: String::new(),
            outbound: outbound::Guard::off(),
            tracer: None,
        }
    }
}
