//! Git repositories, read with the `git` of this machine: one commit, without history.
//!
//! It ignores the git configuration of the machine, prompts for nothing, runs no hooks and no filters, and skips submodules.
//! The content of the commit is counted before it is written.

use super::budget::{Budget, plain_path};
use super::{Credentials, Error, Fetch, Fetched, Git, Limits};
use pin::Pin;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};

mod git_url;
mod pin;

/// How often to check the size of a transfer.
const WATCH_EVERY: Duration = Duration::from_millis(200);

pub async fn clone(git: &Git, fetch: &Fetch<'_>) -> Result<Fetched, Error> {
    let limits = fetch.limits;
    let address = git_url::check(git, limits)?;
    let pin = Pin::of(&address, &limits.reach).await?;
    let inside = plain_path(Path::new(&git.path)).map_err(|_| {
        Error::BadReference(format!("path {:?} is not a folder inside the repository", git.path))
    })?;
    let beside = TempDir::new_in(fetch.beside())?;
    let repository = Repository { folder: beside, git, address, pin, limits };
    repository.check_version().await?;
    repository.run(&["init", "--quiet", "--template="]).await?;
    repository.fetch().await?;
    let commit = repository.run(&["rev-parse", "--verify", "FETCH_HEAD^{commit}"]).await?;
    repository.count(&commit, fetch.budget()).await?;
    repository.run(&["checkout", "--quiet", "--detach", &commit]).await?;
    let fetched = fetch.copy(repository.folder_inside(&inside)?).await?;
    Ok(Fetched { revision: Some(commit), ..fetched })
}

struct Repository<'a> {
    folder: TempDir,
    git: &'a Git,
    address: git_url::GitUrl,
    pin: Pin,
    limits: &'a Limits,
}

