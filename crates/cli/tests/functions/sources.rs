//! Fetched code: from a bucket with a secret, and from a server that refuses.

use crate::support::process::{Process, agent};
use crate::support::{eventually, free_port, repository};
use crate::world::{NODE_HELLO, World, conditions, node};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

const SECRET: &str = "pa55word";

/// A folder of secrets with one in it, and the server that knows it.
fn with_secret() -> (tempfile::TempDir, World) {
    let secrets = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(secrets.path().join("default/keys")).expect("a folder");
    for (key, value) in
        [("accessKey", "ada"), ("secretKey", SECRET), ("username", "ada"), ("password", SECRET)]
    {
        std::fs::write(secrets.path().join("default/keys").join(key), value).expect("written");
    }
    let world = World::with(vec![
        ("KLAMBDA_FUNCTIONS_SECRETS", secrets.path().display().to_string()),
        ("KLAMBDA_FUNCTIONS_TRIES_WITHIN", "1s".into()),
    ]);
    (secrets, world)
}

/// Answers every request with this, and says where. Ends with the test's process.
fn answering(status: &'static str, body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 8192]);
            let head = format!(
                "HTTP/1.1 {status}\r\nETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
                 WWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&body);
        }
    });
    format!("http://{address}")
}

fn git(url: &str, secret: Option<&str>) -> Value {
    let mut spec = json!({ "source": { "type": "git", "git": { "url": format!("{url}/shop.git") } },
        "runtime": { "language": "nodejs", "handler": "index.handler" } });
    if let Some(name) = secret {
        spec["source"]["git"]["secretRef"] = json!({ "name": name });
    }
    spec
}

fn bucket(endpoint: &str, key: &str) -> Value {
    json!({ "source": { "type": "minio", "minio": { "endpoint": endpoint, "bucket": "code", "key": key,
        "secretRef": { "name": "keys" } } }, "runtime": { "language": "nodejs", "handler": "index.handler" } })
}

/// An archive of a folder, as `tar` makes it from these words.
fn tar(folder: &Path, words: &[&str]) -> Vec<u8> {
    let made = Command::new("tar").current_dir(folder).args(["-czf", "-"]).args(words).output().expect("tar");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    made.stdout
}

#[test]
fn what_cannot_be_fetched_says_why() {
    let (_secrets, world) = with_secret();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("index.js"), NODE_HELLO).expect("written");
    std::os::unix::fs::symlink("/etc/passwd", folder.path().join("out")).expect("a link");
    let refuses = answering("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>".to_vec());
    let lacks = answering("404 Not Found", Vec::new());
    let escapes = answering("200 OK", tar(folder.path(), &["--transform=s,^,../,", "-P", "index.js"]));
    let links_out = answering("200 OK", tar(folder.path(), &["index.js", "out"]));
    let nonsense = answering("200 OK", b"no archive at all".to_vec());
    let linked = json!({ "source": { "type": "folder", "folder": { "path": folder.path() } },
        "runtime": { "language": "nodejs" } });
    let cases = [
        ("folder-links-out", linked, "SourceUnsafe"),
        ("git-refused", git(&refuses, Some("keys")), "SourceRefused"),
        ("git-lacks", git(&lacks, None), "SourceNotFound"),
        ("git-no-secret", git(&refuses, Some("none")), "SecretNotFound"),
        ("bucket-refused", bucket(&refuses, "f.zip"), "SourceRefused"),
        ("bucket-lacks", bucket(&lacks, "f.zip"), "SourceNotFound"),
        ("archive-escapes", bucket(&escapes, "f.tar.gz"), "ArchiveRefused"),
        ("archive-links-out", bucket(&links_out, "f.tar.gz"), "ArchiveRefused"),
        ("archive-nonsense", bucket(&nonsense, "f.zip"), "ArchiveRefused"),
    ];
    for (name, spec, _) in &cases {
        world.apply(name, spec);
    }
    world.apply("fine", &node(NODE_HELLO));
    world.ready("fine");
    for (name, _, reason) in &cases {
        let seen = world.failed(name, reason);
        let said = conditions(&seen).into_iter().find(|one| one["reason"] == *reason).expect("it");
        let message = said["message"].as_str().unwrap_or_default();
        assert!(message.len() > 60 && !message.contains(SECRET), "{name}: {message}");
    }
    let log = std::fs::read_to_string(world.folder.path().join("serve.log")).expect("a log");
    assert!(!log.contains(SECRET), "{log}");
}

