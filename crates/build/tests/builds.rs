//! Builds with the real tools of this machine and its registries, and starts the artifacts.

use klambda_build::{Artifact, Builder, Cancel, Error, Language, Options, Request, Stage, source_file};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BODY: &str = r#"{"n":41}"#;

struct Bed {
    dir: TempDir,
    builder: Builder,
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().expect("temporary folder");
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("build-cache");
        let options = Options { cache, ..Options::new(dir.path().join("data")) };
        let builder = Builder::open(options).expect("a writable folder");
        Bed { dir, builder }
    }

    fn request(&self, language: Language, code: &str, dependencies: &str) -> Request {
        let source = tempfile::tempdir_in(self.dir.path()).expect("temporary folder").keep();
        let file = source_file(language, "index.handler").expect("a handler");
        std::fs::write(source.join(file), code).expect("writable");
        Request {
            source,
            language,
            version: String::new(),
            handler: "index.handler".into(),
            dependencies: dependencies.into(),
            source_distributions: false,
            timeout: Request::TIMEOUT_DEFAULT,
            again: String::new(),
        }
    }

    async fn build(&self, request: &Request) -> Result<Artifact, Error> {
        self.builder.build(request, &Cancel::default()).await
    }

    async fn fails(&self, request: &Request, reason: &str, words: &str) {
        let error = self.build(request).await.expect_err("the build must fail");
        assert_eq!(error.reason(), reason, "{error:?}");
        assert!(error.to_string().contains(words), "{error:?}");
        assert!(error.log().len() <= 40);
        assert_eq!(entries(&self.dir.path().join("data/building")), 0, "a failed build leaves nothing");
    }
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).expect("there").count()
}

/// Killed when dropped, also by a failing test.
struct Running(Child, SocketAddr);

