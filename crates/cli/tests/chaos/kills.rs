//! The server is killed with -9 again and again while it takes events in and delivers them: at random moments, inside
//! recovery, twice in a row.

use crate::history::{End, Receiver, Verdicts};
use crate::is_long;
use crate::producer::{Producer, Sent};
use crate::random::Random;
use crate::support::PATIENCE;
use crate::target::{Target, Trouble};
use crate::victim::Victim;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KILLS: u64 = 100;
/// As many of them must meet a server that has not recovered yet.
const KILLS_IN_RECOVERY: u64 = 12;
const PRODUCERS: u64 = 4;
const KEYS: u64 = 6;
/// Of each producer; there are as many for each of the three kinds.
const EVENTS: u64 = 8400;
/// Calls of a subscription open at once.
const CONCURRENCY: u64 = 200;
const KINDS: [&str; 3] = ["by-arrival", "by-sequence", "unordered"];
/// The last takes all events, so that most belong to two subscriptions. The second is paused until the killing is over:
/// its pending events make recoveries long.
const RECEIVERS: [Receiver; 4] = [
    Receiver { subscription: "by-arrival", kind: Some("by-arrival"), is_ordered: true },
    Receiver { subscription: "held", kind: Some("by-arrival"), is_ordered: true },
    Receiver { subscription: "by-sequence", kind: Some("by-sequence"), is_ordered: true },
    Receiver { subscription: "unordered", kind: None, is_ordered: false },
];

/// Small files, so that segments and checkpoints come and go under way. A breaker that opens is soon tried again.
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 1Mi}
store: {segmentBytes: 3Mi, reserveBytes: 1Mi}
delivery: {breaker: {halfOpenAfter: 100ms}}
log: {level: warn}
";

#[test]
fn nothing_is_lost_or_reordered_by_kills() {
    let mut random = Random::from_environment();
    for _ in 0..if is_long() { 10 } else { 1 } {
        run(&mut random);
    }
}

fn run(random: &mut Random) {
    let began = Instant::now();
    let target = Target::start(Trouble { refused: 15, hung: 1 }, random.split());
    let mut victim = Victim::new(CONFIG, random);
    victim.start();
    subscribe(&victim, &target.url);
    let answered = AtomicU64::new(0);
    let mut kills = Kills::default();
    let sent: Vec<Sent> = std::thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS * KINDS.len() as u64)
            .map(|n| {
                let kind = KINDS[n as usize % KINDS.len()];
                let window = if kind == "by-sequence" { 40 } else { 0 };
                let name = format!("{kind}-{n}");
                let producer = Producer::new(name, kind, &victim.url(), KEYS, random.split(), &answered);
                scope.spawn(move || producer.run(EVENTS, window))
            })
            .collect();
        let progress = || answered.load(Ordering::Relaxed) + target.acknowledged() as u64;
        kills.inflict(&mut victim, random, progress);
        producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    });
    victim.post("subscriptions/held/resume");
    victim.drain();
    assert!(victim.files("rows-") > 0 && victim.files("log-") > 1, "no checkpoints or no segments were met");
    victim.stop();
    victim.check();
    let verdicts = Verdicts::of(&sent, &target.calls(), &RECEIVERS, End::Killed, &[]);
    let Kills { kills, in_recovery, in_a_row } = kills;
    crate::summarize(&format!(
        "kills: {kills} kills ({in_recovery} inside recovery, {in_a_row} right after another), {verdicts} ({} s)",
        began.elapsed().as_secs()
    ));
    verdicts.assert_clean();
    let lanes = PRODUCERS * KEYS * 3;
    assert!(verdicts.repeats as u64 <= kills * (lanes + CONCURRENCY), "more repeats than were in flight");
    assert_eq!(sent.len() as u64, EVENTS * PRODUCERS * KINDS.len() as u64);
    assert!(kills >= KILLS && in_recovery >= KILLS_IN_RECOVERY && in_a_row > 0);
}

fn subscribe(victim: &Victim, target: &str) {
    for Receiver { subscription, kind, .. } in RECEIVERS {
        let mut spec = json!({
            "concurrency": CONCURRENCY,
            "paused": subscription == "held",
            "retry": {"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "50ms", "timeout": "3s"},
        });
        if let Some(kind) = kind {
            spec["filters"] = json!([{"exact": {"type": kind}}]);
            spec["ordering"] = "ordered".into();
        }
        if subscription == "by-sequence" {
            // Gaps never time out: missing events are still on their way.
            spec["orderingPolicy"] =
                json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h", "action": "park"}});
        }
        victim.put(subscription, spec, target);
    }
}

#[derive(Default)]
struct Kills {
    kills: u64,
    in_recovery: u64,
    in_a_row: u64,
}

impl Kills {
    /// At even parts of the way, at a random moment within each. Now and then again while it starts, and after some of
    /// those once more.
    fn inflict(&mut self, victim: &mut Victim, random: &mut Random, progress: impl Fn() -> u64) {
        let events = EVENTS * PRODUCERS * KINDS.len() as u64;
        let total = events + events + EVENTS * PRODUCERS * 2;
        let mut recovery_takes = Duration::from_millis(30);
        for part in 1.. {
            if self.kills >= KILLS {
                return;
            }
            let goal = (total * part - random.below(total)) / (KILLS * 3 / 4);
            wait_for(goal.min(total * 9 / 10), &progress);
            victim.kill();
            self.kills += 1;
            if random.below(4) == 0 {
                self.inflict_in_recovery(victim, random, recovery_takes);
                victim.check();
            }
            victim.begin();
            victim.wait_until_it_recovers();
            let began = Instant::now();
            assert!(victim.wait_until_ready(), "{}", victim.printed());
            recovery_takes = began.elapsed();
        }
    }

    /// Once, or twice in a row.
    fn inflict_in_recovery(&mut self, victim: &mut Victim, random: &mut Random, takes: Duration) {
        for _ in 0..1 + random.below(2) {
            victim.begin();
            victim.wait_until_it_recovers();
            std::thread::sleep(takes * random.below(1000) as u32 / 1000);
            let is_inside = !victim.has_recovered();
            victim.kill();
            self.kills += 1;
            self.in_a_row += 1;
            self.in_recovery += u64::from(is_inside && !victim.has_recovered());
        }
    }
}

/// Looks often: the moment counts.
fn wait_for(goal: u64, progress: impl Fn() -> u64) {
    let deadline = Instant::now() + PATIENCE;
    while progress() < goal {
        assert!(Instant::now() < deadline, "{} of {goal}", progress());
        std::thread::sleep(Duration::from_micros(500));
    }
}
