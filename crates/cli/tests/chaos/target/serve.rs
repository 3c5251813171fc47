//! The target's own process.

use super::Trouble;
use super::book::{Call, Verdict, now_micros};
use crate::random::Random;
use socket2::SockRef;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::{TcpListener, TcpStream};

#[test]
#[ignore = "the process of a target: the other tests start it"]
fn a_process_of_its_own() {
    let Ok(settings) = std::env::var("KLAMBDA_TARGET") else { return };
    let numbers: Vec<u64> = settings.split(' ').map(|text| text.parse().expect("a number")).collect();
    let [port, refused, hung, seed] = numbers[..] else { panic!("{settings}") };
    let record = std::env::var_os("KLAMBDA_TARGET_RECORD").expect("where to record");
    let record = File::options().create(true).append(true).open(record).expect("the record");
    let trouble = Trouble { refused, hung };
    let book = Book { record, open: HashMap::new(), trouble, random: Random::new(seed) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port as u16)).await.expect("the port");
        listen(listener, Arc::new(Mutex::new(book))).await;
    });
}

struct Book {
    record: File,
    open: HashMap<(String, String), Arc<TcpStream>>,
    trouble: Trouble,
    random: Random,
}

impl Book {
    fn begin(&mut self, mut call: Call, stream: &Arc<TcpStream>) -> Verdict {
        call.verdict = self.judge(stream);
        call.at = now_micros();
        if call.verdict != Verdict::Abandoned {
            let before = self.open.insert(call.lane(), stream.clone());
            call.overlaps = before.is_some_and(|before| !Arc::ptr_eq(&before, stream) && !is_closed(&before));
        }
        self.record.write_all(call.line().as_bytes()).expect("recorded");
        call.verdict
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

    /// Called before the answer, because the next call of the lane may arrive before this thread continues.
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
        at: 0,
        epoch: number("x-epoch").unwrap_or(0),
        subscription: request.path.unwrap_or_default().trim_start_matches('/').to_owned(),
        key: header("ce-partitionkey").unwrap_or_default(),
        id: header("ce-id").expect("an id"),
        lane_sequence: number("ce-lanesequence"),
        previous_id: header("ce-previousid"),
        order_status: header("ce-orderstatus"),
        verdict: Verdict::Abandoned,
        overlaps: false,
    };
    (bytes.len() >= length).then_some((call, length))
}
