//! `run`: builds the function of a folder and calls it once, without a server.

use super::project::Project;
use super::{refuse_server, share_cache};
use crate::args::{Global, Run};
use crate::commands::compose::{content_of, random_id, read};
use crate::exit::Usage;
use crate::function;
use crate::output::{one_line, print_answer};
use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use klambda_core::address::{ReplicaAddress, path_of};
use klambda_functions::failure::Failure;
use klambda_functions::resource::Resource;
use klambda_local::platform::{Once, Options};
use serde_json::value::RawValue;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};

/// This program, as the parent process of functions.
const HELPER: [&str; 2] = ["/proc/self/exe", crate::CHILD];
const ANSWER_BYTES_MAX: usize = 64 << 20;

type Call = Request<Full<Bytes>>;

pub fn run(out: &mut dyn Write, global: &Global, args: &Run) -> anyhow::Result<()> {
    refuse_server("run", global)?;
    let call = call(args)?;
    let resource = Project::open(&args.folder)?.resource()?;
    let folder = tempfile::Builder::new().prefix("klambda-run-").tempdir()?;
    share_cache(folder.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let answer =
        runtime.block_on(interruptible(start_and_call(folder.path(), &resource, call, global.timeout)));
    // Does not wait for a thread that still copies files.
    runtime.shutdown_background();
    print_answer(out, global.output, &answer?)
}

fn call(args: &Run) -> anyhow::Result<Call> {
    if let Some(file) = &args.event {
        let event = read(file)?;
        serde_json::from_slice::<&RawValue>(&event).map_err(|error| Usage::file(file, &error))?;
        let request = Request::post("/").header("content-type", "application/cloudevents+json");
        return Ok(request.header("host", "function").body(event.into())?);
    }
    let (data, content_type) = data(args)?;
    let request = Request::post("/").header("host", "function").header("content-type", content_type);
    let request = request.header("ce-specversion", "1.0").header("ce-source", "/klambda");
    let request = request.header("ce-type", &args.event_type).header("ce-id", random_id()?);
    request.body(data.into()).map_err(|_| Usage("--type must be printable ASCII text".to_owned()).into())
}

fn data(args: &Run) -> anyhow::Result<(Vec<u8>, String)> {
    match (&args.data, &args.data_file) {
        (Some(data), _) => {
            serde_json::from_str::<&RawValue>(data)
                .map_err(|error| Usage(format!("--data is not JSON: {error}")))?;
            Ok((data.clone().into(), "application/json".to_owned()))
        }
        (None, Some(file)) if file == Path::new("-") => content_of("-", None),
        (None, Some(file)) => content_of(&format!("@{}", file.display()), None),
        (None, None) => Ok((Vec::new(), "application/json".to_owned())),
    }
}

/// Ctrl-C and SIGTERM end it in order: processes stopped, folder removed.
async fn interruptible<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        done = work => done,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
    }
}

async fn start_and_call(
    folder: &Path,
    resource: &Resource,
    call: Call,
    timeout: Duration,
) -> anyhow::Result<Bytes> {
    let options = Options::new(folder.to_owned(), HELPER.map(Into::into).to_vec());
    let once = Box::pin(Once::start(options, resource)).await.map_err(|failure| not_started(&failure))?;
    let logs = once.logs().map(|mut logs| {
        tokio::spawn(async move {
            while let Some(line) = logs.next().await {
                eprintln!("{}", one_line(&line.text));
            }
        })
    });
    let answer = tokio::time::timeout(timeout, send(&once, call)).await;
    once.stop().await;
    if let Some(logs) = logs {
        logs.await?;
    }
    let (status, body) =
        answer.map_err(|_| anyhow!("no answer after {timeout:?}; use --timeout to wait longer"))??;
    match status.is_success() {
        true => Ok(body),
        false => bail!("{}", refusal(status, &body)),
    }
}

/// The build log is for people who read on; the error is one line.
fn not_started(failure: &Failure) -> anyhow::Error {
    failure.last_lines().iter().for_each(|line| eprintln!("{}", one_line(line)));
    anyhow!("{} ({})", one_line(&failure.message()), failure.reason.name())
}

async fn send(once: &Once, call: Call) -> anyhow::Result<(StatusCode, Bytes)> {
    let lease = once.lease().await?;
    let Some(ReplicaAddress::Local(name)) = lease.address() else { bail!("the function has no address") };
    let ended = "the function's process ended before it answered; its log says why";
    let stream = UnixStream::connect(path_of(name)).await.context(ended)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.context(ended)?;
    tokio::spawn(connection);
    let response = sender.send_request(call).await.map_err(|_| anyhow!(ended))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    Ok((status, body.map_err(|error| anyhow!("the answer could not be read: {error}"))?.to_bytes()))
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    let text = format!("HTTP {}: {}", status.as_u16(), String::from_utf8_lossy(body));
    one_line(&function::error(text.trim_end_matches(": ")))
}
