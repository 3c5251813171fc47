//! Crash-only: what a panic ends.
//!
//! A panic may leave state half changed, and nobody can tell which. So it ends the process, with one line that names the
//! cause, and the next start recovers from the log. No task and no thread can die alone and leave the others waiting.
//!
//! Three places contain a panic instead ([`Place`]), because their input would bring the process down again after every
//! restart: one HTTP request, the plan of one resource, one call of a target. Even there a panic under a [`Lock`]
//! ends the process: the state behind the lock belongs to others too.
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
    /// How many [`contain`]s are around what runs on this thread.
    static CONTAINED: Cell<u32> = const { Cell::new(0) };
    /// How many [`Guard`]s this thread holds.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    /// What the last contained panic said.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// From here on a panic that nothing contains ends the process with [`EXIT_PANIC`].
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

/// One line: what happened and where.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("panicked").replace(['\r', '\n'], " ");
    match info.location() {
        Some(at) => format!("{message} ({}:{})", at.file(), at.line()),
        None => message,
    }
}
