//! The simulation's own model of a subscription. It is enough to write the document and to tell for every event
//! whether it matches and to which lane it belongs, without asking the program under test.

use crate::event::{KINDS, ProducedEvent, SOURCES};
use crate::mix::{Mix, Trouble};
use crate::rng::Rng;
use klambda_core::subscription::Document;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Includes the namespace if it is not the default one.
    pub name: String,
    pub host: u64,
    /// Only events of this type.
    pub kind: Option<usize>,
    pub ordering: Ordering,
    pub strict: bool,
    pub gap: Gap,
    pub failure_skips: bool,
    pub retry: Retry,
    pub concurrency: u32,
    /// Maximum number of pending events, and what to do when it is reached.
    pub backlog: Option<(u64, OnFull)>,
    pub letters: Letters,
    /// How long an id stays known after the delivery of its event.
    pub window_ms: u64,
    pub earliest: bool,
    pub paused: bool,
    /// Leaves out events of the platform, which nobody made here. They tell of webhook endpoints.
    pub without_platform: bool,
}

/// What happens when the producer's sequence has a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub timeout_ms: u64,
    pub parks: bool,
    pub buffer_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Total number of attempts; `None` means unlimited.
    pub attempts: Option<u32>,
    pub backoff_ms: u64,
    pub max_backoff_ms: u64,
    pub timeout_ms: u64,
}

/// The limits of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letters {
    pub max: u64,
    pub ttl_ms: u64,
}

const DAY_MS: u64 = 86_400_000;

/// More than any run has.
const LETTERS_MAX: u64 = 50_000;

/// Longer than any run.
const LONG_MS: u64 = 3650 * 86_400_000;

/// What to do with an event when its subscription is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// Accept the event and read it later.
    Lag,
    /// Reject the event for all subscriptions.
    Reject,
    /// Drop the oldest event.
    Drop,
}

/// The ordering rules. A change of them starts a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    None,
    Ordered { by_subject: bool, sequenced: bool },
}

/// The place of an event in a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    Alone,
    Lane { key: String, sequence: Option<u64> },
    Invalid,
}

impl Ordering {
    pub fn is_ordered(self) -> bool {
        self != Ordering::None
    }

    pub fn is_sequenced(self) -> bool {
        matches!(self, Ordering::Ordered { sequenced: true, .. })
    }

    /// The key of an event; `None` if the subscription is unordered.
    pub fn key(self, event: &ProducedEvent) -> Option<String> {
        let Ordering::Ordered { by_subject, .. } = self else { return None };
        let subject = event.subject.map(|subject| format!("s{subject}"));
        if by_subject {
            return subject;
        }
        let key = event.key.map(|key| format!("k{key}"));
        Some(key.or(subject).unwrap_or_else(|| SOURCES[event.source].into()))
    }

    pub fn place(self, event: &ProducedEvent) -> Place {
        let Ordering::Ordered { sequenced, .. } = self else { return Place::Alone };
        match (self.key(event), sequenced, event.readable_sequence()) {
            (None, ..) | (_, true, None) => Place::Invalid,
            (Some(key), true, sequence) => Place::Lane { key, sequence },
            (Some(key), false, _) => Place::Lane { key, sequence: None },
        }
    }

    fn random(rng: &mut Rng) -> Ordering {
        match rng.below(10) {
            0 | 1 => Ordering::None,
            2..=5 => Ordering::Ordered { by_subject: false, sequenced: false },
            6 => Ordering::Ordered { by_subject: true, sequenced: false },
            _ => Ordering::Ordered { by_subject: false, sequenced: true },
        }
    }
}

impl Letters {
    fn random(mix: &Mix, rng: &mut Rng) -> Letters {
        let is_tight = |rng: &mut Rng| mix.has(Trouble::TightLimits) && rng.one_in(3);
        Letters {
            max: if is_tight(rng) { rng.between(1, 20) } else { LETTERS_MAX },
            ttl_ms: if is_tight(rng) { *rng.pick(&[500, 3000, 3_600_000]) } else { LONG_MS },
        }
    }
}

impl Rules {
    pub fn random(name: &str, mix: &Mix, rng: &mut Rng) -> Rules {
        let backoff_ms = *rng.pick(&[5, 20, 100]);
        Rules {
            name: name.into(),
            host: rng.below(mix.hosts),
            kind: rng.one_in(3).then(|| rng.below(KINDS.len() as u64) as usize),
            ordering: Ordering::random(rng),
            strict: rng.one_in(3),
            gap: Gap {
                timeout_ms: *rng.pick(&[30, 200, 2000]),
                parks: rng.one_in(3) && !mix.has_many_gaps(),
                buffer_max: *rng.pick(&[3, 10, 1000]),
            },
            failure_skips: rng.one_in(2),
            retry: Retry {
                attempts: *rng.pick(&[None, Some(1), Some(2), Some(3), Some(5)]),
                backoff_ms,
                max_backoff_ms: backoff_ms * rng.between(1, 8),
                timeout_ms: *rng.pick(&[50, 300]),
            },
            concurrency: *rng.pick(&[1, 3, 256]),
            backlog: Rules::random_backlog(mix, rng),
            letters: Letters::random(mix, rng),
            window_ms: if mix.has(Trouble::ShortWindows) { *rng.pick(&[200, 2000, DAY_MS]) } else { DAY_MS },
            earliest: rng.one_in(4),
            paused: false,
            without_platform: mix.has(Trouble::Endpoints),
        }
        .without_holes()
    }

    /// With a filter on types, almost every sequence is a gap, so none of them may require manual action.
    fn without_holes(mut self) -> Rules {
        self.gap.parks &= self.kind.is_none();
        self
    }

