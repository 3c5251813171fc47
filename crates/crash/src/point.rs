//! Planted panics: one point in each task where a test build can be made to panic.
//!
//! `KLAMBDA_PANIC="sync 3"` panics the third time that the sync thread passes its point. Without the feature
//! `planted`, a point does nothing.

/// Declares the points and their names from one list.
macro_rules! points {
    ($($point:ident $name:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Point { $($point,)* }

        impl Point {
            pub const ALL: &[Point] = &[$(Point::$point,)*];

            pub fn name(self) -> &'static str {
                match self { $(Point::$point => $name,)* }
            }
        }
    };
}

points! {
    Engine "engine"
    EngineClosure "engine-closure"
    Sync "sync"
    Prepare "prepare"
    Chore "chore"
    HandOut "hand-out"
    Call "call"
    Listener "listener"
    Request "request"
    FastRequest "fast-request"
    Tail "tail"
    Backup "backup"
    Reconcile "reconcile"
    Plan "plan"
    Act "act"
    Fetch "fetch"
    Build "build"
    Fleet "fleet"
    Spawn "spawn"
    Logs "logs"
    SharedLock "shared-lock"
}

impl Point {
    #[cfg(not(feature = "planted"))]
    #[inline(always)]
    pub fn pass(self) {}

    /// Panics if the environment selects this pass.
    #[cfg(feature = "planted")]
    pub fn pass(self) {
        use std::sync::LazyLock;
        use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
        static CHOSEN: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
            let chosen = std::env::var("KLAMBDA_PANIC").ok()?;
            let (name, pass) = chosen.split_once(' ')?;
            Some((name.to_owned(), pass.parse().ok()?))
        });
        static PASSES: AtomicU64 = AtomicU64::new(0);
        if let Some((name, pass)) = &*CHOSEN
            && name == self.name()
        {
            let now = PASSES.fetch_add(1, Relaxed) + 1;
            assert!(now != *pass, "planted panic at {name}, pass {pass}");
        }
    }
}
