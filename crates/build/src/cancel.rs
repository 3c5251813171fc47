//! Cancels builds from other tasks.

use std::sync::Arc;
use tokio::sync::watch;

/// Cancels the builds that received a clone of it. Dropping the future of a build cancels it too.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Default for Cancel {
    fn default() -> Cancel {
        Cancel(Arc::new(watch::Sender::new(false)))
    }
}

impl Cancel {
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    pub async fn cancelled(&self) {
        let mut receiver = self.0.subscribe();
        // The sender lives as long as this borrow of it.
        let _ = receiver.wait_for(|cancelled| *cancelled).await;
    }
}
