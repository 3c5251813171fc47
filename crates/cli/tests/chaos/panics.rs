//! Plants a panic at a random step of each task. The process exits with one error line and exit code 70, and the next
//! start recovers; or one of the three places contains the panic and the server keeps running. No request may hang.

use crate::history::{End, Receiver, Verdicts};
use crate::producer::{Producer, Sent};
use crate::random::Random;
use crate::support::process::agent;
use crate::support::shell::share_cache;
use crate::support::{KLAMBDA, PATIENCE};
use crate::target::{Target, Trouble};
use crate::victim::Victim;
use klambda_crash::{EXIT_PANIC, Point};
use serde_json::json;
use std::io::Read as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

const CASES: usize = 50;
const WORKERS: usize = 2;
/// Enough at once that deliveries are handed to their own thread.
const BATCH: usize = 24;

/// Small segments and little memory: segments are prepared and checkpoints made all the time.
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 512Ki, eventBytes: 256Ki}
store: {segmentBytes: 2Mi, reserveBytes: 1Mi}
delivery: {breaker: {halfOpenAfter: 100ms}}
log: {level: warn}
";
const RECEIVERS: [Receiver; 1] = [Receiver { subscription: "lanes", kind: None, is_ordered: true }];

#[test]
fn a_panic_ends_the_process_or_is_contained() {
    let mut random = Random::from_environment();
    let began = Instant::now();
    let mut points: Vec<Point> = Point::ALL.iter().copied().cycle().take(CASES).collect();
    random.shuffle(&mut points);
    let cases: Vec<Case> = points
        .into_iter()
        .map(|point| Case { point, pass: pass(point, &mut random), seed: random.next() })
        .collect();
    let (next, total) = (AtomicUsize::new(0), Mutex::new(Total::default()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("{case:?}");
                    let seen = case.run();
                    total.lock().expect("no worker has failed").add(&seen);
                }
            });
        }
    });
    let Total { ended, contained, events } = total.into_inner().expect("no worker has failed");
    crate::summarize(&format!(
        "panics: {CASES} planted ({ended} ended the process, {contained} contained), {events} events: 0 hangs, 0 lost, 0 doubled, 0 disordered ({} s)",
        began.elapsed().as_secs()
    ));
    assert_eq!(ended + contained, CASES);
}

/// Which pass of a point panics: early for what happens seldom.
fn pass(point: Point, random: &mut Random) -> u64 {
    1 + random.below(match point {
        Point::Engine => 400,
        Point::Sync | Point::Call => 200,
        Point::FastRequest | Point::Request => 40,
        Point::EngineClosure | Point::HandOut => 10,
        Point::Listener | Point::Tail | Point::Backup => 4,
        Point::Prepare | Point::Reconcile | Point::Plan => 2,
        _ => 1,
    })
}

/// Where a panic is contained.
fn is_contained(point: Point) -> bool {
    use Point::{Backup, Call, FastRequest, Plan, Request, Tail};
    matches!(point, Request | FastRequest | Tail | Backup | Plan | Call)
}

#[derive(Debug)]
struct Case {
    point: Point,
    pass: u64,
    seed: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Ended,
    Contained,
}

#[derive(Default)]
struct Total {
    ended: usize,
    contained: usize,
    events: usize,
}

impl Total {
    fn add(&mut self, (seen, events): &(Seen, usize)) {
        match seen {
            Seen::Ended => self.ended += 1,
            Seen::Contained => self.contained += 1,
        }
        self.events += events;
    }
}

impl Case {
    fn run(&self) -> (Seen, usize) {
        let mut random = Random::new(self.seed);
        let target = Target::start(Trouble::default(), random.split());
        let mut victim = Victim::new(CONFIG, &mut random);
        victim.binary = KLAMBDA.into();
        share_cache(&victim.data.join("functions"));
        victim.environment = vec![("KLAMBDA_PANIC", format!("{} {}", self.point.name(), self.pass).into())];
        victim.begin();
        let answered = AtomicU64::new(0);
        let mut producer = Producer::new("p".into(), "event", &victim.url(), 40, random.split(), &answered);
        producer.payload_bytes = 2 << 10;
        let mut batches = Batches { producer, sent: Vec::new(), open: Vec::new() };
        let seen = match victim.wait_until_ready() {
            true => self.use_until_it_panics(&mut victim, &target, &mut batches),
            false => Seen::Ended,
        };
        let expected = if is_contained(self.point) { Seen::Contained } else { Seen::Ended };
        assert_eq!(seen, expected, "{self:?}: {}", victim.printed());
        if seen == Seen::Ended {
            self.assert_ended(&mut victim);
            victim.start();
        }
        (seen, finish(victim, &target, batches))
    }

