//! Decides which traces are recorded.

use super::{Context, TraceId};

/// A share of all traces, chosen by their ids. So every service that uses the same share chooses the same traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// The service that began the trace decides. The share is for traces that begin here.
    is_parent_based: bool,
    /// Ids below this are chosen.
    bound: u64,
}

/// Ids have 63 bits for this purpose, as in the SDKs of OpenTelemetry.
const ALL: u64 = 1 << 63;

impl Sampler {
    /// `ratio`: from 0 to 1.
    pub fn new(is_parent_based: bool, ratio: f64) -> Sampler {
        Sampler { is_parent_based, bound: (ratio.clamp(0.0, 1.0) * ALL as f64) as u64 }
    }

    /// `parent` is the context that the trace comes from, if it began elsewhere.
    pub fn samples(&self, parent: Option<&Context>, trace: TraceId) -> bool {
        match parent {
            Some(parent) if self.is_parent_based => parent.is_sampled,
            _ => self.has(trace),
        }
    }

    fn has(&self, trace: TraceId) -> bool {
        let TraceId([.., a, b, c, d, e, f, g, h]) = trace;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Derivation, SpanId};

    fn trace(number: u64) -> TraceId {
        Derivation::new(0).number(number).trace_id()
    }

    #[test]
    fn the_share_is_kept() {
        let sampler = Sampler::new(true, 0.1);
        let chosen = (0..100_000).filter(|number| sampler.samples(None, trace(*number))).count();
        assert!((9_500..10_500).contains(&chosen), "{chosen}");
        let (all, none) = (Sampler::new(true, 1.0), Sampler::new(true, 0.0));
        for id in [TraceId([0xff; 16]), trace(1)] {
            assert!(all.samples(None, id) && !none.samples(None, id));
        }
    }

    #[test]
    fn the_parent_decides_if_the_sampler_follows_it() {
        let context = |is_sampled| Context { trace: trace(1), span: SpanId([1; 8]), is_sampled };
        for is_sampled in [true, false] {
            let parent = context(is_sampled);
            assert_eq!(Sampler::new(true, 0.0).samples(Some(&parent), trace(1)), is_sampled);
            assert_eq!(Sampler::new(true, 1.0).samples(Some(&parent), trace(1)), is_sampled);
            assert!(Sampler::new(false, 1.0).samples(Some(&parent), trace(1)));
        }
    }
}
