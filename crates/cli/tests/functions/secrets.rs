//! Stored secrets through the real binary: used at once, changed, encrypted with new keys, restored without them.

use crate::support::process::{Process, wait_until_ready};
use crate::support::{KLAMBDA, eventually, free_port};
use crate::world::{World, conditions, node};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const ONE: &str = "hush-one";
const TWO: &str = "hush-two";

/// Returns the values that it got.
const CODE: &str = "const fs = require('fs'); exports.handler = () => ({ token: process.env.TOKEN, \
    cert: fs.readFileSync(process.env.KLAMBDA_SECRETS + '/tls/cert.pem', 'utf8'), folder: process.env.KLAMBDA_SECRETS });";

fn spec() -> Value {
    let mut spec = node(CODE);
    spec["env"] =
        json!([{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "db", "key": "token" } } }]);
    spec["secretFiles"] = json!([{ "secret": "tls" }]);
    spec
}

impl World {
    fn klambda(&self, words: &[&str]) -> (bool, String) {
        let mut command = Command::new(KLAMBDA);
        let done =
            command.args(words).env("KLAMBDA_SERVER", &self.url).current_dir(self.folder.path()).output();
        let done = done.expect("klambda");
        let text =
            [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (done.status.success(), text)
    }

    fn set(&self, name: &str, value: &str) {
        let (is_done, told) = self.klambda(&["secret", "set", name, value]);
        assert!(is_done, "{told}");
    }

    /// Waits until this condition says so, and answers its message.
    fn said(&self, name: &str, kind: &str, reason: &str) -> String {
        let is_it = |one: &&Value| one["type"] == kind && one["reason"] == reason;
        let seen = self.until(name, &format!("{kind} is {reason}"), |seen| {
            conditions(seen).iter().any(|one| is_it(&one))
        });
        let all = conditions(&seen);
        all.iter().find(is_it).and_then(|one| one["message"].as_str()).unwrap_or_default().to_owned()
    }

    fn answers_with(&self, token: &str) -> Value {
        eventually(&format!("it answers with {token}"), || match self.invoke("f", &json!({})) {
            (200, answer) if answer["token"] == token => Ok(answer),
            other => Err(format!("{other:?}")),
        })
    }

    fn key_file(&self) -> PathBuf {
        self.folder.path().join("data/secrets.key")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("serve.log")).expect("a log")
    }

    fn end(&mut self, signal: Signal) {
        let process = self.process.take().expect("a server");
        process.signal(signal);
        process.wait();
    }
}

#[test]
fn a_secret_is_used_at_once() {
    let world = World::new();
    world.apply("f", &spec());
    let message = world.said("f", "DeployReady", "SecretNotFound");
    assert!(
        message.contains("Variable TOKEN needs secret db")
            && message.contains("`klambda secret set db token=VALUE`")
    );
    world.set("db", &format!("token={ONE}"));
    let message =
        eventually("it asks for the files", || match world.said("f", "DeployReady", "SecretNotFound") {
            message if message.contains("secret tls") => Ok(message),
            other => Err(other),
        });
    assert!(message.contains("`klambda secret set tls KEY=VALUE`"), "{message}");
    std::fs::write(world.folder.path().join("cert.pem"), "a certificate\n").expect("written");
    let (is_done, told) = world.klambda(&["secret", "set", "tls", "--from-file", "cert.pem"]);
    assert!(is_done && told == "secret/tls created\n", "{told}");
    world.ready("f");
    let answer = world.answers_with(ONE);
    assert_eq!(answer["cert"], "a certificate\n");
    let folder = PathBuf::from(answer["folder"].as_str().expect("a folder"));
    let mode = |path: &PathBuf| std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("tls/cert.pem"))), (0o700, 0o600));

    // A change rolls out, and nothing is built for it.
    world.set("db", &format!("token={TWO}"));
    world.answers_with(TWO);
    eventually("the files go with their replica", || {
        if folder.exists() { Err("they exist".into()) } else { Ok(()) }
    });
    assert_eq!(world.events("lambda.build.*").len(), 2);
    assert_eq!(world.get("/api/v1/secrets/db").1["usedBy"], json!(["function/f"]));

    let (is_done, told) = world.klambda(&["secret", "delete", "db", "--yes"]);
    assert!(
        !is_done
            && told.contains(
                "function/f uses secret db: change the function first, or use `klambda secret delete --force`"
            ),
        "{told}"
    );
    assert!(world.klambda(&["secret", "delete", "db", "--force", "--yes"]).0);
    world.said("f", "DeployReady", "SecretNotFound");
    world.answers_with(TWO);
    let events = world.get("/api/v1/events?limit=1000").1.to_string();
    let audit = world.get("/api/v1/audit?limit=1000").1.to_string();
    for shown in [events, audit, world.function("f").to_string(), world.log()] {
        assert!(!shown.contains("hush-") && !shown.contains("certificate\\n"), "{shown}");
    }
}

