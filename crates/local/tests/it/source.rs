//! Sources from real places: manifests, folders, repositories behind a server, buckets behind HTTP.

use klambda_local::source::{
    self, Credentials, Error, Fetched, Git, Inline, Language, Limits, Object, Source, Store,
};
use klambda_outbound::{Allow, Found, Guard, Names, Settings};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

async fn fetch(source: Source, limits: &Limits) -> Result<(Fetched, TempDir), Error> {
    let around = TempDir::new().unwrap();
    let fetched = source::fetch(&source, &around.path().join("into"), limits).await;
    if fetched.is_err() {
        assert_eq!(fs::read_dir(around.path()).unwrap().count(), 0, "files are left behind");
    }
    Ok((fetched?, around))
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.git_schemes.push("file".into());
    limits
}

fn text(around: &TempDir, path: &str) -> String {
    fs::read_to_string(around.path().join("into").join(path)).unwrap()
}

#[tokio::test]
async fn inline_code_is_a_file_named_by_its_handler() {
    let inline = |language, handler: &str, dependencies: &str| {
        let (code, dependencies) = ("code".into(), dependencies.into());
        Source::Inline(Inline { language, handler: handler.into(), code, dependencies })
    };
    let cases = [
        (Language::NodeJs, "index.main", "index.js", "package.json"),
        (Language::Python, "app.handler", "app.py", "requirements.txt"),
        (Language::Go, "main.Handle", "main.go", "go.mod"),
    ];
    for (language, handler, file, dependencies) in cases {
        let (fetched, around) = fetch(inline(language, handler, "words"), &limits()).await.unwrap();
        assert_eq!((text(&around, file), text(&around, dependencies)), ("code".into(), "words".into()));
        assert_eq!((fetched.files, fetched.bytes), (2, 9));
    }
    let (fetched, _around) = fetch(inline(Language::Go, "main.Handle", ""), &limits()).await.unwrap();
    assert_eq!(fetched.files, 1);
    for handler in ["../out.main", "index", ".main", "a/b.main"] {
        let error = fetch(inline(Language::NodeJs, handler, ""), &limits()).await.unwrap_err();
        assert_eq!(error.reason(), "BadReference", "{handler}");
    }
}

#[tokio::test]
async fn a_folder_is_copied_within_limits() {
    let from = TempDir::new().unwrap();
    fs::create_dir_all(from.path().join("lib")).unwrap();
    fs::create_dir_all(from.path().join(".git")).unwrap();
    fs::write(from.path().join("lib/a.js"), "a").unwrap();
    fs::write(from.path().join(".git/config"), "x").unwrap();
    std::os::unix::fs::symlink("lib/a.js", from.path().join("b.js")).unwrap();
    let (_, around) = fetch(Source::Folder(from.path().into()), &limits()).await.unwrap();
    assert_eq!(text(&around, "b.js"), "a");
    assert!(!around.path().join("into/.git").exists());
    let few = Limits { files: 1, ..limits() };
    assert_eq!(fetch(Source::Folder(from.path().into()), &few).await.unwrap_err().reason(), "TooLarge");
    std::os::unix::fs::symlink("/etc/passwd", from.path().join("out")).unwrap();
    assert_eq!(fetch(Source::Folder(from.path().into()), &limits()).await.unwrap_err().reason(), "Unsafe");
    assert_eq!(fetch(Source::Folder("/no/such".into()), &limits()).await.unwrap_err().reason(), "NotFound");
}

fn run_git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(folder)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com"])
        .args(arguments);
    let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A repository with two commits, a tag on the first, and a branch.
