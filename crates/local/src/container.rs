//! Runs images with podman or docker, if one of them works on this machine.
//!
//! The client of the engine is an ordinary process here, so its output, signals and exit are those of the image. If a
//! client is killed, its container may survive: the watcher of the server removes it by name. If the watcher is killed too,
//! the next start removes it by its label.

use crate::fleet::Reason;
use crate::fleet::files::Files;
use crate::process::{Command, Limits};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::OnceCell;

pub const NO_ENGINE: &str = "an image needs podman or docker, and neither works on this machine; install one, \
                             or use code as the source";

/// Timeout of a short client command.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for pulling an image.
const FETCH_MAX: Duration = Duration::from_secs(30 * 60);

/// The label on every container: identifies the run of this program that started it.
const LABEL: &str = "klambda.run";

#[derive(Clone, Debug)]
pub struct Image {
    pub reference: String,
    /// The port that it listens on inside the container.
    pub port: u16,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub limits: Limits,
    /// Secrets that it finds as files, and the folders in which they are.
    pub files: Option<Arc<Files>>,
    pub mounts: Vec<(PathBuf, String)>,
    /// Set when a replica starts, if the engine knows the digest.
    pub digest: Arc<OnceLock<String>>,
}

/// A client with a working engine.
#[derive(Clone, Debug)]
pub struct Engine {
    program: &'static str,
    /// Whether it can run an init process in the container, which forwards signals and reaps orphans.
    has_init: bool,
}

/// The engine of this machine. Searched again until one is found.
pub async fn engine() -> Option<&'static Engine> {
    static FOUND: OnceCell<Engine> = OnceCell::const_new();
    FOUND.get_or_try_init(find).await.ok()
}

async fn find() -> Result<Engine, ()> {
    for program in ["podman", "docker"] {
        let engine = Engine { program, has_init: program == "docker" || has_catatonit() };
        if engine.ask(&["info"]).await.is_some() {
            let ended = engine.end_leftovers().await;
            tracing::info!(program, ended, "Container engine found");
            return Ok(engine);
        }
    }
    Err(())
}

/// The init program of podman, which is a separate package.
fn has_catatonit() -> bool {
    let places = ["/usr/libexec/podman", "/usr/local/libexec/podman", "/usr/lib/podman", "/usr/bin"];
    places.iter().any(|folder| Path::new(folder).join("catatonit").exists())
}

/// The exit code of the client when nothing could be run: no image, no permission, no space.
pub const EXIT_ENGINE: i32 = 125;

/// The most useful line of the output of the engine.
pub fn refused(last_lines: &[String]) -> String {
    let said = last_lines.iter().rev().find(|line| line.to_ascii_lowercase().contains("error"));
    let said = said.or(last_lines.last()).map_or("no reason given", |line| line.as_str());
    format!("the container engine failed: {said}")
}

/// Identifies this run: pids are reused, but not together with the start time.
fn this_run() -> String {
    let pid = std::process::id() as i32;
    run_of(pid).unwrap_or_else(|| pid.to_string())
}

fn run_of(pid: i32) -> Option<String> {
    crate::process::proc::stat(pid).map(|stat| format!("{pid}.{}", stat.started))
}

/// The variables of our environment that a client needs.
const CLIENT_NEEDS: [&str; 6] =
    ["PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR"];

impl Engine {
    /// The container name of a replica.
    pub fn name_of(&self, replica: u64) -> String {
        format!("klambda-{}-{replica}", this_run())
    }

    /// The command that runs the image until it exits, and removes the container.
    pub fn command(&self, image: &Image, name: &str) -> Command {
        let mut arguments: Vec<String> = ["run", "--rm", "--name", name].map(String::from).to_vec();
        arguments.extend(self.has_init.then(|| "--init".to_owned()));
        arguments.extend(["--label".into(), format!("{LABEL}={}", this_run())]);
        arguments.extend(["--publish".into(), format!("127.0.0.1::{}", image.port)]);
        if let Some(bytes) = image.limits.memory_bytes {
            arguments.extend(["--memory".into(), format!("{bytes}b")]);
        }
        if let Some(millis) = image.limits.cpu_millis {
            arguments.extend(["--cpus".into(), format!("{}.{:03}", millis / 1000, millis % 1000)]);
        }
        for (folder, place) in &image.mounts {
            let source = folder.display();
            arguments
                .extend(["--mount".into(), format!("type=bind,source={source},target={place},readonly")]);
        }
        let mut environment = client_environment();
        let port = ("PORT".to_owned(), image.port.to_string());
        for (variable, value) in image.environment.iter().chain([&port]) {
            // Pass only names, so that no value appears in the process list, except for variables that the client itself uses.
            if CLIENT_NEEDS.contains(&variable.as_str()) {
                arguments.extend(["--env".into(), format!("{variable}={value}")]);
            } else {
                arguments.extend(["--env".into(), variable.clone()]);
                environment.push((variable.clone(), value.clone()));
            }
        }
        // `--` keeps a reference that starts with a dash from being parsed as an option.
        arguments.extend(["--".into(), image.reference.clone()]);
        arguments.extend(image.arguments.iter().cloned());
        let (program, folder) = (PathBuf::from(self.program), PathBuf::from("/"));
        Command {
            program,
            arguments,
            folder,
            environment,
            limits: Limits::default(),
            container: Some(name.to_owned()),
            files: None,
        }
    }