    fn random_backlog(mix: &Mix, rng: &mut Rng) -> Option<(u64, OnFull)> {
        if !mix.has(Trouble::TightLimits) || rng.one_in(3) {
            return None;
        }
        let on_full = *rng.pick(&[OnFull::Lag, OnFull::Lag, OnFull::Reject, OnFull::Drop]);
        Some((*rng.pick(&[5, 40, 300]), on_full))
    }

    /// Changed rules for the same subscription, sometimes with another ordering.
    pub fn changed(&self, mix: &Mix, rng: &mut Rng) -> Rules {
        let fresh = Rules::random(&self.name, mix, rng);
        match rng.below(4) {
            0 => return Rules { ordering: fresh.ordering, ..self.clone() }.without_holes(),
            1 => {
                return Rules { earliest: self.earliest, paused: self.paused, ..fresh }.without_holes();
            }
            _ => {}
        }
        Rules { ordering: self.ordering, earliest: self.earliest, paused: self.paused, ..fresh }
            .without_holes()
    }

    /// These rules with the ordering rules of `other`.
    pub fn ordered_as(&self, other: &Rules) -> Rules {
        Rules {
            ordering: other.ordering,
            strict: other.strict,
            gap: other.gap,
            failure_skips: other.failure_skips,
            ..self.clone()
        }
    }

    /// True if its limits drop events or dead letters.
    pub fn drops(&self) -> bool {
        self.backlog.is_some_and(|(_, on_full)| on_full == OnFull::Drop)
            || self.letters.max < LETTERS_MAX
            || self.letters.ttl_ms < LONG_MS
    }

    /// True if it lags at its limits and reads the log.
    pub fn lags(&self) -> bool {
        self.backlog.is_some_and(|(_, on_full)| on_full == OnFull::Lag)
    }

    pub fn rejects(&self) -> bool {
        self.backlog.is_some_and(|(_, on_full)| on_full == OnFull::Reject)
    }

    pub fn letters_expire(&self) -> bool {
        self.letters.ttl_ms < LONG_MS
    }

    /// True if it is in the second namespace.
    pub fn is_elsewhere(&self) -> bool {
        self.name.contains('/')
    }

    pub fn matches(&self, event: &ProducedEvent) -> bool {
        self.is_elsewhere() == event.elsewhere && self.kind.is_none_or(|kind| kind == event.kind)
    }

    pub fn document(&self) -> Document {
        Document::parse(&self.json()).expect("the simulation writes valid documents")
    }

    pub fn json(&self) -> Value {
        let mut spec = json!({
            "target": {"url": format!("http://10.0.0.{}/", self.host + 1)},
            "retry": {
                "backoff": format!("{}ms", self.retry.backoff_ms), "maxBackoff": format!("{}ms", self.retry.max_backoff_ms),
                "timeout": format!("{}ms", self.retry.timeout_ms),
                "attempts": self.retry.attempts.map_or(json!("unlimited"), |n| json!(n)),
            },
            "concurrency": self.concurrency,
            "deadLetters": {"maxEvents": self.letters.max, "ttl": format!("{}ms", self.letters.ttl_ms)},
            "idempotency": {"ttl": format!("{}ms", self.window_ms)},
            "paused": self.paused,
        });
        if let Some(kind) = self.kind {
            spec["filters"] = json!([{"exact": {"type": KINDS[kind]}}]);
        } else if self.without_platform {
            spec["filters"] = json!([{"not": {"prefix": {"type": "lambda."}}}]);
        }
        if let Some((events, on_full)) = self.backlog {
            spec["backlog"] = json!({"maxEvents": events});
            match on_full {
                // This is the default.
                OnFull::Lag => {}
                OnFull::Reject => spec["backlog"]["onFull"] = json!("reject"),
                OnFull::Drop => spec["backlog"]["onFull"] = json!("drop"),
            }
        }
        if self.earliest {
            spec["from"] = json!("earliest");
        }
        if let Ordering::Ordered { by_subject, sequenced } = self.ordering {
            spec["ordering"] = json!("ordered");
            spec["orderingPolicy"] = self.policy(by_subject, sequenced);
        }
        let (namespace, name) = self.name.split_once('/').unwrap_or(("default", &self.name));
        json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
            "metadata": {"namespace": namespace, "name": name}, "spec": spec,
        })
    }

    fn policy(&self, by_subject: bool, sequenced: bool) -> Value {
        let action = if self.gap.parks { "park" } else { "skip" };
        let mut policy = json!({
            "strict": self.strict,
            "gap": {"timeout": format!("{}ms", self.gap.timeout_ms), "action": action},
            "buffer": {"maxEvents": self.gap.buffer_max},
            "onFailure": if self.failure_skips { "skip" } else { "park" },
        });
        if by_subject {
            policy["key"] = json!({"attribute": "subject"});
        }
        if sequenced {
            policy["sequence"] = json!({"attribute": "sequence"});
        }
        policy
    }

    /// The host of a target.
    pub fn host_of(document: &Document) -> Option<u64> {
        let url = &document.spec.target.url()?.url;
        let host = url.strip_prefix("http://10.0.0.")?.strip_suffix('/')?;
        host.parse::<u64>().ok()?.checked_sub(1)
    }

    /// Reads the ordering rules back from a document.
    pub fn ordering_of(document: &Document) -> Ordering {
        use klambda_core::key::Source;
        use klambda_core::subscription::Ordering as Theirs;
        let policy = &document.spec.policy;
        match document.spec.ordering {
            Theirs::Unordered => Ordering::None,
            Theirs::Ordered => Ordering::Ordered {
                by_subject: policy.key != Source::Default,
                sequenced: policy.sequence.is_some(),
            },
        }
    }
}
