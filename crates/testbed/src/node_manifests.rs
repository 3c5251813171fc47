//! Knative Serving's and Kourier's own manifests for a node, with images of the node's registry.

use crate::binaries::{KNATIVE, KOURIER, Module};
use crate::knative::{Setting, Source, configure, read, write_list};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

const FILES: [Source; 5] = [
    (
        KNATIVE,
        "knative.dev/serving",
        &[
            "config/core/100-namespace.yaml",
            "config/core/200-serviceaccount.yaml",
            "config/core/200-roles/",
            "config/core/configmaps/",
        ],
    ),
    (KNATIVE, "knative.dev/networking", &["config/config-network.yaml"]),
    (
        KOURIER,
        "knative.dev/net-kourier",
        &[
            "config/100-namespace.yaml",
            "config/200-bootstrap.yaml",
            "config/200-config.yaml",
            "config/200-serviceaccount.yaml",
        ],
    ),
    (
        KNATIVE,
        "knative.dev/serving",
        &[
            "config/core/webhooks/",
            "config/core/deployments/activator.yaml",
            "config/core/deployments/autoscaler.yaml",
            "config/core/deployments/controller.yaml",
            "config/core/deployments/webhook.yaml",
        ],
    ),
    (KOURIER, "knative.dev/net-kourier", &["config/300-controller.yaml", "config/300-gateway.yaml"]),
];

/// Short times, so that tests see a function at zero within seconds.
const SETTINGS: [Setting; 7] = [
    ("config-deployment", "progress-deadline", "60s"),
    ("config-domain", "example.com", ""),
    ("config-network", "ingress-class", "kourier.ingress.networking.knative.dev"),
    ("config-autoscaler", "stable-window", "6s"),
    ("config-autoscaler", "scale-to-zero-grace-period", "6s"),
    ("config-autoscaler", "scale-to-zero-pod-retention-period", "0s"),
    ("config-autoscaler", "allow-zero-initial-scale", "true"),
];

/// Writes all objects, in the order in which they are created.
pub fn write(file: &Path, registry: &str) -> Result<()> {
    let mut objects = read(&FILES)?;
    objects.iter_mut().for_each(adapt);
    let text = with_images(&serde_json::to_string(&objects)?, registry)?;
    write_list(file, serde_json::from_str(&text)?)
}

/// The manifests name images by their Go packages.
fn with_images(text: &str, registry: &str) -> Result<String> {
    let tag = |module: Module| -> Result<String> {
        let folder = module.cache()?;
        Ok(folder.file_name().context("a cache folder without a name")?.to_string_lossy().into_owned())
    };
    let (knative, kourier) = (tag(KNATIVE)?, tag(KOURIER)?);
    let mut text = text.replace(
        "ko://knative.dev/net-kourier/cmd/kourier",
        &format!("{registry}/knative/kourier:{kourier}"),
    );
    for name in ["queue", "activator", "autoscaler", "controller", "webhook"] {
        let package = format!("ko://knative.dev/serving/cmd/{name}");
        text = text.replace(&package, &format!("{registry}/knative/{name}:{knative}"));
    }
    Ok(text.replace("docker.io/envoyproxy/envoy:v1.36-latest", &format!("{registry}/envoy:1.40.0")))
}

fn adapt(object: &mut Value) {
    match object["kind"].as_str() {
        Some("ConfigMap") => configure(object, &SETTINGS),
        Some("Deployment") => quicken(&mut object["spec"]["template"]["spec"]),
        // No cloud gives out addresses.
        Some("Service") if object["spec"]["type"] == "LoadBalancer" => {
            object["spec"]["type"] = json!("ClusterIP")
        }
        _ => {}
    }
}

/// Small requests, quick probes, and no waiting at the end.
fn quicken(pod: &mut Value) {
    pod["terminationGracePeriodSeconds"] = json!(2);
    let container = &mut pod["containers"][0];
    container["resources"]["requests"] = json!({"cpu": "20m", "memory": "40Mi"});
    if container["readinessProbe"].is_object() {
        container["readinessProbe"]["periodSeconds"] = json!(1);
        container["readinessProbe"]["initialDelaySeconds"] = json!(0);
    }
    if let Some(container) = container.as_object_mut() {
        // Kourier's runs a shell with curl, which the image of Envoy does not have here.
        container.remove("lifecycle");
    }
}