impl Running {
    /// Starts an artifact like the platform: with the listening socket as its standard input.
    fn start(artifact: &Artifact) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut command = Command::new(&artifact.command[0]);
        command.args(&artifact.command[1..]).envs(artifact.env.iter().cloned()).env("KLAMBDA_LISTEN_FD", "0");
        command.stdin(Stdio::from(OwnedFd::from(listener)));
        Running(command.spawn().expect("a program that starts"), address)
    }

    fn call(&self) -> String {
        let mut peer = TcpStream::connect(self.1).expect("the socket is open");
        peer.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let head = "ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /t\r\nce-type: t\r\ncontent-type: application/json";
        let length = BODY.len();
        let request = format!(
            "POST / HTTP/1.1\r\nhost: t\r\nconnection: close\r\n{head}\r\ncontent-length: {length}\r\n\r\n{BODY}"
        );
        peer.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("an answer");
        answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodejs_builds_with_npm_and_answers() {
    let bed = Bed::new();
    let code = "const n = require('is-number'); exports.handler = (e) => ({ n: e.data.n + 1, ok: n(1) });";
    let request = bed.request(Language::NodeJs, code, "is-number@7.0.0");
    let artifact = bed.build(&request).await.expect("a good source");
    assert_eq!(Running::start(&artifact).call(), r#"{"n":42,"ok":true}"#);

    let again = bed.build(&request).await.expect("a good source");
    assert_eq!(again.dir, artifact.dir);

    let module = bed.request(Language::NodeJs, "export const handler = async (e) => e.data.n;", "");
    assert_eq!(Running::start(&bed.build(&module).await.expect("a module")).call(), "41");

    bed.fails(&bed.request(Language::NodeJs, code, "is-number@99.0.0"), "DependencyNotFound", "99.0.0").await;
    let nobody = "klambda-no-such-package-a8f2@1.0.0";
    bed.fails(&bed.request(Language::NodeJs, code, nobody), "DependencyNotFound", "klambda-no-such").await;
    bed.fails(&bed.request(Language::NodeJs, "exports.handler = (", ""), "SyntaxError", "index.js").await;
    bed.fails(&bed.request(Language::NodeJs, "exports.other = 1", ""), "HandlerMissing", "handler").await;
    let elsewhere = Request { handler: "app.handler".into(), ..request.clone() };
    bed.fails(&elsewhere, "HandlerMissing", "app.js").await;
    let old = Request { version: "1.2".into(), ..request };
    bed.fails(&old, "VersionNotAvailable", "installed:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_builds_with_pip_and_answers() {
    let bed = Bed::new();
    let code = "import six\n\n\ndef handler(event, context):\n    return {'n': event.data['n'] + 1, 'v': six.__version__}\n";
    let request = bed.request(Language::Python, code, "six==1.16.0");
    let artifact = bed.build(&request).await.expect("a good source");
    assert_eq!(Running::start(&artifact).call(), r#"{"n":42,"v":"1.16.0"}"#);
    assert!(artifact.dir.join("code/__pycache__").is_dir(), "the build compiles the code");

    bed.fails(&bed.request(Language::Python, code, "six==99.0"), "DependencyNotFound", "six==99.0").await;
    // Each would run code of the package.
    for source in ["git+https://h/x.git", "-e .", "./mine"] {
        let request = bed.request(Language::Python, code, source);
        bed.fails(&request, "DependencyNotFound", "build.allowSourceDistributions").await;
    }
    bed.fails(&bed.request(Language::Python, "def handler(:\n", ""), "SyntaxError", "index.py, line 1").await;
    bed.fails(&bed.request(Language::Python, "def other(): pass\n", ""), "HandlerMissing", "handler").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_builds_with_modules_and_answers() {
    let bed = Bed::new();
    let code = r#"package main

import (
	"github.com/google/uuid"
	"klambda"
)

func handler(e klambda.Event) (any, error) {
	var data struct{ N int }
	err := e.Decode(&data)
	return map[string]int{"n": data.N + 1, "u": len(uuid.Nil.String())}, err
}
"#;
    let request = bed.request(Language::Go, code, "github.com/google/uuid v1.6.0");
    let artifact = bed.build(&request).await.expect("a good source");
    assert_eq!(Running::start(&artifact).call(), r#"{"n":42,"u":36}"#);
    assert_eq!(entries(&artifact.dir), 2, "only the code and the binary");

    let package = "package orders\n\nfunc Handler(data struct{ N int }) int { return data.N }\n";
    let package = bed.build(&bed.request(Language::Go, package, "")).await.expect("a package");
    assert_eq!(Running::start(&package).call(), "41");

    let wrong = code.replace("data.N + 1", "data.M");
    bed.fails(
        &bed.request(Language::Go, &wrong, "github.com/google/uuid v1.6.0"),
        "SyntaxError",
        "index.go:",
    )
    .await;
    let missing = "github.com/google/uuid v99.0.0";
    bed.fails(&bed.request(Language::Go, code, missing), "DependencyNotFound", "v99.0.0").await;
    let missing = "github.com/google/uuid v1.99.0";
    bed.fails(&bed.request(Language::Go, code, missing), "DependencyNotFound", "v1.99.0").await;
    let empty = bed.request(Language::Go, "package main\n", "");
    bed.fails(&empty, "HandlerMissing", "handler").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_content_is_built_once_by_many() {
    let bed = Bed::new();
    let code = "exports.handler = () => 1;";
    let requests: Vec<Request> = (0..8).map(|_| bed.request(Language::NodeJs, code, "")).collect();
    let mut dirs = Vec::new();
    let builds = requests.iter().map(|request| bed.build(request));
    for built in join_all(builds).await {
        dirs.push(built.expect("a good source").dir);
    }
    dirs.dedup();
    assert_eq!(dirs.len(), 1);
    assert_eq!(entries(&bed.dir.path().join("data/artifacts")), 1);
    assert_eq!(bed.builder.keep_only(&[]).await.expect("removable"), 1);
}

async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut open: Vec<_> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = open.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, done) in open.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(context) {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// A tool that writes, starts a child and never ends. The launcher simulates it.
fn endless(dir: &Path) -> Options {
    let script = format!("echo started; sleep 600 & echo $! > {}/child; wait", dir.display());
    Options { launcher: vec!["sh".into(), "-c".into(), script.into()], ..Options::new(dir.join("data")) }
}

async fn child_of(dir: &Path) -> String {
    let file = dir.join("child");
    wait_for(|| std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')))
        .await
        .trim()
        .to_owned()
}

async fn gone(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    // A zombie counts as gone.
    wait_for(|| match std::fs::read_to_string(&stat) {
        Ok(text) if !text.contains(") Z") => None,
        _ => Some(()),
    })
    .await;
}

async fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "the condition was not met in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_over_its_time_ends_with_all_it_started() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let bed = Bed { builder: Builder::open(endless(dir.path())).expect("writable"), dir };
    let request = bed.request(Language::NodeJs, "exports.handler = () => 1", "");
    let request = Request { timeout: Duration::from_millis(700), ..request };
    let error = bed.build(&request).await.expect_err("the build must time out");
    assert_eq!((error.reason(), error.log()), ("Timeout", &["started".to_owned()][..]));
    gone(&child_of(bed.dir.path()).await).await;
}

/// A build that hangs is killed long before its timeout, and the time that others wait for it does not count.
#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_hangs_gives_its_slot_to_the_next() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let options = Options { builds_max: 1, stall: Duration::from_secs(1), ..endless(dir.path()) };
    let bed = Bed { builder: Builder::open(options).expect("writable"), dir };
    let [hangs, waits] = ["1", "2"].map(|code| bed.request(Language::NodeJs, code, ""));
    let waits = Request { timeout: Duration::from_millis(300), ..waits };
    let stages = Mutex::new(Vec::new());
    let told = |stage| stages.lock().expect("no panic").push((stage, Instant::now()));
    let (first, second) = tokio::join!(bed.build(&hangs), async {
        child_of(bed.dir.path()).await;
        bed.builder.build_with_progress(&waits, &Cancel::default(), &told, None).await
    });
    assert_eq!(first.expect_err("the build must stall").reason(), "Stalled");
    assert_eq!(second.expect_err("the build must time out").reason(), "Timeout");
    let ended = Instant::now();
    let stages = stages.into_inner().expect("no panic");
    let [(Stage::Waits { before: 0 }, _), (Stage::Begins, began)] = stages[..] else { panic!("{stages:?}") };
    assert!(ended - began >= waits.timeout, "the build ended before its own timeout");
    assert_eq!(bed.builder.waiting(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_build_ends_with_all_it_started() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let bed = Bed { builder: Builder::open(endless(dir.path())).expect("writable"), dir };
    let request = bed.request(Language::NodeJs, "exports.handler = () => 1", "");
    let cancel = Cancel::default();
    let (result, child) = tokio::join!(bed.builder.build(&request, &cancel), async {
        let child = child_of(bed.dir.path()).await;
        cancel.cancel();
        child
    });
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    gone(&child).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_cut_off_build_left_is_removed_and_links_out_are_refused() {
    let bed = Bed::new();
    std::fs::create_dir(bed.dir.path().join("data/building/half")).expect("writable");
    let builder = Builder::open(Options::new(bed.dir.path().join("data"))).expect("writable");
    assert_eq!(entries(&bed.dir.path().join("data/building")), 0);
    let request = bed.request(Language::NodeJs, "exports.handler = () => 1", "");
    std::os::unix::fs::symlink("/etc/passwd", request.source.join("stolen")).expect("writable");
    let error = builder.build(&request, &Cancel::default()).await.expect_err("a link out");
    assert!(error.to_string().contains("stolen"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_out_of_reach_is_no_missing_dependency() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let nowhere = ["npm_config_registry=http://127.0.0.1:9", "PIP_INDEX_URL=http://127.0.0.1:9"];
    let nowhere = nowhere.into_iter().chain(["GOPROXY=http://127.0.0.1:9", "PIP_FIND_LINKS="]);
    let launcher = ["env"].into_iter().chain(nowhere).map(Into::into).collect();
    let options = Options { launcher, ..Options::new(dir.path().join("data")) };
    let bed = Bed { builder: Builder::open(options).expect("writable"), dir };
    let node = bed.request(Language::NodeJs, "exports.handler = () => 1", "is-number@7.0.0");
    let python = bed.request(Language::Python, "def handler(e, c): pass", "six==1.16.0");
    let code = "package main\n\nimport _ \"github.com/google/uuid\"\n\nfunc handler() {}\n";
    let go = bed.request(Language::Go, code, "github.com/google/uuid v1.6.0");
    for request in [node, python, go] {
        bed.fails(&request, "Failed", "could not reach its registry").await;
    }
}
