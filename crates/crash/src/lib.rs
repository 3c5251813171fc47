//! Crash-only design: what a panic ends.
//!
//! A panic may leave state half changed, and it is unknown which state. So a panic ends the process with one line
//! that gives the cause, and the next start recovers from the log. No task or thread can die alone and leave others
//! waiting for it.
//!
//! Three places catch a panic instead ([`Place`]), because their input would crash the process again after every
//! restart: one HTTP request, the plan of one resource, one call to a target. Even there, a panic while a [`Lock`] is
//! held ends the process, because others share the state behind the lock.
//!
//! The program calls [`install`] once. Without it, as in tests, panics unwind as usual.

mod contain;
mod lock;
mod point;

pub use contain::{Panic, Place, contain, contain_future, contained};
pub use lock::{Guard, Lock};
pub use point::Point;

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::panic::PanicHookInfo;

/// The exit code after a panic: `EX_SOFTWARE` of sysexits.
pub const EXIT_PANIC: u8 = 70;
/// The exit code after the store failed: `EX_IOERR` of sysexits.
pub const EXIT_STORE: u8 = 74;

thread_local! {
    /// Number of nested [`contain`] calls on this thread.
    static CONTAINED: Cell<u32> = const { Cell::new(0) };
    /// Number of [`Guard`]s that this thread holds.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    /// The message of the last caught panic.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// After this call, an uncaught panic ends the process with [`EXIT_PANIC`].
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        let said = describe(info);
        if CONTAINED.get() > 0 && LOCKS.get() == 0 {
            SAID.with_borrow_mut(|last| *last = said);
            return;
        }
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let lock = if LOCKS.get() > 0 { ", holding a shared lock" } else { "" };
        let line = format!("error: internal error in thread {name}{lock}: {said}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        std::process::exit(i32::from(EXIT_PANIC));
    }));
}

/// One line with the message and the location.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("panicked").replace(['\r', '\n'], " ");
    match info.location() {
        Some(at) => format!("{message} ({}:{})", at.file(), at.line()),
        None => message,
    }
}
