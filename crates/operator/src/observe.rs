//! The observed state of a function, from what the caches hold. Pure.

mod build;
mod service;

use crate::config::Config;
use crate::desired::triggers;
use crate::kinds::Kind;
use crate::names;
use crate::snapshot::{self, Snapshot, is_deleting};
use klambda_core::time::Millis;
use klambda_functions::conditions::Saying;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash;
use klambda_functions::observed::{Fetch, FetchState, Observed, Subscription, Version, VersionState};
use klambda_functions::resource::{Resource, SourceType};
use serde_json::Value;

pub fn observe(resource: &Resource, snapshot: &Snapshot, config: &Config) -> Observed {
    let versions = match resource.spec.url() {
        Some(url) if !resource.is_deleting() => vec![at_url(resource, url)],
        _ => service::versions(snapshot),
    };
    Observed {
        source: source(resource, snapshot),
        build: build::run(resource, snapshot),
        artifacts: build::artifacts(resource, snapshot),
        versions,
        image_digests: Default::default(),
        subscription: snapshot.subscription.as_deref().map(subscription),
        broker: Some(broker(resource, snapshot, config)),
        dead_letters: Some(Saying::yes(
            "DispatcherDeadLetters",
            "Dead letters stay in the lanes of the dispatcher, which is the dead-letter sink of every Trigger",
        )),
        agent: None,
        secrets: Default::default(),
    }
}

/// A build fetches its source itself. So the source counts as fetched from the start, and its text is its digest. A rebuild
/// changes the inputs, and with them the digest of the artifact.
fn source(resource: &Resource, snapshot: &Snapshot) -> Option<Fetch> {
    let source = resource.spec.source.as_ref()?;
    let state = match source.kind {
        SourceType::Folder => FetchState::Failed(Failure::new(
            Reason::FolderNotAllowed,
            "The source is a folder, and a cluster has no folders of yours",
        )),
        _ => FetchState::Done { digest: hash::of(source), commit: build::commit(resource, snapshot) },
    };
    Some(Fetch { inputs: hash::inputs(resource), number: resource.counters.fetch_try, state })
}

/// A function at a URL is called there. Nothing is deployed, so it serves at once.
fn at_url(resource: &Resource, url: &str) -> Version {
    let digest = resource.spec.source.as_ref().map(hash::of).unwrap_or_default();
    let artifact = hash::artifact(resource, &digest);
    Version {
        version: hash::version(resource, &artifact),
        generation: resource.metadata.generation,
        state: VersionState::Serving,
        replicas: 0,
        url: Some(url.to_owned()),
        elsewhere: Some(url.to_owned()),
        scaling: resource.spec.scaling,
    }
}

fn subscription(object: &Value) -> Subscription {
    Subscription {
        hash: snapshot::annotation(object, names::DOCUMENT).unwrap_or_default().to_owned(),
        waiting: object["status"]["waiting"].as_u64().unwrap_or(0),
        draining: is_deleting(object),
        // The dispatcher writes the phase.
        taken: object["status"]["phase"].is_string(),
        fault: object["status"]["fault"].as_str().map(str::to_owned),
    }
}

/// Whether events of brokers reach the dispatcher.
fn broker(resource: &Resource, snapshot: &Snapshot, config: &Config) -> Saying {
    if resource.spec.triggers.is_empty() {
        return Saying::yes("NoTriggers", "No triggers, so no broker is needed");
    }
    if !snapshot.has(Kind::Trigger) {
        return Saying::unknown(
            "EventingNotInstalled",
            "Knative Eventing is not installed. Events that are sent to the dispatcher are delivered; events of brokers are not. Install Knative Eventing to use brokers.",
        );
    }
    let missing = triggers::brokers(resource).into_iter().find(|broker| snapshot.broker(broker).is_none());
    if let Some(missing) = missing
        && config.broker_class.is_none()
    {
        return Saying::no(
            "BrokerNotFound",
            format!(
                "Broker {missing} does not exist in this namespace. Create it, or set spec.triggers[].broker."
            ),
        );
    }
    let wanted = triggers::triggers(resource, snapshot, config);
    let unready = wanted.iter().find_map(|trigger| {
        let live = snapshot.triggers.iter().find(|live| snapshot::name(live) == trigger.name);
        match live.and_then(|live| snapshot::condition(live, "Ready")) {
            Some(ready) if ready["status"] == "True" => None,
            Some(ready) => Some(ready["message"].as_str().unwrap_or_default().to_owned()),
            None => Some(String::new()),
        }
    });
    match unready {
        None => Saying::yes("TriggersReady", "Events of the brokers reach the dispatcher"),
        Some(why) if why.is_empty() => {
            Saying::unknown("TriggersNotReady", "Waiting for the Triggers of Knative")
        }
        Some(why) => {
            Saying::unknown("TriggersNotReady", format!("Waiting for the Triggers of Knative: {why}"))
        }
    }
}

impl Snapshot {
    /// Whether the cluster has this kind.
    pub fn has(&self, kind: Kind) -> bool {
        kind.definition().is_none_or(|definition| self.installed.contains(&definition))
    }

    pub fn broker(&self, name: &str) -> Option<&Value> {
        self.brokers.iter().map(AsRef::as_ref).find(|broker: &&Value| snapshot::name(broker) == name)
    }
}

/// A time of an object.
fn time(object: &Value) -> Millis {
    let text = object["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
    Millis::parse_rfc3339(text).unwrap_or(Millis(0))
}
