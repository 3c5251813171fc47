//! The shutdown signal for all tasks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::sync::Notify;

/// Clones share one state: all of them see a call of [`Shutdown::request`].
#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stage: AtomicU8,
    changed: Notify,
}

const DRAINING: u8 = 1;
const CUT: u8 = 2;

impl Shutdown {
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// Nothing new starts; open requests may finish.
    pub fn request(&self) {
        self.advance(DRAINING);
    }

    /// The deadline has passed: abort everything that is still open.
    pub fn cut(&self) {
        self.advance(CUT);
    }

    pub fn is_requested(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) >= DRAINING
    }

    pub fn is_cut(&self) -> bool {
        self.0.stage.load(Ordering::Acquire) >= CUT
    }

    /// Returns once shutdown was requested. Endless streams (Server-Sent Events) must wait for this too.
    pub async fn requested(&self) {
        self.reached(DRAINING).await;
    }

    /// Returns once open work must be aborted.
    pub async fn cut_off(&self) {
        self.reached(CUT).await;
    }

    /// Returns at the next change of stage. Registered when it is first polled.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + '_ {
        self.0.changed.notified()
    }

    async fn reached(&self, stage: u8) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.stage.load(Ordering::Acquire) >= stage {
                return;
            }
            changed.await;
        }
    }

    fn advance(&self, stage: u8) {
        self.0.stage.fetch_max(stage, Ordering::AcqRel);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn is_heard_by_those_who_wait_and_by_those_who_come_later() {
        let shutdown = Shutdown::new();
        let waiting = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.requested().await }
        });
        shutdown.request();
        waiting.await.unwrap();
        shutdown.requested().await;
        assert!(shutdown.is_requested() && !shutdown.is_cut());
        shutdown.cut();
        shutdown.request();
        assert!(shutdown.is_cut(), "a later request does not undo an abort");
    }
}
