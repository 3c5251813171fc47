//! Files for Prometheus and Grafana.

use crate::alerts::{RUNBOOKS, Scale};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Alerts {
    /// Multiply every duration by this number, to try the alerts out
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = Scale::parse)]
    pub scale: Scale,
    /// Base URL of the runbooks
    #[arg(long, value_name = "URL", default_value = RUNBOOKS)]
    pub runbooks: String,
    /// Print a PrometheusRule resource for Kubernetes
    #[arg(long)]
    pub kubernetes: bool,
}

#[derive(Debug, Args)]
pub struct Dashboards {
    /// Folder to write one JSON file per dashboard to
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