fn repository(folder: &Path) -> (String, String) {
    fs::create_dir_all(folder.join("functions/hello")).unwrap();
    run_git(folder, &["init", "--quiet", "--initial-branch=main"]);
    let commit = |content: &str| {
        fs::write(folder.join("functions/hello/index.js"), content).unwrap();
        run_git(folder, &["add", "."]);
        run_git(folder, &["commit", "--quiet", "-m", content]);
        run_git(folder, &["rev-parse", "HEAD"])
    };
    let first = commit("first");
    run_git(folder, &["tag", "v1"]);
    let second = commit("second");
    run_git(folder, &["branch", "feature/x"]);
    (first, second)
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Terminate instead of kill, so that it stops the processes that it started.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn until_listening(port: u16) {
    let started = std::time::Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "nobody listens on {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The daemon itself and not `git daemon`, which would leave it behind.
fn git_daemon(base: &Path) -> (Server, u16) {
    let exec_path = run_git(base, &["--exec-path"]);
    let port = free_port();
    let mut command = Command::new(Path::new(&exec_path).join("git-daemon"));
    command.args(["--export-all", "--reuseaddr", "--listen=127.0.0.1"]).arg(format!("--port={port}"));
    command.arg(format!("--base-path={}", base.display())).arg(base);
    let server = Server(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until_listening(port);
    (server, port)
}

fn git(url: &str, reference: &str, path: &str) -> Source {
    let credentials = Credentials::Basic { username: "u".into(), password: "pa55word".into() };
    Source::Git(Git { url: url.into(), reference: reference.into(), path: path.into(), credentials })
}

#[tokio::test]
async fn one_commit_of_a_repository_is_fetched_by_branch_tag_or_hash() {
    let base = TempDir::new().unwrap();
    let (first, second) = repository(&base.path().join("repo"));
    let (_server, port) = git_daemon(base.path());
    let urls = [format!("git://127.0.0.1:{port}/repo"), format!("file://{}/repo", base.path().display())];
    for url in &urls {
        let cases = [
            ("", &second),
            ("main", &second),
            ("feature/x", &second),
            ("v1", &first),
            (first.as_str(), &first),
        ];
        for (reference, commit) in cases {
            let (fetched, around) = fetch(git(url, reference, "functions/hello"), &limits()).await.unwrap();
            assert_eq!(fetched.revision.as_ref(), Some(commit), "{url} {reference}");
            let expected = if *commit == first { "first" } else { "second" };
            assert_eq!(text(&around, "index.js"), expected);
            assert!(!around.path().join("into/.git").exists());
        }
    }
    let reason = async |url: &str, reference: &str, path: &str, limits: &Limits| {
        fetch(git(url, reference, path), limits).await.unwrap_err().reason()
    };
    assert_eq!(reason(&urls[0], "no-such-branch", "", &limits()).await, "NotFound");
    assert_eq!(reason(&urls[0], "main", "no/such/folder", &limits()).await, "NotFound");
    assert_eq!(reason(&urls[1].replace("repo", "none"), "", "", &limits()).await, "NotFound");
    assert_eq!(reason(&urls[0].replace("repo", "none"), "", "", &limits()).await, "Refused");
    assert_eq!(reason("git://127.0.0.1:1/repo", "", "", &limits()).await, "Unreachable");
    assert_eq!(reason(&urls[1], "main", "", &Limits::default()).await, "Refused");
    assert_eq!(reason("ext::sh -c id", "main", "", &limits()).await, "BadReference");
    assert_eq!(reason("https://u:p@example.com/x", "main", "", &limits()).await, "BadReference");
    for reference in ["--upload-pack=id", "a b", "a..b", "+main", "main:main", "HEAD@{1}"] {
        assert_eq!(reason(&urls[0], reference, "", &limits()).await, "BadReference", "{reference}");
    }
    assert_eq!(reason(&urls[0], "main", "../..", &limits()).await, "BadReference");
    let few = Limits { unpacked_bytes: 3, ..limits() };
    assert_eq!(reason(&urls[0], "main", "", &few).await, "TooLarge");
    assert!(!format!("{:?}", git(&urls[0], "", "")).contains("pa55word"));
}

#[tokio::test]
async fn a_repository_runs_nothing_and_leads_nowhere() {
    let base = TempDir::new().unwrap();
    let repo = base.path().join("repo");
    repository(&repo);
    std::os::unix::fs::symlink("/etc/passwd", repo.join("out")).unwrap();
    run_git(&repo, &["add", "."]);
    run_git(&repo, &["commit", "--quiet", "-m", "out"]);
    let url = format!("file://{}", repo.display());
    assert_eq!(fetch(git(&url, "main", ""), &limits()).await.unwrap_err().reason(), "Unsafe");
    std::os::unix::fs::symlink("/etc", repo.join("etc")).unwrap();
    run_git(&repo, &["add", "."]);
    run_git(&repo, &["commit", "--quiet", "-m", "etc"]);
    for path in ["etc", "etc/ssl", ".git", ".git/objects"] {
        let error = fetch(git(&url, "main", path), &limits()).await.unwrap_err();
        assert_eq!(error.reason(), "Unsafe", "{path}: {error}");
    }
    let (_, around) = fetch(git(&url, "main", "functions"), &limits()).await.unwrap();
    assert_eq!(text(&around, "hello/index.js"), "second");
}

/// Also a transfer that arrives faster than the check, in few objects.
#[tokio::test]
async fn a_transfer_is_bounded_however_few_objects_it_has() {
    let base = TempDir::new().unwrap();
    repository(base.path());
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(200_000)
    .collect();
    fs::write(base.path().join("noise"), noise).unwrap();
    run_git(base.path(), &["add", "."]);
    run_git(base.path(), &["commit", "--quiet", "-m", "noise"]);
    let source = || git(&format!("file://{}", base.path().display()), "main", "");
    let small = Limits { transfer_bytes: 100_000, ..limits() };
    assert_eq!(fetch(source(), &small).await.unwrap_err().reason(), "TooLarge");
    fetch(source(), &limits()).await.unwrap();
}

#[tokio::test]
async fn a_password_is_given_to_its_host_when_that_asks() {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/repo", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 8192];
            let count = stream.read(&mut request).unwrap();
            let request = String::from_utf8_lossy(&request[..count]).into_owned();
            let asked = request.lines().find(|line| line.starts_with("Authorization:")).map(String::from);
            let status = if asked.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
            stream.write_all(&http(status, "WWW-Authenticate: Basic realm=\"x\"\r\n", b"")).unwrap();
            if let Some(authorization) = asked {
                return authorization;
            }
        }
    });
    let error = fetch(git(&url, "main", ""), &limits()).await.unwrap_err();
    assert_eq!(error.reason(), "Refused", "{error}");
    assert!(!error.to_string().contains("pa55word"));
    assert_eq!(server.join().unwrap(), "Authorization: Basic dTpwYTU1d29yZA==");
}