#[test]
fn credentials_of_a_source_are_taken_at_once() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_TRIES_WITHIN", "1s".into())]);
    let source = json!({ "type": "git", "git": { "url": format!("http://127.0.0.1:{}/shop.git", free_port()),
        "secretRef": { "name": "git" } } });
    world.apply("f", &json!({ "source": source, "runtime": { "language": "nodejs" } }));
    let message = world.said("f", "SourceReady", "SecretNotFound");
    assert!(message.contains("`klambda secret set git password=VALUE`"), "{message}");
    world.set("git", "username=ada");
    let message =
        eventually("it knows the secret", || match world.said("f", "SourceReady", "SecretNotFound") {
            message if message.contains("key password of secret git") => Ok(message),
            other => Err(other),
        });
    assert!(!message.contains("ada"), "{message}");
    world.set("git", &format!("password={ONE}"));
    world.said("f", "SourceReady", "SourceUnreachable");
    assert!(!world.function("f").to_string().contains(ONE) && !world.log().contains(ONE));
}

/// A value is written again: `unchanged` says that the server could open the stored one.
fn assert_all_are_readable(world: &World, count: usize) {
    for n in 0..count {
        let body = json!({ "data": { "k": format!("value {n}") } });
        let (status, answer) = world.put(&format!("/api/v1/secrets/s{n}"), &body);
        assert_eq!(
            (status, &answer["change"], &answer["version"]),
            (200, &json!("unchanged"), &json!(1)),
            "{answer}"
        );
    }
}

fn keys_in(file: &PathBuf) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a key file");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Waits for a new key without pausing: the change takes only milliseconds from here, and a kill is to meet it.
fn await_longer(file: &PathBuf, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while keys_in(file).len() <= count {
        assert!(Instant::now() < deadline, "no new key in the file");
        std::thread::yield_now();
    }
}

#[test]
fn a_change_of_keys_survives_kills() {
    const SECRETS: usize = 120;
    let mut world = World::new();
    for n in 0..SECRETS {
        let body = json!({ "data": { "k": format!("value {n}") } });
        assert_eq!(world.put(&format!("/api/v1/secrets/s{n}"), &body).0, 201);
    }
    let first = keys_in(&world.key_file());
    let mut caught = 0;
    for wait_ms in [0, 2, 0, 4, 0, 8, 0, 16, 0, 1, 0, 1, 0, 1, 0, 1] {
        let url = format!("{}/api/v1/secrets/rekey", world.url);
        std::thread::spawn(move || crate::support::process::agent().post(url).send_empty());
        let before = keys_in(&world.key_file());
        await_longer(&world.key_file(), before.len());
        std::thread::sleep(Duration::from_millis(wait_ms));
        world.end(Signal::KILL);
        assert!(keys_in(&world.key_file()).ends_with(&before), "old keys stay for backups");
        world.start();
        assert_all_are_readable(&world, SECRETS);
        caught += usize::from(world.log().contains("Interrupted change of the key"));
        if caught >= 3 {
            break;
        }
    }
    assert!(caught > 0, "no kill met a change of keys");
    assert_all_are_readable(&world, SECRETS);
    assert_ne!(keys_in(&world.key_file())[0], first[0]);
}

