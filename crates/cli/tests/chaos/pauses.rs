//! Server and target are stopped for a while, in the middle of whatever they do, and the target is killed.

use crate::history::{Disturbance, End, Receiver, Verdicts};
use crate::is_long;
use crate::producer::{Producer, Sent};
use crate::random::Random;
use crate::support::PATIENCE;
use crate::target::{Target, Trouble, now_micros};
use crate::victim::Victim;
use rustix::process::Signal;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PRODUCERS: u64 = 4;
/// Of each kind of disturbance.
const TIMES: u64 = 4;
const TIMEOUT_MS: u64 = 600;
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 1Mi}
store: {segmentBytes: 3Mi, reserveBytes: 1Mi}
delivery: {breaker: {halfOpenAfter: 100ms}}
log: {level: warn}
";
const RECEIVERS: [Receiver; 2] = [
    Receiver { subscription: "lanes", kind: None, is_ordered: true },
    Receiver { subscription: "singles", kind: None, is_ordered: false },
];

#[test]
fn nothing_is_lost_or_reordered_by_pauses_and_dying_targets() {
    let mut random = Random::from_environment();
    let began = Instant::now();
    let mut target = Target::start(Trouble { refused: 10, hung: 0 }, random.split());
    let mut victim = Victim::new(CONFIG, &mut random);
    victim.start();
    let retry = json!({"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "50ms", "timeout": format!("{TIMEOUT_MS}ms")});
    victim.put("lanes", json!({"ordering": "ordered", "retry": retry}), &target.url);
    victim.put("singles", json!({"retry": retry}), &target.url);

    let answered = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let mut disturbances = Vec::new();
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|n| {
                let producer =
                    Producer::new(format!("p{n}"), "event", &victim.url(), 8, random.split(), &answered);
                scope.spawn(|| produce(producer, &is_over))
            })
            .collect();
        for _ in 0..if is_long() { 10 * TIMES } else { TIMES } {
            for how in [How::StopServer, How::StopTarget, How::KillTarget] {
                for millis in [1 + random.below(TIMEOUT_MS / 2), TIMEOUT_MS + 200 + random.below(TIMEOUT_MS)]
                {
                    await_calls(&target, 200 + random.below(200) as usize);
                    disturbances.push(how.inflict(&victim, &mut target, millis));
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    victim.drain();
    victim.stop();
    victim.check();
    let verdicts = Verdicts::of(&sent, &target.calls(), &RECEIVERS, End::Killed, &disturbances);
    crate::summarize(&format!(
        "pauses: {} pauses of server and target, {} kills of the target, {verdicts} ({} s)",
        disturbances.len() as u64 - target.lives,
        target.lives,
        began.elapsed().as_secs()
    ));
    verdicts.assert_clean();
}

/// A little at a time, until the trouble is over.
fn produce(mut producer: Producer<'_>, is_over: &AtomicBool) -> Vec<Sent> {
    let mut sent = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let mut batch: Vec<Sent> = (0..1 + producer.random.below(20)).map(|_| producer.event()).collect();
        producer.send(&mut batch);
        sent.extend(batch);
        // Not more than is delivered meanwhile.
        std::thread::sleep(Duration::from_millis(5));
    }
    sent
}

/// Everything flows: this number of calls came in since now.
fn await_calls(target: &Target, calls: usize) {
    let (goal, deadline) = (target.calls_so_far() + calls, Instant::now() + PATIENCE);
    while target.calls_so_far() < goal {
        assert!(Instant::now() < deadline, "nothing is delivered any more");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Clone, Copy)]
enum How {
    StopServer,
    StopTarget,
    KillTarget,
}

impl How {
    /// For so long.
    fn inflict(self, victim: &Victim, target: &mut Target, millis: u64) -> Disturbance {
        let from = now_micros();
        let server = victim.process.as_ref().expect("it runs");
        match self {
            How::StopServer => server.signal(Signal::STOP),
            How::StopTarget => target.signal(Signal::STOP),
            How::KillTarget => target.kill(),
        }
        std::thread::sleep(Duration::from_millis(millis));
        match self {
            How::StopServer => server.signal(Signal::CONT),
            How::StopTarget => target.signal(Signal::CONT),
            How::KillTarget => target.restart(),
        }
        // Calls that were open time out within their timeout.
        Disturbance { from, to: now_micros() + TIMEOUT_MS * 1000 }
    }
}
