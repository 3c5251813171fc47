//! `dev`: runs the function of a folder on a server of its own, and builds it again after every change.

use super::log_line::readable;
use super::outcomes::Outcomes;
use super::project::Project;
use super::watch::Watch;
use super::{refuse_server, share_cache};
use crate::args::{Dev, Global};
use crate::bench::interrupt;
use crate::client::Client;
use crate::commands::manifest::Manifest;
use crate::commands::{Context, apply, is_unreachable, logs};
use crate::function::{self, Progress, progress};
use crate::output::{Format, number, one_line, text};
use crate::own_server::{self, OwnServer};
use anyhow::bail;
use serde_json::Value;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for a change of the folder before looking at builds and events.
const LOOK: Duration = Duration::from_millis(100);
/// Data for the examples that are printed.
const DATA: &str = r#"{"name": "Ada"}"#;

pub fn run(global: &Global, args: &Dev) -> anyhow::Result<()> {
    refuse_server("dev", global)?;
    let project = Project::open(&args.folder)?;
    // Mistakes in the manifest are found before anything is started.
    project.resource()?;
    let manifest = project.manifest()?;
    let watch = Watch::new(&project.folder)?;
    interrupt::listen()?;
    let folder = own_server::folder("dev")?;
    share_cache(&own_server::data(folder.path()).join("functions"));
    let server = match OwnServer::start(folder, args.listen.as_deref()) {
        Err(_) if interrupt::happened() => return Ok(()),
        started => started?,
    };
    say("server", &format!("{} (its data is deleted at the end; Ctrl-C ends it)", server.url()))?;
    let outcomes = Outcomes::follow(server.client()?, subscription(&manifest))?;
    let mut session = Session {
        client: server.client()?,
        server,
        project,
        manifest,
        watch,
        outcomes,
        build: None,
        has_worked: false,
    };
    let worked = session.work();
    let worked = worked.map_err(|error| session.server.explain(error));
    let ended = session.server.end();
    if interrupt::happened() {
        return ended;
    }
    worked.and(ended)
}

struct Session {
    server: OwnServer,
    client: Client,
    project: Project,
    manifest: Manifest,
    watch: Watch,
    outcomes: Outcomes,
    /// When the build that is underway began.
    build: Option<Instant>,
    /// Logs and examples are shown from then on.
    has_worked: bool,
}

impl Session {
    fn work(&mut self) -> anyhow::Result<()> {
        self.apply()?;
        while !interrupt::happened() {
            if let Some(path) = self.watch.changed(LOOK)? {
                self.change(&path)?;
            }
            self.look_at_build()?;
            for line in self.outcomes.news(&self.client)? {
                say("event", &line)?;
            }
        }
        Ok(())
    }

    /// A mistake is shown, and may be corrected by the next change.
    fn change(&mut self, path: &Path) -> anyhow::Result<()> {
        say("change", &path.to_string_lossy())?;
        match self.read_manifest().and_then(|()| self.apply()) {
            Err(error) if !is_unreachable(&error) => say("error", &format!("{error:#}")),
            done => done,
        }
    }

    fn read_manifest(&mut self) -> anyhow::Result<()> {
        let manifest = self.project.manifest()?;
        if (manifest.kind, &manifest.name) != (self.manifest.kind, &self.manifest.name) {
            bail!("the manifest is now of {}; start `klambda dev` again", manifest.resource());
        }
        self.manifest = manifest;
        Ok(())
    }

    fn apply(&mut self) -> anyhow::Result<()> {
        let route = self.manifest.route().query("apply", true);
        let answer = self.client.put(&route, &self.manifest.document)?;
        if apply::change(&answer.body) == "unchanged" {
            return say("build", "nothing to build");
        }
        self.build = Some(Instant::now());
        say("build", &self.manifest.resource().to_string())
    }

    fn look_at_build(&mut self) -> anyhow::Result<()> {
        let Some(started) = self.build else { return Ok(()) };
        let item = self.client.get(&self.manifest.route())?;
        match progress(&item) {
            Progress::Underway => return Ok(()),
            Progress::Done => self.show_ready(number(&item, "/metadata/generation"), started.elapsed())?,
            Progress::Failed(why) => show_failure(&item, &why)?,
        }
        self.build = None;
        Ok(())
    }

    fn show_ready(&mut self, generation: u64, took: Duration) -> anyhow::Result<()> {
        let (name, took) = (self.manifest.resource(), took.as_millis());
        say("ready", &format!("{name} generation {generation} after {took} ms"))?;
        if !std::mem::replace(&mut self.has_worked, true) {
            // There is no log before a process was started. A failure comes with its last lines.
            follow_logs(self.server.client()?, &self.manifest)?;
            self.show_examples()?;
        }
        Ok(())
    }

    fn show_examples(&self) -> anyhow::Result<()> {
        let url = self.server.url();
        if let Some(event_type) = event_type(&self.manifest.document) {
            say(
                "try",
                &format!("klambda event send --server {url} --type {event_type} --key k1 --data '{DATA}'"),
            )?;
        }
        let invoke = self.manifest.route().below("invoke").to_url(url, &self.manifest.namespace);
        say("try", &format!("curl {invoke} -H 'content-type: application/json' -d '{DATA}'"))
    }
}

fn show_failure(item: &Value, why: &str) -> anyhow::Result<()> {
    for line in item["status"]["logLines"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        say("build", line)?;
    }
    let serving = match function::serves(item) {
        Some((generation, _)) => format!(" Generation {generation} keeps serving."),
        None => String::new(),
    };
    say("error", &format!("{why}{serving}"))
}

/// The type of an event that the first trigger selects, if that is easy to say.
fn event_type(document: &Value) -> Option<String> {
    let trigger = document.pointer("/spec/triggers/0")?;
    text(trigger, "/filter/type").or_else(|| text(trigger, "/filters/0/exact/type"))
}

fn subscription(manifest: &Manifest) -> String {
    format!("lambda.{}.{}", manifest.namespace, manifest.name)
}

/// Prints the log on a thread of its own, until the server is gone.
fn follow_logs(client: Client, manifest: &Manifest) -> io::Result<()> {
    let route = manifest.route().below("logs");
    thread::Builder::new().name("logs".into()).spawn(move || {
        let out = &mut LogLines::default();
        let mut context = Context { client, namespace: None, format: Format::Table, out };
        // The main thread notices the end of the server.
        let _ = logs::follow_one_at(&mut context, route);
    })?;
    Ok(())
}

/// Prints whole lines.
#[derive(Default)]
struct LogLines {
    line: Vec<u8>,
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let lines = readable(String::from_utf8_lossy(&line).trim_end());
        lines.iter().try_for_each(|line| say("log", line)).map_err(io::Error::other)
    }
}

fn say(label: &str, line: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{label:<7} {}", one_line(line))?;
    Ok(out.flush()?)
}
