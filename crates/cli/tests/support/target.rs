//! A target in the test's own process that records every call, and is not always well.
//!
//! It knows exactly which calls are open: a call whose caller has closed its connection, or died, is not, and the
//! kernel says so at once, however late this process looks.

use super::random::Random;
use socket2::SockRef;
use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// One call, as it came in.
#[derive(Clone, Debug)]
pub struct Call {
    /// Of the process that made it, which says so in `x-epoch`.
    pub epoch: u64,
    /// The path of the target's URL, without its slash.
    pub subscription: String,
    pub key: String,
    pub id: String,
    pub lane_sequence: Option<u64>,
    pub previous_id: Option<String>,
    pub order_status: Option<String>,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Acknowledged,
    /// Answered 503.
    Refused,
    /// Never answered.
    Hung,
    /// Its caller was gone before it could be answered.
    Abandoned,
}

/// How often, in a thousand calls, something goes wrong.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub refused: u64,
    pub hung: u64,
}

pub struct Target {
    pub url: String,
    book: Arc<Mutex<Book>>,
    _runtime: Runtime,
}

struct Book {
    calls: Vec<Call>,
    acknowledged: HashSet<(String, String)>,
    open: HashMap<(String, String), Arc<TcpStream>>,
    overlaps: Vec<Call>,
    trouble: Trouble,
    random: Random,
}

impl Target {
    pub fn start(trouble: Trouble, random: Random) -> Target {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let book = Arc::new(Mutex::new(Book {
            calls: Vec::new(),
            acknowledged: HashSet::new(),
            open: HashMap::new(),
            overlaps: Vec::new(),
            trouble,
            random,
        }));
        runtime.spawn(listen(listener, book.clone()));
        Target { url, book, _runtime: runtime }
    }

    /// Subscriptions and ids that were acknowledged, each counted once.
    pub fn acknowledged(&self) -> usize {
        lock(&self.book).acknowledged.len()
    }

    /// All calls in the order of their epochs and, within one, of their arrival. What a dead process had sent may be
    /// read after the first calls of the next.
    pub fn calls(&self) -> Vec<Call> {
        let mut calls = lock(&self.book).calls.clone();
        calls.sort_by_key(|call| call.epoch);
        calls
    }

    /// Calls that came in while another of their lane was open.
    pub fn overlaps(&self) -> Vec<Call> {
        lock(&self.book).overlaps.clone()
    }
}

impl Call {
    /// A call without a place in a lane is in order with no other.
    fn lane(&self) -> (String, String) {
        let name = if self.lane_sequence.is_some() { &self.key } else { &self.id };
        (self.subscription.clone(), name.clone())
    }
}

impl Book {
    fn begin(&mut self, mut call: Call, stream: &Arc<TcpStream>) -> Verdict {
        call.verdict = self.judge(stream);
        if call.verdict != Verdict::Abandoned {
            let before = self.open.insert(call.lane(), stream.clone());
            if before.is_some_and(|before| !Arc::ptr_eq(&before, stream) && !is_closed(&before)) {
                self.overlaps.push(call.clone());
            }
        }
        if call.verdict == Verdict::Acknowledged {
            self.acknowledged.insert((call.subscription.clone(), call.id.clone()));
        }
        let verdict = call.verdict;
        self.calls.push(call);
        verdict
    }

    fn judge(&mut self, stream: &TcpStream) -> Verdict {
        let Trouble { refused, hung } = self.trouble;
        match self.random.below(1000) {
            _ if is_closed(stream) => Verdict::Abandoned,
            n if n < hung => Verdict::Hung,
            n if n < hung + refused => Verdict::Refused,
            _ => Verdict::Acknowledged,
        }
    }

    /// Before it is answered: the next call of the lane may come in before this thread goes on.
    fn end(&mut self, lane: &(String, String), stream: &Arc<TcpStream>) {
        if self.open.get(lane).is_some_and(|open| Arc::ptr_eq(open, stream)) {
            self.open.remove(lane);
        }
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().expect("no one panics with the book in hand")
}

/// The other side has closed it, whether or not this side has noticed.
fn is_closed(stream: &TcpStream) -> bool {
    match SockRef::from(stream).peek(&mut [MaybeUninit::uninit()]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

async fn listen(listener: TcpListener, book: Arc<Mutex<Book>>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).expect("a socket option");
            // A caller that dies is an ordinary end of a connection.
            tokio::spawn(converse(Arc::new(stream), book.clone()));
        }
    }
}

async fn converse(stream: Arc<TcpStream>, book: Arc<Mutex<Book>>) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let (call, length) = loop {
            if let Some(parsed) = parse(&bytes) {
                break parsed;
            }
            read(&stream, &mut bytes).await?;
        };
        bytes.drain(..length);
        let lane = call.lane();
        let verdict = lock(&book).begin(call, &stream);
        if verdict == Verdict::Hung {
            // Until the caller gives up.
            loop {
                read(&stream, &mut bytes).await?;
            }
        }
        lock(&book).end(&lane, &stream);
        let status = if verdict == Verdict::Refused { "503 Service Unavailable" } else { "200 OK" };
        write(&stream, format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
    }
}

async fn read(stream: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<()> {
    loop {
        stream.readable().await?;
        match stream.try_read_buf(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other.map(drop),
        }
    }
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}

/// A whole request, and its length.
fn parse(bytes: &[u8]) -> Option<(Call, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head) = request.parse(bytes).expect("HTTP") else { return None };
    let header = |name: &str| {
        let mut all = request.headers.iter();
        let found = all.find(|header| header.name.eq_ignore_ascii_case(name))?;
        Some(String::from_utf8(found.value.to_vec()).expect("text"))
    };
    let number = |name: &str| header(name).map(|text| text.parse::<u64>().expect("a number"));
    let length = head + number("content-length").unwrap_or(0) as usize;
    let call = Call {
        epoch: number("x-epoch").unwrap_or(0),
        subscription: request.path.unwrap_or_default().trim_start_matches('/').to_owned(),
        key: header("ce-partitionkey").unwrap_or_default(),
        id: header("ce-id").expect("an id"),
        lane_sequence: number("ce-lanesequence"),
        previous_id: header("ce-previousid"),
        order_status: header("ce-orderstatus"),
        verdict: Verdict::Abandoned,
    };
    (bytes.len() >= length).then_some((call, length))
}
