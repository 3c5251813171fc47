//! `event receive`: a test receiver. It prints deliveries and answers with a status that the user chooses.

mod body;

use crate::args::Receive;
use crate::exit::Usage;
use crate::output::{Format, one_line};
use anyhow::Context as _;
use body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

/// How long open requests may take when the receiver stops.
const GOODBYE: Duration = Duration::from_secs(5);

pub fn run(out: &mut dyn Write, format: Format, args: &Receive) -> anyhow::Result<()> {
    if matches!(format, Format::Yaml | Format::Extract(_)) {
        return Err(Usage("event receive prints -o table, json or name".to_owned()).into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(out, format, args))
}

async fn serve(out: &mut dyn Write, format: Format, args: &Receive) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(&args.listen).await.with_context(|| format!("listening on {}", args.listen))?;
    let (lines, mut seen) = mpsc::unbounded_channel();
    let receiver = Rc::new(Receiver::new(args, lines));
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (stop, stopped) = watch::channel(());
    let mut open = JoinSet::new();
    eprintln!("Receiving events at http://{}/", listener.local_addr()?);
    write_header(out, format)?;
    let mut printed = 0;
    while args.count.is_none_or(|count| printed < count) {
        tokio::select! {
            Some(delivery) = seen.recv() => {
                write_line(out, format, &delivery)?;
                printed += 1;
            }
            accepted = listener.accept() => {
                open.spawn_local(converse(accepted?.0, Rc::clone(&receiver), stopped.clone()));
            }
            Some(_) = open.join_next() => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    drop(stop);
    // Callers must get the last answers.
    let _ = tokio::time::timeout(GOODBYE, async { while open.join_next().await.is_some() {} }).await;
    Ok(())
}

async fn converse(stream: TcpStream, receiver: Rc<Receiver>, mut stopped: watch::Receiver<()>) {
    let service = service_fn(|request| {
        let receiver = Rc::clone(&receiver);
        async move { Ok::<_, Infallible>(receiver.answer(request).await) }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A caller that disconnects is no error of the receiver.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

struct Receiver {
    answers: RefCell<Answers>,
    delay: Duration,
    shows_body: bool,
    /// How many more events are received.
    left: Cell<Option<u64>>,
    seen: mpsc::UnboundedSender<Delivery>,
}

impl Receiver {
    fn new(args: &Receive, seen: mpsc::UnboundedSender<Delivery>) -> Receiver {
        let answers = Answers::new(args.status, args.fail_key.clone(), args.status_file.clone());
        Receiver {
            answers: RefCell::new(answers),
            delay: args.delay,
            shows_body: !args.no_body,
            left: Cell::new(args.count),
            seen,
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Empty<Bytes>> {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return closing(StatusCode::METHOD_NOT_ALLOWED);
        }
        let Some(body) = body.collect().await.ok().filter(|_| self.left.get() != Some(0)) else {
            return closing(StatusCode::SERVICE_UNAVAILABLE);
        };
        let body = if self.shows_body { Body::new(&body.to_bytes()) } else { Body::Hidden };
        self.left.set(self.left.get().map(|left| left - 1));
        let delivery = Delivery::new(&head.headers, body, |key| self.answers.borrow_mut().to(key));
        let status = delivery.status;
        // The channel is closed only when the receiver stops.
        let _ = self.seen.send(delivery);
        tokio::time::sleep(self.delay).await;
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        response
    }
}

fn closing(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The status for each key. The status of a key comes before the status for all.
struct Answers {
    all: StatusCode,
    fail_keys: Vec<String>,
    file: Option<PathBuf>,
    of_keys: HashMap<String, StatusCode>,
}

impl Answers {
    fn new(all: StatusCode, fail_keys: Vec<String>, file: Option<PathBuf>) -> Answers {
        Answers { all, fail_keys, file, of_keys: HashMap::new() }
    }

    fn to(&mut self, key: &str) -> StatusCode {
        self.look();
        if self.fail_keys.iter().any(|fail| fail == key) {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        self.of_keys.get(key).copied().unwrap_or(self.all)
    }

    /// Reads the file again. A missing, empty or invalid file changes nothing: someone may be writing it.
    fn look(&mut self) {
        let Some(text) = self.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok()) else {
            return;
        };
        let lines: Option<Vec<_>> =
            text.lines().filter(|line| !line.trim().is_empty()).map(parse_line).collect();
        let Some(lines) = lines.filter(|lines| !lines.is_empty()) else { return };
        self.of_keys.clear();
        for (status, key) in lines {
            match key {
                Some(key) => drop(self.of_keys.insert(key, status)),
                None => self.all = status,
            }
        }
    }
}

/// `500`, or `500 order-42` for one key.
fn parse_line(line: &str) -> Option<(StatusCode, Option<String>)> {
    let (status, key) = match line.trim().split_once(' ') {
        Some((status, key)) => (status, Some(key.trim().to_owned())),
        None => (line.trim(), None),
    };
    Some((parse_status(status).ok()?, key))
}

pub fn parse_status(text: &str) -> Result<StatusCode, String> {
    let code = text.parse().ok().filter(|code| (200..=599).contains(code));
    code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or_else(|| "expected 200 to 599".to_owned())
}

/// One delivery and its answer.
#[derive(Debug, PartialEq, Eq)]
struct Delivery {
    lane_sequence: Option<String>,
    previous_id: Option<String>,
    key: Option<String>,
    kind: Option<String>,
    source: Option<String>,
    id: Option<String>,
    order_status: Option<String>,
    /// The context of the call, and that of the event's producer.
    traces: [Option<String>; 2],
    status: StatusCode,
    body: Body,
}

impl Delivery {
    fn new(headers: &HeaderMap, body: Body, answer: impl FnOnce(&str) -> StatusCode) -> Delivery {
        let attribute = |name: &str| {
            let value = headers.get(format!("ce-{name}"))?.to_str().ok()?;
            Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
        };
        let key = attribute("partitionkey").or_else(|| attribute("subject"));
        Delivery {
            lane_sequence: attribute("lanesequence"),
            previous_id: attribute("previousid"),
            kind: attribute("type"),
            source: attribute("source"),
            id: attribute("id"),
            order_status: attribute("orderstatus"),
            traces: [
                headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned),
                attribute("traceparent"),
            ],
            status: answer(key.as_deref().unwrap_or_default()),
            key,
            body,
        }
    }

    fn cells(&self, is_whole: bool) -> [String; 7] {
        let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), one_line);
        let status = self.status.as_u16().to_string();
        let [number, key, kind] = [&self.lane_sequence, &self.key, &self.kind].map(text);
        [number, key, kind, text(&self.id), text(&self.order_status), status, self.body.shown(is_whole)]
    }

    fn json(&self) -> serde_json::Value {
        let number = self.lane_sequence.as_ref().and_then(|number| number.parse::<u64>().ok());
        let mut line = json!({
            "laneSequence": number, "previousId": self.previous_id, "key": self.key, "type": self.kind,
            "source": self.source, "id": self.id, "orderStatus": self.order_status,
            "status": self.status.as_u16(),
        });
        for (name, trace) in ["traceparent", "producerTraceparent"].into_iter().zip(&self.traces) {
            if let Some(trace) = trace {
                line[name] = trace.as_str().into();
            }
        }
        if let Some((name, value)) = self.body.member() {
            line[name] = value;
        }
        line
    }
}

/// Column widths are fixed, because each line is printed before the next event is known. Long values shift the rest.
fn write_header(out: &mut dyn Write, format: Format) -> anyhow::Result<()> {
    if matches!(format, Format::Table | Format::Wide) {
        let header = ["LANESEQUENCE", "KEY", "TYPE", "ID", "ORDERSTATUS", "ANSWER", "BODY"];
        write_cells(out, &header.map(str::to_owned))?;
    }
    out.flush()?;
    Ok(())
}

fn write_line(out: &mut dyn Write, format: Format, delivery: &Delivery) -> anyhow::Result<()> {
    match format {
        Format::Json | Format::Yaml | Format::Extract(_) => writeln!(out, "{}", delivery.json())?,
        Format::Name => writeln!(out, "event/{}", delivery.cells(false)[3])?,
        Format::Table | Format::Wide => write_cells(out, &delivery.cells(format == Format::Wide))?,
    }
    out.flush()?;
    Ok(())
}

fn write_cells(
    out: &mut dyn Write,
    [number, key, kind, id, order, status, body]: &[String; 7],
) -> anyhow::Result<()> {
    let line = format!("{number:<12}  {key:<16}  {kind:<20}  {id:<36}  {order:<11}  {status:<6}  {body}");
    writeln!(out, "{}", line.trim_end())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_decides_and_a_key_has_its_own_answer() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let write = |text: &str| std::fs::write(file.path(), text).expect("written");
        let mut answers = Answers::new(StatusCode::OK, vec!["sick".to_owned()], Some(file.path().to_owned()));
        let mut to = |key: &str| answers.to(key).as_u16();
        assert_eq!((to("a"), to("sick")), (200, 500));
        write("503\n");
        assert_eq!((to("a"), to("b")), (503, 503));
        write("");
        assert_eq!(to("a"), 503, "an empty file is about to be written");
        write("200\n500 order 42\n");
        assert_eq!((to("a"), to("order 42"), to("sick")), (200, 500, 500));
        write("soon\n");
        assert_eq!(to("order 42"), 500);
        write("200\n");
        assert_eq!(to("order 42"), 200);
    }

    #[test]
    fn a_delivery_shows_its_place_and_its_key() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("ce-id", "e1"),
            ("ce-type", "order.paid"),
            ("ce-source", "/shop"),
            ("ce-subject", "%C3%BC"),
            ("ce-lanesequence", "7"),
            ("ce-orderstatus", "late"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let delivery = Delivery::new(&headers, Body::new(b"{}"), |key| match key {
            "ü" => StatusCode::ACCEPTED,
            _ => StatusCode::OK,
        });
        assert_eq!(delivery.cells(false), ["7", "ü", "order.paid", "e1", "late", "202", "{}"]);
        let json = delivery.json();
        assert_eq!((&json["laneSequence"], &json["body"]), (&json!(7), &json!("{}")));
        let bare = Delivery::new(&HeaderMap::new(), Body::Hidden, |_| StatusCode::OK);
        assert_eq!(bare.cells(false)[0], "-");
        assert!(bare.json().get("body").is_none());
    }
}