/// One name, always at loopback.
struct AtLoopback;

impl Names for AtLoopback {
    fn look_up<'a>(&'a self, _: &'a str, port: u16) -> Found<'a> {
        Box::pin(async move { Ok(vec![([127, 0, 0, 1], port).into()]) })
    }
}

fn guarded(allow: &[&str]) -> Limits {
    let allow = allow.iter().map(|cidr| Allow { network: cidr.parse().unwrap(), namespaces: Vec::new() });
    let settings = Settings { allow: allow.collect(), ports: Vec::new() };
    let reach = Guard::with_names(settings, Arc::new(AtLoopback)).reach("shop");
    Limits { reach, ..limits() }
}

/// Answers every request alike, and returns the hosts that were asked for.
fn recording(answer: Vec<u8>) -> (u16, Arc<Mutex<Vec<String>>>) {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hosts: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = hosts.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 8192]);
            let count = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..count]).to_lowercase();
            let host = request.lines().find_map(|line| line.strip_prefix("host: "));
            seen.lock().unwrap().push(host.unwrap_or_default().to_owned());
            let _ = stream.write_all(&answer);
        }
    });
    (port, hosts)
}

#[tokio::test]
async fn a_repository_is_fetched_from_the_address_that_was_checked() {
    let (elsewhere, reached) = recording(http("404 Not Found", "", b""));
    let moved = format!("Location: http://127.0.0.1:{elsewhere}/repo/info/refs\r\n");
    let (port, hosts) = recording(http("302 Found", &moved, b""));
    let reason = async |url: &str, limits: &Limits| {
        fetch(git(&url.replace("PORT", &port.to_string()), "main", ""), limits).await.unwrap_err().reason()
    };
    let closed = guarded(&[]);
    for url in [
        "http://127.0.0.1:PORT/repo",
        "http://0x7f.1:PORT/repo",
        "http://repo.example:PORT/repo",
        "https://repo.example:PORT/repo",
        "ssh://git@repo.example:PORT/repo",
        "git@repo.example:repo",
        "git@127.0.0.1:repo",
        "git://8.8.8.8/repo",
        "http://%31%32%37.0.0.1:PORT/repo",
        "http://repo.example.:PORT/repo",
    ] {
        assert_eq!(reason(url, &closed).await, "Forbidden", "{url}");
    }
    for url in ["http://127.0.0.1:PORT?@8.8.8.8/repo", "http://127.0.0.1:PORT\\@8.8.8.8/repo"] {
        assert_eq!(reason(url, &closed).await, "BadReference", "{url}");
    }
    assert_eq!(hosts.lock().unwrap().len(), 0, "nothing was called");
    // No name service of the machine knows this name: only the pinned address can be called.
    let open = guarded(&["127.0.0.1"]);
    assert_eq!(reason("http://repo.example:PORT/repo", &open).await, "NotFound", "a redirect");
    assert_eq!(*hosts.lock().unwrap(), [format!("repo.example:{port}")]);
    assert_eq!(
        reason("http://127.0.0.1:PORT/repo", &limits()).await,
        "NotFound",
        "a redirect without a guard"
    );
    assert_eq!(reached.lock().unwrap().len(), 0, "a redirect was followed");
}