/// An S3 of another make, where it is installed: `pip install 'moto[server]'`.
fn moto(folder: &Path) -> Option<(Process, String)> {
    let testbed = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
    let beside = testbed.unwrap_or_else(|| repository().join("target/testbed")).join("venv/bin/moto_server");
    let program = if beside.exists() { beside } else { "moto_server".into() };
    Command::new(&program).arg("--help").output().ok().filter(|done| done.status.success())?;
    let port = free_port().to_string();
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port]);
    let process = Process::start(&mut command, &folder.join("moto.log"));
    eventually("the bucket's server listens", || {
        std::net::TcpStream::connect(format!("127.0.0.1:{port}"))
            .map(drop)
            .map_err(|error| format!("{error} {}", process.printed()))
    });
    Some((process, format!("http://127.0.0.1:{port}")))
}

fn upload(url: &str, body: &[u8]) {
    let signed =
        "AWS4-HMAC-SHA256 Credential=ada/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x";
    let answered = agent().put(url).header("authorization", signed).send(body).expect("an answer");
    assert_eq!(answered.status(), 200, "{url}");
}

#[test]
fn an_archive_comes_from_a_bucket() {
    let (_secrets, world) = with_secret();
    let Some((_moto, endpoint)) = moto(world.folder.path()) else {
        println!("not run: there is no moto_server (pip install 'moto[server]')");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("index.js"), NODE_HELLO).expect("written");
    upload(&format!("{endpoint}/code"), b"");
    upload(&format!("{endpoint}/code/hello.tar.gz"), &tar(folder.path(), &["index.js"]));
    let (status, body) =
        world.post("/api/v1/lambda/functions", &json!({ "spec": bucket(&endpoint, "hello.tar.gz") }));
    assert_eq!((status, &body["name"]), (202, &json!("hello")), "named after its archive: {body}");
    world.ready("hello");
    assert_eq!(world.invoke("hello", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    world.apply("none", &bucket(&endpoint, "none.tar.gz"));
    world.failed("none", "SourceNotFound");
    assert!(!world.function("hello").to_string().contains(SECRET));
}

/// A package's `setup.py` may start anything, and here it does all it can to get away.
#[test]
fn what_a_build_starts_and_leaves_is_ended_with_it() {
    let world = World::new();
    let folder = world.folder.path().join("code");
    std::fs::create_dir_all(folder.join("mine")).expect("made");
    let pids = world.folder.path().join("pids");
    let setup = format!(
        "import os, subprocess\n\
         from setuptools import setup\n\
         quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n\
         left = subprocess.Popen(['sleep', '600'], env={{'PATH': os.environ['PATH']}}, start_new_session=True, **quiet)\n\
         open({pids:?}, 'a').write('%d\\n' % left.pid)\n\
         setup(name='mine', version='1', py_modules=['mine'])\n"
    );
    std::fs::write(folder.join("mine/setup.py"), setup).expect("written");
    std::fs::write(folder.join("mine/mine.py"), "N = 7\n").expect("written");
    std::fs::write(folder.join("requirements.txt"), "./mine\n").expect("written");
    let code = "import mine\n\n\ndef handler(event, context):\n    return {'n': mine.N}\n";
    std::fs::write(folder.join("index.py"), code).expect("written");
    let mut spec = json!({ "source": { "type": "folder", "folder": { "path": folder } },
        "runtime": { "language": "python", "handler": "index.handler" } });
    world.apply("f", &spec);
    let seen = world.failed("f", "DependencyNotFound");
    assert!(seen.to_string().contains("build.allowSourceDistributions"), "{seen:#}");
    assert!(!pids.exists(), "without leave nothing of it runs");

    spec["build"] = json!({ "allowSourceDistributions": true });
    world.apply("f", &spec);
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({})), (200, json!({ "n": 7 })));
    let left = std::fs::read_to_string(&pids).expect("it ran");
    let is_alive = |pid: &&str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    assert_eq!(left.lines().filter(is_alive).collect::<Vec<_>>(), Vec::<&str>::new());
}
