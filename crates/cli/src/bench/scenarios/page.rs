//! The cost of open pages for the events.
//!
//! One server, one subscription, one load that never stops. Its CPU per event is measured in turns with and without ten open
//! overviews. Turns go with, without, without, with, so that drift cancels out.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::throughput;
use crate::bench::report::{Bound, Goal, Report, Table, figure};
use crate::bench::rig::{Rig, Server, Sink, faults};
use crate::bench::stats::{interval, median};
use crate::bench::{Args, interrupt, usage};

const PAGES: usize = 10;
const SETTLE: Duration = Duration::from_millis(500);

struct Pair {
    with_us: f64,
    without_us: f64,
    /// Bytes that the pages read.
    read: u64,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let plan = throughput::plan(args);
    let mut sink = rig.sink(&plan.sink())?;
    let (server, klambda) = rig.klambda()?;
    klambda.subscribe(sink.address, plan.concurrency)?;
    let mut load = rig.load(&plan.load(&server))?;
    load.go()?;
    interrupt::sleep(plan.warm_up)?;
    let mut pairs = Vec::new();
    for number in 0..args.pairs {
        rig.note(format!("page: pair {} of {}", number + 1, args.pairs));
        // CPU is counted in ticks of 10 ms, so a turn must have many.
        pairs.push(measure_pair(&server, &mut sink, number, args.turn() * 2)?);
    }
    let accepted = load.stop()?.accepted;
    let totals = sink.drain(accepted)?;
    server.clear()?;

    let costs: Vec<f64> = pairs.iter().map(|pair| (pair.with_us / pair.without_us - 1.0) * 100.0).collect();
    let cost = interval(&costs);
    let mut table = Table::new(&["medians", "CPU µs/event", "KiB read in all"]);
    let read: u64 = pairs.iter().map(|pair| pair.read).sum();
    table.row([
        format!("{PAGES} pages"),
        figure(median(pairs.iter().map(|pair| pair.with_us))),
        figure(read as f64 / 1024.0),
    ]);
    table.row(["none".into(), figure(median(pairs.iter().map(|pair| pair.without_us))), "0".into()]);
    let detail = format!("95% interval {} to {}", figure(cost.low), figure(cost.high));
    Ok(Report {
        scenario: "page",
        about: format!("{PAGES} open overviews, {} pairs of turns on one server", args.pairs),
        table,
        goals: vec![Goal::new("more CPU per event, median %", cost.median, Bound::AtMost(1.0), detail)],
        faults: faults(accepted, &totals),
        rounds: pairs.iter().map(|pair| json!({"with": pair.with_us, "without": pair.without_us})).collect(),
    })
}

fn measure_pair(server: &Server, sink: &mut Sink, number: u32, turn: Duration) -> anyhow::Result<Pair> {
    if number.is_multiple_of(2) {
        let (with_us, read) = measure_with_pages(server, sink, turn)?;
        Ok(Pair { with_us, read, without_us: measure(server, sink, turn)? })
    } else {
        let without_us = measure(server, sink, turn)?;
        let (with_us, read) = measure_with_pages(server, sink, turn)?;
        Ok(Pair { with_us, read, without_us })
    }
}

fn measure_with_pages(server: &Server, sink: &mut Sink, turn: Duration) -> anyhow::Result<(f64, u64)> {
    let pages = (0..PAGES).map(|_| Page::open(server.address)).collect::<anyhow::Result<Vec<Page>>>()?;
    let cpu_us = measure(server, sink, turn)?;
    let read: Vec<u64> = pages.into_iter().map(Page::close).collect();
    ensure!(read.iter().all(|bytes| *bytes > 0), "a page got no overview");
    Ok((cpu_us, read.iter().sum()))
}

/// CPU of the server per delivered event, in microseconds.
fn measure(server: &Server, sink: &mut Sink, turn: Duration) -> anyhow::Result<f64> {
    interrupt::sleep(SETTLE)?;
    let pid = server.child.pid();
    let (before, cpu_before) = (sink.mark()?, usage::cpu_us(pid)?);
    interrupt::sleep(turn)?;
    let (after, cpu_after) = (sink.mark()?, usage::cpu_us(pid)?);
    let delivered = after.totals.delivered - before.totals.delivered;
    ensure!(delivered > 0, "no event was delivered in a turn");
    Ok((cpu_after - cpu_before) as f64 / delivered as f64)
}

/// A client that follows the overview, as the page does.
struct Page {
    stream: TcpStream,
    reader: JoinHandle<u64>,
}

impl Page {
    fn open(address: SocketAddr) -> anyhow::Result<Page> {
        let mut stream = TcpStream::connect(address).context("connecting a page")?;
        let head = format!(
            "GET /api/v1/overview HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\nklambda-page: 1\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        ensure!(&status == b"HTTP/1.1 200", "the overview is refused");
        let reading = stream.try_clone()?;
        Ok(Page { stream, reader: thread::spawn(move || count(reading)) })
    }

    /// The number of bytes that it read.
    fn close(self) -> u64 {
        // An error means that the server closed it first.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.reader.join().unwrap_or(0)
    }
}

fn count(mut stream: TcpStream) -> u64 {
    let (mut total, mut buffer) = (0, [0; 16 << 10]);
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        total += read as u64;
    }
    total
}