#[tokio::test]
async fn a_bucket_is_read_from_the_address_that_was_checked() {
    let (elsewhere, reached) = recording(http("404 Not Found", "", b""));
    let moved = format!("Location: http://127.0.0.1:{elsewhere}/b/k\r\n");
    let (port, hosts) = recording(http("302 Found", &moved, b""));
    let object = |host: &str| {
        let (bucket, key, endpoint) =
            ("bucket".into(), "k.zip".into(), Some(format!("http://{host}:{port}")));
        let (region, credentials) = (None, Credentials::None);
        Source::Object(Object { store: Store::Minio, bucket, key, endpoint, region, credentials })
    };
    for host in ["127.0.0.1", "127.1", "bucket.example", "[::1]"] {
        let error = fetch(object(host), &guarded(&[])).await.unwrap_err();
        assert_eq!(error.reason(), "Forbidden", "{host}: {error}");
    }
    assert_eq!(hosts.lock().unwrap().len(), 0, "nothing was called");
    assert!(fetch(object("bucket.example"), &guarded(&["127.0.0.1"])).await.is_err());
    assert_eq!(hosts.lock().unwrap()[0], format!("bucket.example:{port}"));
    assert_eq!(reached.lock().unwrap().len(), 0, "a redirect was followed");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left_after_the_time_limit() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("git://{}/repo", silent.local_addr().unwrap());
    let short = Limits { time: Duration::from_millis(200), ..limits() };
    assert_eq!(fetch(git(&url, "", ""), &short).await.unwrap_err().reason(), "Timeout");
}

fn zip_of(content: &str) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file("index.js", zip::write::SimpleFileOptions::default()).unwrap();
    writer.write_all(content.as_bytes()).unwrap();
    writer.finish().unwrap().into_inner()
}