    /// Pulls a missing image, which can take longer than a start. Returns the reason if that fails.
    pub async fn fetch(&self, reference: &str) -> Result<(), (Reason, String)> {
        if self.ask(&["image", "inspect", "--", reference]).await.is_some() {
            return Ok(());
        }
        let mut command = self.client(&["pull", "--quiet", "--", reference]);
        let output = match tokio::time::timeout(FETCH_MAX, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err((Reason::StartFailed, format!("{}: {error}", self.program))),
            Err(_) => {
                let message = format!("the image was not pulled within {} minutes", FETCH_MAX.as_secs() / 60);
                return Err((Reason::ImageNotFound, message));
            }
        };
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect::<Vec<_>>();
        Err((Reason::ImageNotFound, refused(&said)))
    }

    /// The digest of a pulled image. An image that was built on this machine has none.
    pub async fn digest(&self, reference: &str) -> Option<String> {
        let format = "{{json .RepoDigests}}";
        let answer = self.ask(&["image", "inspect", "--format", format, "--", reference]).await?;
        let names: Vec<String> = serde_json::from_str(answer.trim()).ok()?;
        names.iter().find_map(|name| Some(name.rsplit_once('@')?.1.to_owned()))
    }

    /// The address of a port of a container, once the port is published.
    pub async fn address(&self, name: &str, port: u16) -> Option<SocketAddr> {
        let answer = self.ask(&["port", name, &format!("{port}/tcp")]).await?;
        answer.lines().find_map(|line| line.trim().parse().ok())
    }

    /// Removes the container, in case its client was killed first.
    pub async fn remove(&self, name: &str) {
        let _ = self.ask(&["rm", "--force", name]).await;
    }

    /// Removes containers of earlier runs of this program.
    async fn end_leftovers(&self) -> usize {
        let filter = format!("label={LABEL}");
        let format = format!("{{{{.Names}}}} {{{{.Label \"{LABEL}\"}}}}");
        let list =
            self.ask(&["ps", "--all", "--filter", &filter, "--format", &format]).await.unwrap_or_default();
        let mut ended = 0;
        for (name, run) in list.lines().filter_map(|line| line.trim().split_once(' ')) {
            let pid = run.split('.').next().and_then(|pid| pid.parse().ok());
            if pid.and_then(run_of).as_deref() != Some(run) {
                self.remove(name).await;
                ended += 1;
            }
        }
        ended
    }

    /// The output of the client, or `None` if it fails.
    async fn ask(&self, arguments: &[&str]) -> Option<String> {
        let mut command = self.client(arguments);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.ok()?.ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn client(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(self.program);
        command.args(arguments).env_clear().envs(client_environment()).kill_on_drop(true);
        command.stdin(Stdio::null());
        command
    }
}

pub(crate) fn client_environment() -> Vec<(String, String)> {
    CLIENT_NEEDS.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_among_the_arguments_and_references_are_no_options() {
        let engine = Engine { program: "podman", has_init: false };
        let image = Image {
            reference: "-v/:/host".into(),
            port: 8080,
            arguments: vec!["--serve".into()],
            environment: vec![("TOKEN".into(), "hidden".into()), ("HOME".into(), "/app".into())],
            limits: Limits { memory_bytes: Some(1 << 20), cpu_millis: Some(1250) },
            files: None,
            mounts: vec![("/data/secrets/7".into(), "/run/s".into())],
            digest: Arc::default(),
        };
        let command = engine.command(&image, "klambda-1-2");
        let words = command.arguments.join(" ");
        assert!(!words.contains("hidden"), "{words}");
        assert!(words.ends_with("--env TOKEN --env HOME=/app --env PORT -- -v/:/host --serve"), "{words}");
        assert!(words.contains("--mount type=bind,source=/data/secrets/7,target=/run/s,readonly"), "{words}");
        assert!(words.contains("--publish 127.0.0.1::8080 --memory 1048576b --cpus 1.250"), "{words}");
        assert!(command.environment.contains(&("TOKEN".into(), "hidden".into())));
        assert!(!words.contains("--init"));
        let engine = Engine { has_init: true, ..engine };
        assert!(engine.command(&image, "n").arguments.contains(&"--init".to_owned()));
    }

    #[test]
    fn what_an_engine_refuses_is_told_by_its_own_words() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let podman = lines(
            "level=warning msg=\"Failed, retrying\"\nError: initializing source docker://x: no such host\n",
        );
        assert!(refused(&podman).ends_with("Error: initializing source docker://x: no such host"));
        let docker = lines("Unable to find image\ndocker: Error response from daemon: denied.\nSee help.");
        assert!(refused(&docker).ends_with("Error response from daemon: denied."));
        assert!(refused(&[]).contains("no reason given"));
    }
}
