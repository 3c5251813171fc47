//! `cargo run -p testbed -- up`: a control plane for people.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use testbed::{CONTROL_PLANE, ControlPlane, Place};

/// Start and stop a Kubernetes control plane with Knative Serving for tests
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build the programs that the cache lacks
    Build,
    /// Start a control plane and print its kubeconfig
    Up,
    /// Start a control plane, run a command with its KUBECONFIG and kubectl, and stop it
    Run {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// Stop the control planes that `up` started
    Down,
    /// List the running control planes
    Status,
    /// Exit with 0 if control planes can run here; otherwise print the reason
    Check,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Action::Build => testbed::build(&CONTROL_PLANE),
        Action::Up => up(),
        Action::Run { command } => run(&command),
        Action::Down => down(),
        Action::Status => status(),
        Action::Check => check(),
    }
}

fn up() -> Result<()> {
    let plane = ControlPlane::start()?;
    println!("export KUBECONFIG={}", plane.kubeconfig().display());
    println!("# kubectl: {}", plane.kubectl().display());
    println!("# this machine, seen from the API server: {}", plane.machine());
    println!("# stop: cargo run -p testbed -- down");
    plane.keep().map(drop)
}

fn run(command: &[OsString]) -> Result<()> {
    let plane = ControlPlane::start()?;
    let folder = plane.kubectl().parent().unwrap_or(Path::new("/"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([folder.to_owned()].into_iter().chain(std::env::split_paths(&path)))?;
    let (program, arguments) = command.split_first().context("no command")?;
    let mut child = Command::new(program);
    child.args(arguments).env("KUBECONFIG", plane.kubeconfig()).env("PATH", path);
    let status = child.status().with_context(|| format!("running {}", program.display()))?;
    drop(plane);
    std::process::exit(status.code().unwrap_or(1));
}

fn down() -> Result<()> {
    for place in Place::all().filter(|place| place.kept()) {
        place.end_kept()?;
        println!("stopped {}", place.namespace());
    }
    Ok(())
}

fn status() -> Result<()> {
    for place in Place::all() {
        let owner = match (place.kept(), place.locked()) {
            (true, _) => "started by `up`",
            (false, true) => "used by a test",
            (false, false) => continue,
        };
        println!("{}  {}  {owner}", place.namespace(), testbed::kubeconfig(place).display());
    }
    Ok(())
}

fn check() -> Result<()> {
    if let Some(reason) = testbed::missing() {
        println!("{reason}");
        std::process::exit(1);
    }
    Ok(())
}