impl Repository<'_> {
    async fn fetch(&self) -> Result<(), Error> {
        let reference = if self.git.reference.is_empty() { "HEAD" } else { &self.git.reference };
        let shallow = ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules"];
        let mut command = self.command(&shallow)?;
        let child = spawn(command.args(["--", &self.git.url, reference]))?;
        let output = output_of(child);
        tokio::pin!(output);
        loop {
            tokio::select! {
                output = &mut output => {
                    self.succeeded(output?)?;
                    return self.within_transfer();
                }
                () = tokio::time::sleep(WATCH_EVERY) => self.within_transfer()?,
            }
        }
    }

    /// The requested folder. A path through a link could lead anywhere, and the files of git are not part of the source.
    fn folder_inside(&self, path: &Path) -> Result<PathBuf, Error> {
        let missing = || Error::NotFound(format!("the repository has no folder {:?}", self.git.path));
        let repository = self.folder.path().canonicalize()?;
        let folder = repository.join(path);
        let real = folder.canonicalize().map_err(|_| missing())?;
        if real != folder || path.iter().any(|name| name == ".git") {
            return Err(Error::Unsafe(format!("path {:?} goes through a link or into .git", self.git.path)));
        }
        if real.is_dir() { Ok(real) } else { Err(missing()) }
    }

    /// Git itself has no limit on the size of a transfer.
    fn within_transfer(&self) -> Result<(), Error> {
        let packs = self.folder.path().join(".git/objects/pack");
        let Ok(entries) = std::fs::read_dir(packs) else { return Ok(()) };
        let bytes: u64 =
            entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum();
        match bytes > self.limits.transfer_bytes {
            true => Err(Error::TooLarge(format!(
                "the commit is larger than {} bytes",
                self.limits.transfer_bytes
            ))),
            false => Ok(()),
        }
    }

    /// Counts what a checkout would write. A tree of a few bytes may name the same file billions of times.
    async fn count(&self, commit: &str, mut budget: Budget) -> Result<(), Error> {
        let mut child = spawn(&mut self.command(&["ls-tree", "-r", "-l", "-z", commit])?)?;
        let Some(stdout) = child.stdout.take() else { return Ok(()) };
        let (mut lines, mut line) = (BufReader::new(stdout), Vec::new());
        while (&mut lines).take(8192).read_until(0, &mut line).await? > 0 {
            budget.entry()?;
            budget.take(blob_bytes(&line))?;
            line.clear();
        }
        Ok(())
    }

    async fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        let output = output_of(spawn(&mut self.command(arguments)?)?).await?;
        self.succeeded(output)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command, Error> {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.folder.path());
        command.args([
            "-c",
            "core.hooksPath=/dev/null",
            "-c",
            "gc.auto=0",
            "-c",
            "advice.detachedHead=false",
            // Keeps a transfer in one pack, where it is counted, even if it has few objects.
            "-c",
            "fetch.unpackLimit=1",
            "-c",
            "transfer.unpackLimit=1",
            // A redirect could lead to an address that was not checked.
            "-c",
            "http.followRedirects=false",
        ]);
        command.args(self.pin.config());
        command.args(arguments).env_clear().envs(passed_on());
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "true").env("SSH_ASKPASS", "true");
        command.env("GIT_ALLOW_PROTOCOL", self.limits.git_schemes.join(":"));
        command.env("GIT_LFS_SKIP_SMUDGE", "1").env("LC_ALL", "C").env("HOME", self.folder.path());
        let mut ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new".to_owned();
        match &self.git.credentials {
            Credentials::Basic { username, password } => self.helper(&mut command, username, password)?,
            Credentials::SshKey { private_key } => {
                let file = self.folder.path().join(".git/klambda-key");
                write_key(&file, private_key)?;
                ssh.push_str(&format!(" -o IdentitiesOnly=yes -i '{}'", file.display()));
            }
            _ => {}
        }
        ssh.push_str(&self.pin.ssh_options());
        command.env("GIT_SSH_COMMAND", ssh);
        Ok(command)
    }

    /// An older git ignores a pinned address.
    async fn check_version(&self) -> Result<(), Error> {
        if self.pin.config().is_empty() || pin::can_pin(&self.run(&["version"]).await?) {
            return Ok(());
        }
        Err(Error::ToolMissing("git 2.37 or newer"))
    }

    /// Only for this host: a redirect to another host does not receive the password, and process lists do not show it.
    fn helper(&self, command: &mut Command, username: &str, password: &str) -> Result<(), Error> {
        if [username, password].iter().any(|text| text.contains(['\n', '\r', '\0'])) {
            return Err(Error::BadReference(
                "the secret has a line break in its username or password".into(),
            ));
        }
        let helper = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
                      \"$KLAMBDA_GIT_USERNAME\" \"$KLAMBDA_GIT_PASSWORD\"; }; f";
        command.env("GIT_CONFIG_COUNT", "1").env("GIT_CONFIG_VALUE_0", helper);
        command.env("GIT_CONFIG_KEY_0", format!("credential.{}.helper", self.address.origin));
        command.env("KLAMBDA_GIT_USERNAME", username).env("KLAMBDA_GIT_PASSWORD", password);
        Ok(())
    }

    fn succeeded(&self, output: Output) -> Result<String, Error> {
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(git_url::refused(self.git, &String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// The variables of our environment that git needs: the search path and the proxy settings.
fn passed_on() -> impl Iterator<Item = (String, String)> {
    const NAMES: [&str; 8] = [
        "PATH",
        "http_proxy",
        "https_proxy",
        "HTTPS_PROXY",
        "no_proxy",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    NAMES.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
}

fn spawn(command: &mut Command) -> Result<Child, Error> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::ToolMissing("git"),
        _ => Error::Io(error),
    })
}

/// The end of a process and the beginning of its output. The other end of a connection decides how much it prints.
async fn output_of(mut child: Child) -> std::io::Result<Output> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (stdout, stderr, status) = tokio::join!(beginning(stdout), beginning(stderr), child.wait());
    Ok(Output { status: status?, stdout: stdout?, stderr: stderr? })
}

async fn beginning(stream: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    const BYTES_MAX: u64 = 64 << 10;
    let (Some(mut stream), mut kept) = (stream, Vec::new()) else { return Ok(Vec::new()) };
    (&mut stream).take(BYTES_MAX).read_to_end(&mut kept).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(kept)
}

fn write_key(file: &Path, key: &str) -> Result<(), Error> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
    file.write_all(key.trim_end().as_bytes())?;
    file.write_all(b"\n")?;
    Ok(())
}

/// The size in a line `mode type hash size\tname`. Entries that are not files have none.
fn blob_bytes(line: &[u8]) -> u64 {
    let head = line.split(|byte| *byte == b'\t').next().unwrap_or_default();
    let size = String::from_utf8_lossy(head).split_whitespace().nth(3).and_then(|size| size.parse().ok());
    size.unwrap_or(0)
}
