//! Leader election by the protocol of client-go: a lease that nobody renewed for its whole duration, by the clock of the
//! observer, is free. Clocks of different machines are never compared.

use crate::cluster::{Cluster, Error};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// A leader that cannot renew for this long steps down, before others may take over.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
pub const RETRY_PERIOD: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Options {
    pub namespace: String,
    pub name: String,
    /// Who holds it, unique for each process.
    pub identity: String,
}

/// What this process knows about the lease.
#[derive(Debug, Default)]
pub struct Observation {
    /// The record as it was seen last, and since when it is unchanged.
    seen: Option<(Value, Instant)>,
}

#[derive(Debug, PartialEq)]
pub enum Decision {
    Create,
    /// Take or renew: the new spec, for a write that fails if someone else was faster.
    Write(Value),
    Wait,
}

/// The next step with the lease as it is. `stamp` is the current time as text.
pub fn decide(
    observation: &mut Observation,
    lease: Option<&Value>,
    identity: &str,
    stamp: &str,
    now: Instant,
) -> Decision {
    let Some(lease) = lease else { return Decision::Create };
    let record = lease["spec"].clone();
    let since = match &observation.seen {
        Some((seen, since)) if *seen == record => *since,
        _ => {
            observation.seen = Some((record.clone(), now));
            now
        }
    };
    let holder = record["holderIdentity"].as_str().unwrap_or_default();
    let duration_s = record["leaseDurationSeconds"].as_u64().unwrap_or(LEASE_DURATION.as_secs());
    if holder == identity {
        let mut spec = record;
        spec["renewTime"] = stamp.into();
        return Decision::Write(spec);
    }
    if !holder.is_empty() && now < since + Duration::from_secs(duration_s) {
        return Decision::Wait;
    }
    let transitions = record["leaseTransitions"].as_u64().unwrap_or(0) + 1;
    Decision::Write(spec(identity, stamp, transitions))
}

fn spec(identity: &str, stamp: &str, transitions: u64) -> Value {
    json!({
        "holderIdentity": identity,
        "leaseDurationSeconds": LEASE_DURATION.as_secs(),
        "acquireTime": stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions,
    })
}

fn stamp() -> String {
    // The type MicroTime has exactly six digits.
    let now = jiff::Timestamp::now();
    format!("{now:.6}")
}

/// Keeps trying to hold the lease, and tells through `leading` whether it does. Returns only when `stop` fires, after the
/// lease is given up.
pub async fn run(
    cluster: Cluster,
    options: Options,
    leading: watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) {
    let mut observation = Observation::default();
    let mut renewed = Instant::now();
    loop {
        match attempt(&cluster, &options, &mut observation).await {
            Ok(true) => {
                renewed = Instant::now();
                if !leading.send_replace(true) {
                    tracing::info!(identity = options.identity, "Became the leader");
                }
            }
            Ok(false) => step_down(&leading, "another replica holds the lease"),
            Err(error) => {
                tracing::warn!(%error, "Could not renew the lease; retrying");
                if renewed.elapsed() >= RENEW_DEADLINE {
                    step_down(&leading, "the lease could not be renewed");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_PERIOD) => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    let held = leading.send_replace(false);
    if held {
        release(&cluster, &options).await;
    }
}

fn step_down(leading: &watch::Sender<bool>, why: &str) {
    if leading.send_replace(false) {
        tracing::warn!(why, "No longer the leader");
    }
}

async fn attempt(cluster: &Cluster, options: &Options, observation: &mut Observation) -> Result<bool, Error> {
    let within = RETRY_PERIOD * 2;
    let work = async {
        let lease = cluster.get_lease(&options.namespace, &options.name).await?;
        let decision = decide(observation, lease.as_ref(), &options.identity, &stamp(), Instant::now());
        let written = match (decision, lease) {
            (Decision::Create, _) => {
                let spec = spec(&options.identity, &stamp(), 0);
                cluster.create_lease(&options.namespace, &options.name, spec).await
            }
            (Decision::Write(spec), Some(mut lease)) => {
                lease["spec"] = spec;
                cluster.replace_lease(&options.namespace, &options.name, lease).await
            }
            _ => return Ok(false),
        };
        match written {
            Ok(()) => Ok(true),
            // Another replica was faster.
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    };
    tokio::time::timeout(within, work).await.unwrap_or(Err(Error::Timeout))
}

/// Lets the next leader start at once.
async fn release(cluster: &Cluster, options: &Options) {
    let Ok(Some(mut lease)) = cluster.get_lease(&options.namespace, &options.name).await else { return };
    if lease["spec"]["holderIdentity"] == options.identity.as_str() {
        lease["spec"]["holderIdentity"] = "".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        if let Err(error) = cluster.replace_lease(&options.namespace, &options.name, lease).await {
            tracing::debug!(%error, "Could not release the lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: &str) -> Value {
        json!({ "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15, "leaseTransitions": 4 } })
    }

    #[test]
    fn a_lease_is_taken_only_after_it_stayed_the_same_for_its_duration() {
        let (mut seen, start) = (Observation::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut decide = |lease: Option<&Value>, seconds| decide(&mut seen, lease, "me", "now", at(seconds));
        assert_eq!(decide(None, 0), Decision::Create);
        // The times in the record are of another clock, and say nothing.
        assert_eq!(decide(Some(&lease("other", "1970")), 0), Decision::Wait);
        assert_eq!(decide(Some(&lease("other", "1970")), 14), Decision::Wait);
        assert_eq!(decide(Some(&lease("other", "1971")), 16), Decision::Wait, "it was renewed");
        assert_eq!(decide(Some(&lease("other", "1971")), 30), Decision::Wait);
        let Decision::Write(taken) = decide(Some(&lease("other", "1971")), 31) else { panic!("free") };
        assert_eq!((&taken["holderIdentity"], &taken["leaseTransitions"]), (&json!("me"), &json!(5)));
        let Decision::Write(renewed) = decide(Some(&lease("me", "1972")), 32) else { panic!("mine") };
        assert_eq!((&renewed["renewTime"], &renewed["leaseTransitions"]), (&json!("now"), &json!(4)));
        assert!(matches!(decide(Some(&lease("", "1973")), 33), Decision::Write(_)), "given up");
    }
}
