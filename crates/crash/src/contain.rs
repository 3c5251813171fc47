//! The places that catch a panic.

use crate::{CONTAINED, SAID};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

/// A place that catches a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One HTTP request: the response is 500.
    Request,
    /// The plan of one resource: the resource fails.
    Plan,
    /// One call to a target: a failed attempt.
    Call,
}

impl Place {
    pub const ALL: [Place; 3] = [Place::Request, Place::Plan, Place::Call];

    pub fn name(self) -> &'static str {
        match self {
            Place::Request => "request",
            Place::Plan => "plan",
            Place::Call => "call",
        }
    }
}

/// The message and location of a caught panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panic(String);

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "internal error: {}", self.0)
    }
}

impl std::error::Error for Panic {}

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Number of panics that this place has caught since the process started.
pub fn contained(place: Place) -> u64 {
    COUNTS[place as usize].load(Relaxed)
}

/// Runs `work` and turns a panic into an error. `work` must not change shared state.
pub fn contain<T>(place: Place, work: impl FnOnce() -> T) -> Result<T, Panic> {
    CONTAINED.set(CONTAINED.get() + 1);
    let done = catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(CONTAINED.get() - 1);
    done.map_err(|payload| {
        COUNTS[place as usize].fetch_add(1, Relaxed);
        let said = SAID.take();
        if !said.is_empty() {
            return Panic(said);
        }
        // Without the hook, only the message is available.
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Panic(message.unwrap_or("panicked").to_owned())
    })
}

/// Like `contain`, for a future. Do not poll the future again after an error.
pub fn contain_future<F: Future>(
    place: Place,
    mut future: Pin<&mut F>,
) -> impl Future<Output = Result<F::Output, Panic>> {
    poll_fn(move |cx| match contain(place, || future.as_mut().poll(cx)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn a_panic_becomes_an_error_that_says_what_happened() {
        let before = contained(Place::Plan);
        let said = contain(Place::Plan, || panic!("number {}", 7)).map(|()| "not reached");
        assert_eq!(said, Err(Panic("number 7".into())));
        assert_eq!(contain(Place::Plan, || 7), Ok(7));
        assert_eq!(contained(Place::Plan), before + 1);
        assert_eq!(CONTAINED.get(), 0);
    }

    #[test]
    fn a_future_that_panics_at_its_second_poll_ends_in_an_error() {
        let mut polls = 0;
        let future = pin!(poll_fn(|_| {
            polls += 1;
            assert!(polls < 2, "the second poll panics");
            Poll::<()>::Pending
        }));
        let mut contained = pin!(contain_future(Place::Call, future));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(contained.as_mut().poll(&mut cx).is_pending());
        assert_eq!(
            contained.as_mut().poll(&mut cx),
            Poll::Ready(Err(Panic("the second poll panics".into())))
        );
    }
}