    /// Uses everything that the server has until the panic has happened.
    fn use_until_it_panics(&self, victim: &mut Victim, target: &Target, batches: &mut Batches<'_>) -> Seen {
        let url = victim.url();
        let client = Client { url: &url, agent: agent() };
        let deadline = Instant::now() + PATIENCE;
        // The panic may hit the request that creates the subscription. An event sent before it exists has no receiver.
        let mut is_subscribed = false;
        for round in 0.. {
            if victim.has_ended() {
                return Seen::Ended;
            }
            if is_contained(self.point) && client.contained() > 0 {
                return Seen::Contained;
            }
            assert!(Instant::now() < deadline, "{self:?} is not reached: {}", victim.printed());
            is_subscribed |= client.subscribe(&target.url);
            if round % 4 == 0 {
                client.apply_function(&victim.data.with_file_name(format!("code-{round}")));
                client.back_up();
            }
            if is_subscribed {
                batches.send_one();
            }
            // The tail waits for its first event. Without an accepted event, it would rightly wait forever.
            if round % 4 == 0 && !batches.sent.is_empty() {
                client.tail();
            }
        }
        unreachable!("the loop returns")
    }

    fn assert_ended(&self, victim: &mut Victim) {
        let printed = victim.printed();
        let planted = format!("planted panic at {}, pass {}", self.point.name(), self.pass);
        let lines = printed.lines().filter(|line| line.contains(&planted)).count();
        assert_eq!(lines, 1, "{self:?}: {printed}");
        let status = victim.process.take().expect("it ran").wait();
        assert_eq!(status.code(), Some(i32::from(EXIT_PANIC)), "{self:?}: {printed}");
    }
}

/// Batches of events, each sent until it is answered.
struct Batches<'a> {
    producer: Producer<'a>,
    sent: Vec<Sent>,
    open: Vec<Sent>,
}

impl Batches<'_> {
    fn send_one(&mut self) {
        if self.open.is_empty() {
            self.open = (0..BATCH).map(|_| self.producer.event()).collect();
        }
        match self.producer.try_send(&mut self.open) {
            Ok(()) => self.sent.append(&mut self.open),
            Err(excuse) => assert!(!excuse.contains("timeout"), "a hang: {excuse}"),
        }
    }
}

/// Sends unanswered events again, then checks that every event was delivered.
fn finish(mut victim: Victim, target: &Target, mut batches: Batches<'_>) -> usize {
    let url = victim.url();
    assert!(Client { url: &url, agent: agent() }.subscribe(&target.url));
    batches.producer.send(&mut batches.open);
    batches.sent.append(&mut batches.open);
    victim.drain();
    victim.stop();
    victim.check();
    Verdicts::of(&batches.sent, &target.calls(), &RECEIVERS, End::Killed, &[]).assert_clean();
    batches.sent.len()
}

/// A client to whom the server may die at any moment, but that must never wait for nothing.
struct Client<'a> {
    url: &'a str,
    agent: ureq::Agent,
}

type Answer = Result<ureq::http::Response<ureq::Body>, ureq::Error>;

impl Client<'_> {
    /// The answer's text, if there was one.
    fn read(answer: Answer) -> Option<String> {
        let mut text = Vec::new();
        let read = match answer {
            Ok(mut answer) => {
                answer.body_mut().as_reader().read_to_end(&mut text).map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = read {
            assert!(!error.contains("timeout"), "a hang: {error}");
            return None;
        }
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    fn contained(&self) -> u64 {
        let metrics =
            Client::read(self.agent.get(format!("{}/metrics", self.url)).call()).unwrap_or_default();
        let counts = metrics.lines().filter(|line| line.starts_with("klambda_panics_total{"));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }

    /// Whether the server says that the subscription is there.
    fn subscribe(&self, target: &str) -> bool {
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "lanes"},
            "spec": {
                "ordering": "ordered",
                "filters": [{"exact": {"type": "event"}}],
                "retry": {"attempts": "unlimited", "backoff": "5ms", "maxBackoff": "50ms"},
                "target": {"url": format!("{target}/lanes"), "headers": {"x-epoch": {"env": "EPOCH"}}},
            },
        });
        let url = format!("{}/api/v1/subscriptions/lanes", self.url);
        let answer = self.agent.put(url).send_json(&document);
        let is_taken = answer.as_ref().is_ok_and(|answer| answer.status().is_success());
        Client::read(answer).is_some() && is_taken
    }

    /// Another version each time, so that there is something to plan, fetch, build, start and end.
    fn apply_function(&self, folder: &Path) {
        std::fs::create_dir(folder).expect("a new folder");
        let code = format!("exports.handler = async () => {:?};", folder);
        std::fs::write(folder.join("index.js"), code).expect("written");
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction", "metadata": {"name": "f"},
            "spec": {
                "source": {"type": "folder", "folder": {"path": folder}},
                "runtime": {"language": "nodejs", "handler": "index.handler"},
                "scaling": {"minReplicas": 1},
            },
        });
        let url = format!("{}/api/v1/lambda/functions/f?apply=true", self.url);
        Client::read(self.agent.put(url).send_json(&document));
    }

    fn tail(&self) {
        let tail = self.agent.get(format!("{}/api/v1/events?after=0&limit=1", self.url));
        Client::read(tail.header("accept", "text/event-stream").call());
    }

    fn back_up(&self) {
        Client::read(self.agent.post(format!("{}/api/v1/backup", self.url)).send_empty());
    }
}