/// Another S3 implementation, if it is installed: `pip install 'moto[server]'`, or its path in the variable.
fn moto() -> Option<(Server, u16)> {
    let program = std::env::var("KLAMBDA_TEST_MOTO").unwrap_or_else(|_| "moto_server".into());
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server(command.spawn().ok()?);
    until_listening(port);
    Some((server, port))
}

async fn put(port: u16, path: &str, body: &[u8]) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let authorization =
        "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn object(port: u16, bucket: &str, key: &str, credentials: Credentials) -> Source {
    let endpoint = Some(format!("http://127.0.0.1:{port}"));
    let (bucket, key) = (bucket.into(), key.into());
    Source::Object(Object { store: Store::Minio, bucket, key, endpoint, region: None, credentials })
}

#[tokio::test]
async fn archives_are_fetched_from_a_bucket() {
    let Some((_server, port)) = moto() else {
        eprintln!("skipped: moto_server is not installed");
        return;
    };
    put(port, "/code", b"").await;
    put(port, "/code/hello.zip", &zip_of("hello")).await;
    put(port, "/code/not.zip", b"something else").await;
    let key = || Credentials::AccessKey { id: "k".into(), secret: "pa55word".into(), session_token: None };
    let (fetched, around) = fetch(object(port, "code", "hello.zip", key()), &limits()).await.unwrap();
    assert_eq!(text(&around, "index.js"), "hello");
    assert!(fetched.revision.is_some_and(|tag| !tag.is_empty()));
    let reason = async |source: Source, limits: &Limits| fetch(source, limits).await.unwrap_err().reason();
    assert_eq!(reason(object(port, "code", "none.zip", key()), &limits()).await, "NotFound");
    assert_eq!(reason(object(port, "nowhere", "hello.zip", key()), &limits()).await, "NotFound");
    assert_eq!(reason(object(port, "code", "not.zip", key()), &limits()).await, "BadArchive");
    assert_eq!(reason(object(port, "code", "a//b", key()), &limits()).await, "BadReference");
    let small = Limits { transfer_bytes: 20, ..limits() };
    assert_eq!(reason(object(port, "code", "hello.zip", key()), &small).await, "TooLarge");
}

/// Sends this response to every request.
fn answering(answer: Vec<u8>) -> u16 {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 8192]);
            let _ = stream.write_all(&answer);
        }
    });
    port
}

fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut answer =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n")
            .into_bytes();
    answer.extend_from_slice(body);
    answer
}

#[tokio::test]
async fn what_a_bucket_answers_becomes_a_reason() {
    let headers = "ETag: \"tag\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let good = answering(http("200 OK", headers, &zip_of("hello")));
    let (fetched, around) = fetch(object(good, "b", "k.zip", Credentials::None), &limits()).await.unwrap();
    assert_eq!((text(&around, "index.js").as_str(), fetched.revision.as_deref()), ("hello", Some("\"tag\"")));
    let denied = answering(http("403 Forbidden", "", b"<Error><Code>AccessDenied</Code></Error>"));
    let error = fetch(object(denied, "b", "k.zip", Credentials::None), &limits()).await.unwrap_err();
    assert_eq!(error.reason(), "Refused");
    let error = fetch(object(1, "b", "k.zip", Credentials::None), &limits()).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    let nowhere = Object {
        store: Store::Minio,
        bucket: "b".into(),
        key: "k".into(),
        endpoint: None,
        region: None,
        credentials: Credentials::None,
    };
    assert_eq!(fetch(Source::Object(nowhere), &limits()).await.unwrap_err().reason(), "BadReference");
}

#[tokio::test]
async fn google_cloud_storage_is_read_by_its_own_protocol() {
    let headers = "ETag: \"tag\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
    let port = answering(http("200 OK", headers, &zip_of("hello")));
    let object = Object {
        store: Store::Gcs,
        bucket: "b".into(),
        key: "k.zip".into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: None,
        credentials: Credentials::None,
    };
    let (_, around) = fetch(Source::Object(object), &limits()).await.unwrap();
    assert_eq!(text(&around, "index.js"), "hello");
}
