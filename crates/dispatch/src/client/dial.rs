//! Opens connections: resolves names, tries addresses, and classifies failures.

use klambda_core::address::path_of;
use klambda_core::os_error::{in_words, without_codes};
use klambda_core::outcome::CallOutcome;
use klambda_outbound::{Error, Reach};
use std::io;
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};

/// How long a subscription waits if its target is forbidden. The name of the target may get another address.
const FORBIDDEN_RETRY_MS: u64 = 30_000;

/// Tries the host's addresses in turn, each with a share of the time, so that an address that drops packets does not
/// block the others.
pub async fn dial(reach: &Reach, host: &str, port: u16, within: Duration) -> Result<TcpStream, CallOutcome> {
    let unreachable =
        |why: &dyn std::fmt::Display| CallOutcome::Refused(format!("{host}:{port}: {}", lower_case(why)));
    let no_time = || unreachable(&format_args!("no connection within {} ms", within.as_millis()));
    let found = timeout(within, reach.resolve(host, port)).await.map_err(|_| no_time())?;
    let addresses = found.map_err(|error| match error {
        Error::Forbidden(why) => {
            CallOutcome::NotReady { why: why.to_string(), retry_after_ms: FORBIDDEN_RETRY_MS }
        }
        Error::Lookup(error) => unreachable(&error),
    })?;
    let share = within / u32::try_from(addresses.len()).unwrap_or(1).max(1);
    let mut last = unreachable(&"the host name has no address");
    for address in addresses {
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return ready(stream).map_err(|error| unreachable(&error)),
            Ok(Err(error)) if is_ours(&error) => return Err(CallOutcome::Unusable(in_words(&error))),
            Ok(Err(error)) => last = unreachable(&error),
            Err(_) => last = no_time(),
        }
    }
    Err(last)
}

/// The operating system begins its messages with a capital letter.
fn lower_case(why: &dyn std::fmt::Display) -> String {
    let mut text = without_codes(&why.to_string());
    if let Some(first) = text.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// Connects to a local socket. Retries while the socket's backlog is full.
pub async fn dial_local(name: &str, within: Duration) -> Result<UnixStream, CallOutcome> {
    const AGAIN: Duration = Duration::from_millis(5);
    let until = Instant::now() + within;
    loop {
        match UnixStream::connect(path_of(name)).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(AGAIN).await;
            }
            Err(error) if is_ours(&error) => return Err(CallOutcome::Unusable(in_words(&error))),
            Err(error) => return Err(CallOutcome::Refused(format!("@{name}: {}", in_words(&error)))),
        }
    }
}

fn ready(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// True if this process is out of file descriptors. That says nothing about the target.
fn is_ours(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}
