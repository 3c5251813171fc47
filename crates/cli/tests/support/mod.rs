//! Shared code for tests of the real binary.
//!
//! Each test file is a crate of its own and uses a part of this.
#![allow(dead_code)]

pub mod generated;
pub mod likeness;
pub mod markdown;
pub mod process;
pub mod repository;
pub mod session;
pub mod shell;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const KLAMBDA: &str = env!("CARGO_BIN_EXE_klambda");

/// How long anything that should happen may take, on a busy machine: a first build of Go takes a minute or two.
pub const PATIENCE: Duration = Duration::from_secs(180);

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

pub fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A free port, chosen by the kernel, so that parallel tests use different ones.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// Tries until it succeeds. After the time limit, the test fails with the last error.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(excuse) => assert!(Instant::now() < deadline, "{what}: {excuse}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