#[test]
fn a_copy_without_its_key_serves_the_rest() {
    let mut world = World::new();
    let mut code = node("exports.handler = () => ({ token: process.env.TOKEN });");
    world.apply("plain", &code);
    code["env"] = spec()["env"].clone();
    world.apply("f", &code);
    world.set("db", &format!("token={ONE}"));
    world.ready("f");
    for (words, has_key) in [(&["backup", "one"][..], false), (&["backup", "two", "--with-key"], true)] {
        let (is_done, told) = world.klambda(words);
        assert!(is_done, "{told}");
        assert_eq!(world.folder.path().join(words[1]).join("secrets.key").exists(), has_key);
    }
    let mode =
        std::fs::metadata(world.folder.path().join("two/secrets.key")).expect("it").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(world.klambda(&["backup", "three.tar", "--with-key"]).0);
    let mode =
        |name: &str| std::fs::metadata(world.folder.path().join(name)).expect("it").permissions().mode();
    assert_eq!(
        (mode("three.tar") & 0o777, mode("two") & 0o777),
        (0o600, 0o700),
        "only the owner can read keys"
    );
    let audit = world.klambda(&["get", "audit", "-A", "-o", "json"]).1;
    assert_eq!(audit.matches("\"kind\": \"backup\"").count(), 2, "an export of keys is a change: {audit}");

    world.end(Signal::TERM);
    let key = std::fs::read(world.key_file()).expect("a key");
    std::fs::remove_file(world.key_file()).expect("removed");
    world.start();
    let log = world.log();
    assert!(log.contains("Secret cannot be read") && log.contains("secret=\"db\""), "{log}");
    let message = world.said("f", "DeployReady", "SecretUnreadable");
    assert!(message.contains("`klambda secret set db token=VALUE`"), "{message}");
    world.ready("plain");
    assert_eq!(world.invoke("plain", &json!({})).0, 200);
    assert_eq!(world.get("/api/v1/secrets/db").1["unreadable"], json!(["token"]));
    let (_, told) = world.klambda(&["secret", "rekey"]);
    assert!(told.contains("default/db cannot be read"), "{told}");
    world.set("db", &format!("token={TWO}"));
    world.ready("f");
    world.answers_with(TWO);

    // The copy that has its key is whole.
    world.end(Signal::TERM);
    std::fs::rename(world.folder.path().join("data"), world.folder.path().join("old")).expect("moved");
    std::fs::rename(world.folder.path().join("two"), world.folder.path().join("data")).expect("moved");
    assert_eq!(std::fs::read(world.key_file()).expect("a key"), key);
    world.start();
    world.ready("f");
    world.answers_with(ONE);
}

#[test]
fn keys_that_cannot_be_used_are_refused_at_the_start() {
    let mut world = World::new();
    world.set("db", "token=one");
    world.end(Signal::TERM);
    let key = keys_in(&world.key_file()).concat();
    let start = |settings: &[(&str, &str)]| {
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(world.folder.path().join("data"));
        let done = command.envs(settings.iter().copied()).output().expect("klambda");
        assert!(!done.status.success());
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    std::fs::set_permissions(world.key_file(), PermissionsExt::from_mode(0o644)).expect("changed");
    let told = start(&[]);
    assert!(told.contains("can be read by other users (mode 0644): run `chmod 600 "), "{told}");
    let told = start(&[("KLAMBDA_SECRETS_KEY", "hush-hush")]);
    assert!(told.contains("KLAMBDA_SECRETS_KEY cannot be used") && !told.contains("hush"), "{told}");
    let told = start(&[("KLAMBDA_SECRETS_KEY", &key), ("KLAMBDA_SECRETS_KEY_FILE", "x")]);
    assert!(told.contains("remove one of them"), "{told}");

    // The variable has the key, so the file is not read. A second key in it can be changed to.
    let address = format!("127.0.0.1:{}", free_port());
    let serve = |keys: &str| {
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", &address, "--data"]).arg(world.folder.path().join("data"));
        let mut process =
            Process::start(command.env("KLAMBDA_SECRETS_KEY", keys), &world.folder.path().join("serve.log"));
        wait_until_ready(&format!("http://{address}"), &mut process);
        process
    };
    let ask = |words: &[&str]| {
        let done =
            Command::new(KLAMBDA).args(words).env("KLAMBDA_SERVER", format!("http://{address}")).output();
        let done = done.expect("klambda");
        [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
    };
    let process = serve(&key);
    assert_eq!(ask(&["secret", "set", "db", "token=one"]), "secret/db unchanged\n");
    assert!(ask(&["secret", "rekey"]).contains("put a new key before the old one"));
    process.stop();
    let new = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let process = serve(&format!("{new},{key}"));
    assert!(ask(&["secret", "rekey"]).starts_with("1 secret encrypted with the new key "));
    process.stop();
    let process = serve(new);
    assert_eq!(ask(&["secret", "set", "db", "token=one"]), "secret/db unchanged\n");
    process.stop();
}
