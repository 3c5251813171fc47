//! Webhook endpoints in the simulation: their receivers, the people who operate them, and the readers of their feeds.
//!
//! They have random numbers of their own, so that a seed gives the same run without them as before they existed. They
//! are created before the troubles begin and are never deleted.

mod calls;
mod people;
mod reading;

pub use calls::EndpointCall;
pub use reading::Asked;

use crate::event::{KINDS, OTHER};
use crate::history::EndpointNo;
use crate::mix::{Mix, Trouble};
use crate::outside::endpoints::Endpoint;
use crate::rng::Rng;
use crate::world::World;
use klambda_core::subscription::Document;
use klambda_core::webhook;
use klambda_dispatch::{Engine, Ticket, Token};
use serde_json::json;
use std::collections::BTreeMap;

pub struct Endpoints {
    rng: Rng,
    settings: Vec<Settings>,
    /// By end time.
    calls: BTreeMap<(u64, u64), EndpointCall>,
    next: u64,
    /// Outcomes that the engine holds for lack of space.
    stalled: Vec<(EndpointNo, Ticket, String)>,
    /// Pages that are shown when they are durable, by the token of the request.
    reading: BTreeMap<u64, Asked>,
}

/// What an operator chose for an endpoint, and how its receiver behaves.
#[derive(Clone, Debug)]
struct Settings {
    elsewhere: bool,
    /// Without the namespace.
    name: String,
    kind: Option<usize>,
    batch_max: Option<u32>,
    concurrency: u32,
    schedule_ms: Vec<u64>,
    disable_after_ms: u64,
    /// The receiver answers with 410 in about one of this many calls; never if zero.
    gone_every: u64,
    /// A call fails in about one of this many cases.
    fails_every: u64,
}

impl Settings {
    fn random(n: u64, mix: &Mix, rng: &mut Rng) -> Settings {
        let elsewhere = mix.has(Trouble::Namespaces) && n % 2 == 1;
        let attempts = *rng.pick(&[1, 2, 4]);
        Settings {
            elsewhere,
            name: format!("hook{n}"),
            kind: (!rng.one_in(3)).then(|| rng.below(KINDS.len() as u64) as usize),
            batch_max: Settings::random_batch(rng),
            concurrency: *rng.pick(&[1, 4, 256]),
            schedule_ms: (0..attempts).map(|n| n * *rng.pick(&[5, 40])).collect(),
            disable_after_ms: *rng.pick(&[1000, 1000, 31_536_000_000]),
            gone_every: *rng.pick(&[0, 150, 600]),
            fails_every: *rng.pick(&[3, 10, 40]),
        }
    }

    fn random_batch(rng: &mut Rng) -> Option<u32> {
        *rng.pick(&[None, Some(1), Some(3), Some(20)])
    }

    fn document(&self) -> Document {
        let schedule: Vec<String> = self.schedule_ms.iter().map(|ms| format!("{ms}ms")).collect();
        let mut document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint",
            "metadata": {"namespace": if self.elsewhere { OTHER } else { "default" }, "name": self.name},
            "spec": {
                "url": "http://10.0.0.99/hooks", "concurrency": self.concurrency,
                "retry": {"schedule": schedule, "timeout": "300ms"},
                "disableAfter": format!("{}ms", self.disable_after_ms),
            },
        });
        if let Some(kind) = self.kind {
            document["spec"]["types"] = json!([KINDS[kind]]);
        }
        if let Some(events) = self.batch_max {
            document["spec"]["batch"] = json!({"maxEvents": events});
        }
        webhook::Document::parse(&document).expect("the simulation writes valid documents").subscription()
    }

    fn full_name(&self) -> String {
        let (namespace, name) = (if self.elsewhere { "other/" } else { "" }, &self.name);
        format!("{namespace}webhook.{name}")
    }

    fn batch_max(&self) -> usize {
        self.batch_max.map_or(1, |events| events as usize)
    }

    fn outside(&self, mix: &Mix) -> Endpoint {
        Endpoint {
            name: self.full_name(),
            elsewhere: self.elsewhere,
            kind: self.kind,
            batch_max: self.batch_max(),
            retention: mix.has(Trouble::Retention),
            ids_limited: mix.marks_max < u64::MAX,
            disabled: None,
            was_disabled: false,
            skipped_through: 0,
            acked_through: 0,
            workflows: BTreeMap::new(),
            feed: Default::default(),
            accepted: Default::default(),
        }
    }
}

impl Endpoints {
    /// Creates the endpoints of the mix, durably.
    pub fn create(mix: &Mix, seed: u64, engine: &mut Engine) -> (Endpoints, Vec<Endpoint>) {
        let mut rng = Rng::new(seed ^ 0x0068_006f_006f_006b);
        let count = if mix.has(Trouble::Endpoints) { rng.between(1, 2) } else { 0 };
        let settings: Vec<Settings> = (0..count).map(|n| Settings::random(n, mix, &mut rng)).collect();
        for endpoint in &settings {
            engine.put_subscription(endpoint.document(), false).expect("an endpoint is created");
        }
        if count > 0 {
            engine.when_durable(Token(0));
            engine.flush();
            engine.run_sync();
        }
        let known = settings.iter().map(|endpoint| endpoint.outside(mix)).collect();
        let (calls, stalled, reading) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        (Endpoints { rng, settings, calls, next: 0, stalled, reading }, known)
    }

    pub fn len(&self) -> usize {
        self.settings.len()
    }

    pub fn next_end(&self) -> Option<u64> {
        self.calls.first_key_value().map(|((at, _), _)| *at)
    }

    pub fn open(&self, life: u64) -> usize {
        self.calls.values().filter(|call| call.life == life).count()
    }

    /// The process is gone, and with it all unanswered requests.
    pub fn forget_process(&mut self) {
        self.stalled.clear();
        self.reading.clear();
    }
}

impl World {
    pub fn endpoint_named(&self, name: &str) -> Option<EndpointNo> {
        let found = self.outside.endpoints.iter().position(|endpoint| endpoint.name == name)?;
        Some(found as EndpointNo)
    }
}
