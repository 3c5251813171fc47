//! The lane machine alone, in this process: arrived, delivered, acknowledged, without disk or network.

use anyhow::bail;

use crate::bench::Args;
use crate::bench::report::Report;
use crate::bench::rig::Rig;

pub fn run(_rig: &Rig, _args: &Args) -> anyhow::Result<Report> {
    bail!("the lane machine's bench is not in this build")
}
