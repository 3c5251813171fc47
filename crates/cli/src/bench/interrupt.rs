//! Ctrl-C and SIGTERM end the bench, the demo and `dev` in order: children killed, folders removed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::signal::unix::{SignalKind, signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}

pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

pub fn check() -> anyhow::Result<()> {
    if happened() {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, unless interrupted.
pub fn sleep(duration: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + duration;
    loop {
        check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
}
