//! `/api/v1/cost`: what functions, builds and storage cost since the server started, at the configured prices.
//!
//! Running functions and storage are sampled whenever metrics or costs are read: the use at that moment counts for the
//! time since the sample before. Prometheus keeps the history.

use crate::api::Api;
use crate::config::Cost as Prices;
use crate::extract::Json;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::Uri;
use klambda_control::{Counts, Name, OfFunction};
use klambda_crash::Lock;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

const HOUR: f64 = 3600.0;
/// 730 hours, as clouds count a month.
const MONTH: f64 = 730.0 * HOUR;
const GIB: f64 = (1u64 << 30) as f64;

pub struct Meter {
    pub prices: Prices,
    spent: Lock<Spent>,
}

/// Costs that grow with time, in dollars.
#[derive(Clone, Debug)]
struct Spent {
    until: Instant,
    /// Of existing functions. A deleted function stays part of `functions`.
    by_function: BTreeMap<Name, f64>,
    functions: f64,
    storage: f64,
    server: f64,
}

/// The use of the server at one moment.
pub struct Use<'a> {
    /// With the number of their replicas.
    pub functions: &'a [(Name, u32)],
    pub storage_bytes: u64,
    pub counts: &'a Counts,
}

/// Costs since the start of the server, in dollars.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    uptime_seconds: u64,
    pub total: f64,
    pub server: f64,
    pub storage: f64,
    pub storage_bytes: u64,
    /// The budget of a month. 0 means none.
    pub monthly_budget: f64,
    /// Existing functions. Those beyond `limits.metricFunctions` share one entry, `other`.
    pub functions: Vec<FunctionCost>,
}

#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionCost {
    pub namespace: String,
    pub name: String,
    pub builds: u64,
    pub build_cost: f64,
    pub running_cost: f64,
}

impl FunctionCost {
    pub fn total(&self) -> f64 {
        self.build_cost + self.running_cost
    }
}

impl Meter {
    pub fn new(prices: Prices) -> Meter {
        let spent = Spent {
            until: Instant::now(),
            by_function: BTreeMap::new(),
            functions: 0.0,
            storage: 0.0,
            server: 0.0,
        };
        Meter { prices, spent: Lock::new(spent) }
    }

    /// Adds the time since the last sample and returns all costs.
    pub fn read(&self, now: Instant, used: &Use<'_>) -> Cost {
        let mut spent = self.spent.lock();
        spent.add(now, used, &self.prices);
        let builds = used.counts.builds as f64 * self.prices.build;
        Cost {
            uptime_seconds: 0,
            total: builds + spent.functions + spent.storage + spent.server,
            server: spent.server,
            storage: spent.storage,
            storage_bytes: used.storage_bytes,
            monthly_budget: self.prices.monthly_budget,
            functions: rows(&spent, used.counts, self.prices.build),
        }
    }
}

impl Spent {
    fn add(&mut self, now: Instant, used: &Use<'_>, prices: &Prices) {
        let seconds = now.saturating_duration_since(self.until).as_secs_f64();
        self.until = self.until.max(now);
        self.storage += seconds * used.storage_bytes as f64 / GIB * prices.storage_month / MONTH;
        self.server += seconds * prices.server_month / MONTH;
        let mut before = std::mem::take(&mut self.by_function);
        for (name, replicas) in used.functions {
            let rate = prices.function_month / MONTH + f64::from(*replicas) * prices.replica_hour / HOUR;
            self.functions += seconds * rate;
            let cost = before.remove(name).unwrap_or(0.0) + seconds * rate;
            self.by_function.insert(name.clone(), cost);
        }
    }
}

fn rows(spent: &Spent, counts: &Counts, price: f64) -> Vec<FunctionCost> {
    let row = |namespace: &str, name: &str, of: &OfFunction, running_cost: f64| {
        let builds = of.builds.values().sum();
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        FunctionCost { namespace, name, builds, build_cost: builds as f64 * price, running_cost }
    };
    let mut others = 0.0;
    let mut rows = Vec::new();
    for (name, running) in &spent.by_function {
        match counts.functions.get(name) {
            Some(of) => rows.push(row(name.namespace(), name.name(), of, *running)),
            None => others += running,
        }
    }
    let others = row("", "other", &counts.others, others);
    rows.extend((others.total() > 0.0).then_some(others));
    rows
}

pub async fn show(api: Api, uri: Uri) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let storage_bytes = api.query(|engine| engine.storage_bytes()).await?;
    let mut cost = read(&api, storage_bytes);
    cost.uptime_seconds = api.about.started.elapsed().as_secs();
    Ok(Json(cost).into_response())
}

/// The costs until now.
pub fn read(api: &Api, storage_bytes: u64) -> Cost {
    let (functions, counts) = (api.control.replicas(), api.control.counts());
    let used = Use { functions: &functions, storage_bytes, counts: &counts };
    api.metering.meter.read(Instant::now(), &used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn costs_grow_with_time_builds_and_bytes() {
        let prices = Prices {
            build: 0.05,
            function_month: 0.1,
            replica_hour: 2.0,
            storage_month: 0.1,
            server_month: 73.0,
            ..Prices::default()
        };
        let meter = Meter::new(prices);
        let name = Name::new("shop", "f");
        let mut counts = Counts { builds: 3, ..Counts::default() };
        counts.functions.entry(name.clone()).or_default().builds.insert("success", 3);
        let functions = [(name, 2)];
        let used = Use { functions: &functions, storage_bytes: 10 << 30, counts: &counts };
        let start = Instant::now();
        let read = |hours: u64, used: &Use<'_>| meter.read(start + Duration::from_secs(hours * 3600), used);
        read(0, &used);
        let cost = read(10, &used);
        let [function] = cost.functions.as_slice() else { panic!("{cost:?}") };
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-3, "{one} {other}");
        close(function.build_cost, 0.15);
        close(function.running_cost, 40.0 + 0.1 * 10.0 / 730.0);
        close(cost.storage, 10.0 * 0.1 * 10.0 / 730.0);
        close(cost.server, 1.0);
        close(cost.total, function.total() + cost.storage + cost.server);

        // A deleted function has no entry, but its cost stays in the total.
        let deleted =
            Use { functions: &[], storage_bytes: 0, counts: &Counts { builds: 3, ..Counts::default() } };
        let later = read(10, &deleted);
        assert!(later.functions.is_empty());
        close(later.total, cost.total);
    }
}
