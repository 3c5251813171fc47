//! Alerting rules for Prometheus, and their rendering. [`table`] is the only place that defines an alert.

mod burn;
mod scale;
pub mod table;

pub use scale::Scale;

use serde::Serialize;
use std::collections::BTreeMap;
use table::{Alert, GROUPS};

/// The base URL of runbooks. The name of an alert completes it.
pub const RUNBOOKS: &str = "https://knative-lambda.dev/runbooks/";

/// A rules file.
#[derive(Debug, Serialize)]
pub struct Rules {
    groups: Vec<Group>,
}

#[derive(Debug, Serialize)]
struct Group {
    name: String,
    interval: String,
    rules: Vec<Rule>,
}

#[derive(Debug, Serialize)]
struct Rule {
    alert: &'static str,
    expr: String,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    hold: Option<String>,
    labels: Labels,
    annotations: Annotations,
}

#[derive(Debug, Serialize)]
struct Labels {
    severity: &'static str,
    component: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct Annotations {
    summary: &'static str,
    description: &'static str,
    runbook_url: String,
}

const INTERVAL: &str = "30s";

impl Rules {
    /// All rules. `runbooks` is the base URL of the runbooks.
    pub fn new(scale: Scale, runbooks: &str) -> Rules {
        let alerts = table::alerts();
        let groups = GROUPS.iter().map(|name| Group {
            name: format!("klambda-{name}"),
            interval: scale.duration(INTERVAL),
            rules: alerts
                .iter()
                .filter(|alert| alert.group == *name)
                .map(|alert| Rule::new(alert, scale, runbooks))
                .collect(),
        });
        Rules { groups: groups.collect() }
    }

    /// The resource that the Prometheus operator reads.
    pub fn resource(self) -> Resource {
        let labels = BTreeMap::from([("prometheus", "kube-prometheus"), ("role", "alert-rules")]);
        Resource {
            api_version: "monitoring.coreos.com/v1",
            kind: "PrometheusRule",
            metadata: Metadata { name: "knative-lambda-alerts", labels },
            spec: self,
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Rules,
}

#[derive(Debug, Serialize)]
struct Metadata {
    name: &'static str,
    labels: BTreeMap<&'static str, &'static str>,
}

impl Rule {
    fn new(alert: &Alert, scale: Scale, runbooks: &str) -> Rule {
        Rule {
            alert: alert.name,
            expr: scale.expression(&alert.expr),
            hold: (alert.hold != "0s").then(|| scale.duration(alert.hold)),
            labels: Labels {
                severity: alert.severity,
                component: alert.component,
                threshold: alert.threshold,
            },
            annotations: Annotations {
                summary: alert.summary,
                description: alert.description,
                runbook_url: format!("{}/{}", runbooks.trim_end_matches('/'), alert.name),
            },
        }
    }
}
