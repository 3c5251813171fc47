//! The queue between those who record spans and the thread that sends them.

use crate::export::Stats;
use klambda_core::trace::Span;
use klambda_crash::Lock;
use klambda_dispatch::traces::SpanSink;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Wakes the thread once for each batch, not once for each span.
pub struct Queue {
    spans: Lock<Vec<Span>>,
    /// At this length, spans are dropped.
    limit: usize,
    /// At this length, the thread is woken.
    batch: usize,
    filled: Notify,
    stats: Arc<Stats>,
}

impl Queue {
    pub fn new(limit: usize, batch: usize, stats: Arc<Stats>) -> Queue {
        Queue { spans: Lock::default(), limit, batch: batch.clamp(1, limit), filled: Notify::new(), stats }
    }

    /// Waits for a batch, or for the delay, and takes everything.
    pub async fn take(&self, delay: Duration) -> Vec<Span> {
        let _ = tokio::time::timeout(delay, self.filled.notified()).await;
        self.take_now()
    }

    pub fn take_now(&self) -> Vec<Span> {
        std::mem::take(&mut *self.spans.lock())
    }

    /// Lets [`Queue::take`] return at once.
    pub fn wake(&self) {
        self.filled.notify_one();
    }
}

impl SpanSink for Queue {
    fn record(&self, span: Span) {
        let mut spans = self.spans.lock();
        if spans.len() >= self.limit {
            drop(spans);
            return self.stats.dropped_full(1);
        }
        spans.push(span);
        let is_batch = spans.len() == self.batch;
        drop(spans);
        if is_batch {
            self.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::tests::span;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let stats = Arc::new(Stats::default());
        let queue = Queue::new(3, 2, stats.clone());
        (0..5).for_each(|_| queue.record(span()));
        assert_eq!((queue.take_now().len(), stats.read().dropped_full), (3, 2));
        queue.record(span());
        assert_eq!((queue.take_now().len(), stats.read().dropped_full), (1, 2));
    }
}
