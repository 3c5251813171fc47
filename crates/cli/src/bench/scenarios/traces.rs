//! What recording a tenth of all traces costs: the same load with and without, in turn, and a collector that takes
//! everything at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::bail;
use serde::Serialize;

use super::throughput;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, latency};
use crate::bench::rig::{Rig, Subject};
use crate::bench::round::{self, Round};
use crate::bench::stats::{interval, median};
use crate::bench::{Args, interrupt};

/// Fewer say too little about a difference of a few percent.
const ROUNDS_MIN: u32 = 20;
const SAMPLE_RATE: f64 = 0.1;

/// One round of a pair.
type Side = fn(&Pair) -> &Round;

#[derive(Serialize)]
struct Pair {
    off: Round,
    on: Round,
}

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    if args.config.is_some() {
        bail!("this scenario has a configuration of its own: leave out --config");
    }
    let rounds = args.rounds().max(ROUNDS_MIN);
    let collector = collect()?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(
        file.path(),
        format!("traces: {{endpoint: 'http://{collector}', sampleRate: {SAMPLE_RATE}}}\n"),
    )?;
    let traced = Rig::new(&args.folder, Some(file.path().to_owned()))?;
    traced.progress.finish_and_clear();
    let plan = throughput::plan(args);
    let mut pairs = Vec::new();
    for number in 1..=rounds {
        interrupt::check()?;
        rig.note(format!("traces: round {number} of {rounds}"));
        // Each goes first as often as the other.
        let turn = |rig: &Rig| round::run(rig, Subject::Klambda, &plan);
        let (off, on) = match number % 2 {
            0 => {
                let on = turn(&traced)?;
                (turn(rig)?, on)
            }
            _ => (turn(rig)?, turn(&traced)?),
        };
        pairs.push(Pair { off, on });
    }
    report(args, rounds, &pairs)
}

fn report(args: &Args, rounds: u32, pairs: &[Pair]) -> anyhow::Result<Report> {
    let ratios: Vec<f64> =
        pairs.iter().map(|pair| pair.on.cpu_us_per_event / pair.off.cpu_us_per_event).collect();
    let ratio = interval(&ratios);
    let detail = format!("95%: {:.3} to {:.3}, median {:.3}", ratio.low, ratio.high, ratio.median);
    let mut table = Table::new(&["medians", "events/s", "CPU µs/event", "accept p50", "p99"]);
    let sides: [(&str, Side); 2] = [("off", |pair| &pair.off), ("sampling 0.1", |pair| &pair.on)];
    let mut faults = Faults::default();
    for (name, side) in sides {
        let of = |value: fn(&Round) -> f64| median(pairs.iter().map(|pair| value(side(pair))));
        table.row([
            name.to_owned(),
            figure(of(|round| round.delivered_per_s)),
            figure(of(|round| round.cpu_us_per_event)),
            latency(of(|round| round.accept.p50_us)),
            latency(of(|round| round.accept.p99_us)),
        ]);
        pairs.iter().for_each(|pair| faults.add(side(pair).faults));
    }
    Ok(Report {
        scenario: "traces",
        about: format!(
            "{} keys, an instant target, {} producers, {rounds} pairs of rounds of {} s each",
            args.keys, args.connections, args.seconds
        ),
        table,
        goals: vec![Goal::new(
            "CPU per event, sampling 0.1 ÷ off",
            ratio.median,
            Bound::AtMost(1.03),
            detail,
        )],
        faults,
        rounds: serde_json::to_value(pairs)?,
    })
}

/// Starts a collector in this process, whose CPU time is not counted.
fn collect() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(&stream));
        }
    });
    Ok(address)
}

/// Takes requests and throws them away. Ends with the connection.
fn answer(stream: &TcpStream) -> std::io::Result<()> {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        std::io::copy(&mut (&mut reader).take(length), &mut std::io::sink())?;
        writer.write_all(OK)?;
    }
}
