//! Contexts, exports, live views and TLS errors of the command line, against a real server.

mod support;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::process::{Process, Receiver, Server};
use support::shell::{Shell, text};
use support::{KLAMBDA, eventually, free_port};
use tempfile::TempDir;

/// A subscription whose lane `bad` is parked: its first event is a dead letter.
fn parked() -> (Shell, Receiver) {
    let shell = Shell::new();
    let receiver = Receiver::start(shell.path(), &["--fail-key", "bad"]);
    let manifest = format!(
        "apiVersion: lambda.knative.io/v1alpha1\nkind: Subscription\nmetadata: {{name: orders}}\nspec:\n  ordering: ordered\n  filters: [{{prefix: {{type: order.}}}}]\n  \
         retry: {{attempts: 1}}\n  target: {{url: {}}}\n",
        receiver.url
    );
    shell.ok(&["apply", "-f", &shell.write("orders.yaml", &manifest)]);
    let big = r#"{"n": 12345678901234567890123}"#;
    shell.ok(&["event", "send", "--type", "order.paid", "--key", "bad", "--id", "b1", "--data", big]);
    shell.ok(&["event", "send", "--type", "order.paid", "--key", "bad", "--id", "b2"]);
    shell.ok(&["event", "send", "--type", "order.paid", "--key", "good", "--id", "g1", "--data", "hello"]);
    eventually("a dead letter", || match shell.ok(&["dlq", "list", "-o", "name"]) {
        none if none.is_empty() => Err(shell.server.process.printed()),
        _ => Ok(()),
    });
    (shell, receiver)
}

#[test]
fn contexts_name_servers_and_keep_their_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let admin = folder.path().join("admin");
    std::fs::write(&admin, "s3cret\n").expect("written");
    let admin = admin.to_string_lossy().into_owned();
    let server = Server::with(folder.path(), &[("KLAMBDA_TOKEN_FILE", &admin)]);
    let config = folder.path().join("config");
    let run = |words: &[&str], stdin: &str| -> Output {
        let mut command = Command::new(KLAMBDA);
        command.args(words).env("KLAMBDA_CONFIG_DIR", &config).env_remove("KLAMBDA_SERVER");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("klambda");
        child.stdin.take().expect("stdin").write_all(stdin.as_bytes()).expect("written");
        let output = child.wait_with_output().expect("an end");
        for part in [&output.stdout, &output.stderr] {
            assert!(!text(part).contains("s3cret"), "{words:?} prints the token");
        }
        output
    };
    let ok = |words: &[&str]| {
        let output = run(words, "");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };

    let (added, warned) = ok(&["context", "add", "prod", "--server", &server.url, "--token-file", &admin]);
    assert_eq!(added, "context/prod added; it is the current context now\n");
    assert!(warned.contains("other users can read") && warned.contains("chmod 600"), "{warned}");
    let (status, warned) = ok(&["status"]);
    assert!(status.contains(&server.url) && warned.is_empty(), "{status}{warned}");
    let mode = |file: PathBuf| std::fs::metadata(file).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(config.join("tokens/prod")), 0o600);
    assert_eq!((mode(config.join("tokens")), mode(config.clone())), (0o700, 0o700));

    assert_eq!(run(&["context", "add", "prod", "--server", "h:1"], "").status.code(), Some(2));
    let piped = ["context", "add", "dev", "--server", "http://127.0.0.1:1", "--token-stdin", "-n", "shop"];
    assert!(run(&piped, "other\n").status.success());
    let (table, _) = ok(&["context", "list"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["CURRENT", "NAME", "SERVER", "NAMESPACE", "TOKEN"]);
    assert_eq!(rows[1], ["dev", "http://127.0.0.1:1", "shop", "yes"]);
    assert_eq!(rows[2], ["*", "prod", &server.url, "-", "yes"]);
    let shown: Value = serde_json::from_str(&ok(&["context", "show", "dev", "-o", "json"]).0).expect("JSON");
    assert_eq!((&shown["namespace"], &shown["current"]), (&"shop".into(), &false.into()));

    ok(&["context", "use", "dev"]);
    assert_eq!(run(&["status"], "").status.code(), Some(3), "nobody listens there");
    ok(&["status", "--context", "prod"]);
    // The token of a context is not for another server.
    let (other, _) = ok(&["context", "show", "--context", "prod", "-o", "name"]);
    assert_eq!(other, "context/prod\n");
    let localhost = server.url.replace("127.0.0.1", "localhost");
    let elsewhere = run(&["status", "--context", "prod", "--server", &localhost], "");
    assert!(text(&elsewhere.stderr).contains("--token-file"), "{}", text(&elsewhere.stderr));
    ok(&["status", "--context", "prod", "--server", &server.url]);

    assert_eq!(ok(&["context", "delete", "dev"]).0, "context/dev deleted; no context is current now\n");
    assert!(!config.join("tokens/dev").exists());
    let unknown = run(&["status", "--context", "dev"], "");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("contexts: prod"), "{}", text(&unknown.stderr));
}

/// Applies the subscription again with a target that accepts everything.
fn heal(shell: &Shell) -> Receiver {
    let folder = shell.path().join("healed");
    std::fs::create_dir(&folder).expect("a folder");
    let receiver = Receiver::start(&folder, &[]);
    let manifest = std::fs::read_to_string(shell.path().join("orders.yaml")).expect("the manifest");
    let start = manifest.split("target:").next().expect("text");
    let healed = format!("{start}target: {{url: {}}}\n", receiver.url);
    shell.ok(&["apply", "-f", &shell.write("orders.yaml", &healed)]);
    receiver
}

fn kill_and_start(shell: &mut Shell) {
    shell.server.process.signal(Signal::KILL);
    eventually("the server ends", || match shell.server.process.has_ended() {
        true => Ok(()),
        false => Err("it runs".to_owned()),
    });
    shell.server = Server::start(shell.path());
}

#[test]
fn an_edited_dead_letter_is_delivered_in_its_place_also_after_a_crash() {
    let (mut shell, _failing) = parked();
    let before = shell.write("before.jsonl", &shell.ok(&["dlq", "export", "--id", "orders.1"]));
    let edit = |shell: &Shell, editor: &str| {
        let done = shell.command(&["dlq", "edit", "orders.1"]).env("KLAMBDA_EDITOR", editor).output();
        let done = done.expect("klambda");
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    assert!(shell.ok(&["__complete", "--", "dlq", "edit", ""]).contains("orders.1"));
    assert_eq!(edit(&shell, "true").1, "Edit cancelled, no changes made.\n");
    let (code, _, told) = edit(&shell, "sed -i s/b1/b9/");
    assert!(code == Some(1) && told.contains("not saved, your edits are in"), "{told}");
    assert!(told.contains("must stay \"b1\""), "{told}");
    std::fs::remove_file(
        told.split("your edits are in ").nth(1).and_then(|rest| rest.split(": ").next()).expect("a path"),
    )
    .expect("the edits are kept");
    let done = edit(&shell, "sed -i s/12345678901234567890123/98765432109876543210987/");
    assert_eq!(done, (Some(0), "deadletter/orders.1 edited\n".to_owned(), String::new()));
    let (_, told) = shell.fails(&["dlq", "edit", "orders.1", "--from-file", &before]);
    assert!(told.contains("edited meanwhile"), "the export is older than the edit: {told}");
    kill_and_start(&mut shell);

    let shown = shell.ok(&["dlq", "show", "orders.1"]);
    assert!(shown.contains(", 1 edit\n") && shown.contains("Original event:"), "{shown}");
    assert!(shell.ok(&["describe", "lane", "orders/bad"]).contains(", 1 edit\n"));
    let exported = shell.ok(&["dlq", "export", "--id", "orders.1"]);
    assert!(exported.contains("98765432109876543210987") && exported.contains("\"edits\":1"), "{exported}");
    assert!(!shell.ok(&["event", "show", "b1"]).contains("98765"), "the log keeps the event");

    let receiver = heal(&shell);
    kill_and_start(&mut shell);
    let report = shell.ok(&["dlq", "replay", "--id", "orders.1"]);
    assert!(report.contains("succeeded"), "{report}");
    let received = eventually("both events", || match receiver.received() {
        all if all.len() == 2 => Ok(all),
        other => Err(format!("{other:?}")),
    });
    let bodies: Vec<&Value> = received.iter().map(|line| &line["body"]).collect();
    assert_eq!([&received[0]["id"], &received[1]["id"]], ["b1", "b2"], "{received:?}");
    assert!(bodies[0].as_str().is_some_and(|body| body.contains("98765432109876543210987")), "{received:?}");
}

#[test]
fn a_corrected_event_comes_from_a_file_and_is_replayed_at_once() {
    let (shell, _failing) = parked();
    let receiver = heal(&shell);
    let exported = shell.ok(&["dlq", "export", "--id", "orders.1"]);
    let fixed = shell.write("fixed.json", &exported.replace("12345678901234567890123", "42"));
    let (code, told) = shell.fails(&["dlq", "edit", "orders.1", "--from-file", "nowhere.json"]);
    assert!(code == 2 && told.contains("nowhere.json"), "{told}");
    let (code, told) = shell.fails(&["dlq", "edit", "orders.999", "--from-file", &fixed]);
    assert!(code == 4 && told.contains("orders.999"), "{told}");
    let said = shell.ok(&["dlq", "edit", "orders.1", "--from-file", &fixed, "--replay"]);
    assert!(said.starts_with("deadletter/orders.1 edited\nReplay:") && said.contains("succeeded"), "{said}");
    let received = eventually("both events", || match receiver.received() {
        all if all.len() == 2 => Ok(all),
        other => Err(format!("{other:?}")),
    });
    assert!(received[0].to_string().contains("42") && received[1]["id"] == "b2", "{received:?}");
}

#[test]
fn a_check_opens_every_secret_with_its_key() {
    let shell = Shell::new();
    shell.ok(&["secret", "set", "db", "--from-literal", "password=hush"]);
    let data = shell.path().join("data");
    let other = tempfile::tempdir().expect("a folder");
    let stranger = Server::start(other.path());
    shell.ok(&["secret", "set", "db", "--from-literal", "password=other", "--server", &stranger.url]);
    let Shell { server, folder: _folder } = shell;
    assert!(server.process.stop().success() && stranger.process.stop().success());
    let check = |more: &[&str]| {
        let output = Command::new(KLAMBDA).arg("check").arg(&data).args(more).output().expect("klambda");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(!said.contains("hush"), "{said}");
        (output.status.code(), said)
    };
    let (code, said) = check(&[]);
    assert!(code == Some(0) && said.contains("Secrets:") && said.ends_with("\nok\n"), "{said}");
    assert!(!said.contains("not opened"), "{said}");
    let key = other.path().join("data/secrets.key");
    let (code, said) = check(&["--key-file", &key.to_string_lossy()]);
    assert!(code == Some(1) && said.contains("secret default/db cannot be read"), "{said}");
    std::fs::rename(data.join("secrets.key"), data.join("elsewhere")).expect("renamed");
    let (code, said) = check(&[]);
    assert!(code == Some(0) && said.contains("1, not opened: no key file"), "{said}");
}

#[test]
fn dead_letters_travel_as_files() {
    let (shell, receiver) = parked();
    let exported = shell.ok(&["dlq", "export", "--subscription", "orders"]);
    let line: Value = serde_json::from_str(exported.trim()).expect("one line of JSON");
    assert_eq!((&line["id"], &line["source"]), (&"b1".into(), &"/klambda".into()));
    assert_eq!((&line["deadLetter"]["key"], &line["deadLetter"]["attempts"]), (&"bad".into(), &1.into()));
    assert!(exported.contains("12345678901234567890123"), "{exported}");
    let id = line["deadLetter"]["id"].as_str().expect("an id").to_owned();
    assert!(shell.ok(&["dlq", "show", &id]).contains("\"n\":"));
    assert_eq!(shell.ok(&["dlq", "export", "--id", &id]), exported);
    assert_eq!(shell.fails(&["dlq", "export", "--id", "orders.999"]).0, 4);

    let file = shell.write("letters.jsonl", &exported);
    assert_eq!(
        shell.ok(&["dlq", "import", "-f", &file, "--dry-run"]),
        "dry run: 1 event of 1 key would be sent\n  event/b1 from /klambda\n"
    );
    let known = shell.ok(&["dlq", "import", "-f", &file]);
    assert!(known.ends_with("0 accepted, 1 skipped, 0 rejected\n"), "{known}");

    let (code, told) = shell.fails(&["dlq", "purge", "--subscription", "orders", "--holders"]);
    assert!(code == 2 && told.contains("--yes"), "{told}");
    shell.ok(&["dlq", "purge", "--subscription", "orders", "--holders", "--yes"]);

    // Another server has never seen the event.
    let other = tempfile::tempdir().expect("a folder");
    let server = Server::start(other.path());
    let arrived = shell.ok(&["dlq", "import", "-f", &file, "--server", &server.url]);
    assert!(arrived.starts_with("event/b1 accepted at position 1\n"), "{arrived}");
    let there = shell.ok(&["get", "event", "b1", "-o", "json", "--server", &server.url]);
    assert!(there.contains("\"partitionkey\": \"bad\""), "{there}");
    let raw = support::process::agent().get(format!("{}/api/v1/events?after=0", server.url)).call();
    let raw = raw.expect("events").body_mut().read_to_string().expect("text");
    assert!(raw.contains("12345678901234567890123"), "{raw}");
    drop(receiver);
}

#[test]
fn events_are_listed_newest_first_and_show_what_happened() {
    let (shell, receiver) = parked();
    let ids = |words: &[&str]| -> Vec<String> {
        let printed = shell.ok(&[words, &["-o", "name"]].concat());
        printed.lines().map(|line| line.trim_start_matches("event/").to_owned()).collect()
    };
    assert_eq!(ids(&["get", "events"]), ["g1", "b2", "b1"]);
    assert_eq!(ids(&["get", "events", "--after", "0"]), ["b1", "b2", "g1"]);
    shell.ok(&["event", "send", "--type", "other", "--id", "n", "--count", "2500"]);
    assert_eq!(ids(&["get", "events", "--limit", "3"]), ["n-2500", "n-2499", "n-2498"]);
    assert_eq!(ids(&["get", "events", "--type", "order.*"]), ["g1", "b2", "b1"]);
    let all = ids(&["get", "events", "--limit", "0"]);
    assert_eq!((all.len(), all[2499].as_str(), all[2502].as_str()), (2503, "n-1", "b1"));

    let shown = shell.ok(&["event", "show", "b1"]);
    assert!(shown.contains("deadLetter") && shown.contains("orders.1"), "{shown}");
    let good = receiver.received().into_iter().find(|line| line["id"] == "g1").expect("delivered");
    assert_eq!(good["body"], "hello");
}

#[test]
fn a_frame_of_the_live_view_and_colours() {
    let (shell, _receiver) = parked();
    let frame = shell.ok(&["top", "--once", "--interval", "200ms"]);
    for part in ["parked 1", "1 lane parked", "1 dead letter", "bad", "orders.1", "Dead letters"] {
        assert!(frame.contains(part), "{part}\nnot in\n{frame}");
    }
    assert!(!shell.ok(&["top", "--once", "--interval", "1ms", "--filter", "zzz"]).contains("> orders"));
    let (code, told) = shell.fails(&["top"]);
    assert!(code == 2 && told.contains("--once"), "{told}");

    let lanes = ["get", "lanes", "--state", "parked"];
    assert!(!shell.ok(&lanes).contains('\u{1b}'));
    let painted = shell.ok(&[&lanes[..], &["--color", "always"]].concat());
    assert!(painted.contains("\u{1b}[31mparked\u{1b}[0m"), "{painted}");
    for format in ["json", "yaml", "name"] {
        let plain = shell.ok(&[&lanes[..], &["--color", "always", "-o", format]].concat());
        assert!(!plain.contains('\u{1b}'), "{plain}");
    }
}

/// A server with a certificate of the test's making.
struct Secure {
    folder: TempDir,
    address: String,
    _process: Process,
}

impl Secure {
    fn start(certificate: &str, key: &KeyPair) -> Secure {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, pem: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, pem).expect("written");
            file
        };
        let (cert, key) = (write("cert.pem", certificate), write("key.pem", &key.serialize_pem()));
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", &address, "--data"]).arg(folder.path().join("data"));
        command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        let process = Process::start(&mut command, &folder.path().join("serve.log"));
        eventually("the server listens", || {
            std::net::TcpStream::connect(&address).map(drop).map_err(|_| process.printed())
        });
        Secure { folder, address, _process: process }
    }

    fn complains(&self, server: &str, more: &[&str]) -> String {
        let output = Command::new(KLAMBDA).args(["status", "--server", server]).args(more).output();
        let output = output.expect("klambda");
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stdout));
        text(&output.stderr)
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn cert(&self) -> String {
        self.folder.path().join("cert.pem").to_string_lossy().into_owned()
    }
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).expect("a name")
}

#[test]
fn tls_errors_say_what_is_wrong_and_which_flag_fixes_it() {
    let key = KeyPair::generate().expect("a key");
    let signed = params("127.0.0.1").self_signed(&key).expect("a certificate");
    let server = Secure::start(&signed.pem(), &key);
    let told = server.complains(&server.url(), &[]);
    assert!(
        told.contains("self-signed or comes from an unknown issuer") && told.contains("--ca-file FILE"),
        "{told}"
    );
    let cert = server.cert();
    eventually("the certificate is trusted and the server ready", || {
        let output =
            Command::new(KLAMBDA).args(["status", "--server", &server.url(), "--ca-file", &cert]).output();
        let output = output.expect("klambda");
        output.status.success().then_some(()).ok_or_else(|| text(&output.stderr))
    });
    let told = server.complains(&format!("http://{}", server.address), &[]);
    assert!(told.contains(&format!("speaks https, not http; use --server {}", server.url())), "{told}");
    let told = server.complains(&server.url().replace("127.0.0.1", "localhost"), &["--ca-file", &cert]);
    assert!(told.contains("is for 127.0.0.1, not for localhost"), "{told}");

    let other = KeyPair::generate().expect("a key");
    let stranger = server.folder.path().join("stranger.pem");
    std::fs::write(&stranger, params("h").self_signed(&other).expect("a certificate").pem())
        .expect("written");
    let told = server.complains(&server.url(), &["--ca-file", &stranger.to_string_lossy()]);
    assert!(told.contains("no certificate in") && told.contains("stranger.pem signed it"), "{told}");

    let plain = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address");
    let told = server.complains(&format!("https://{plain}"), &[]);
    assert!(told.contains("connection refused"), "{told}");
}

#[test]
fn certificates_of_authorities_and_expired_ones() {
    let key = KeyPair::generate().expect("a key");
    let mut authority = params("127.0.0.1");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let server = Secure::start(&authority.clone().self_signed(&key).expect("a certificate").pem(), &key);
    let told = server.complains(&server.url(), &["--ca-file", &server.cert()]);
    assert!(told.contains("is a self-signed CA certificate") && told.contains("CA:FALSE"), "{told}");
    assert!(!told.contains("CaUsedAsEndEntity"), "{told}");

    let issuer = CertifiedIssuer::self_signed(authority, key).expect("an issuer");
    let own = KeyPair::generate().expect("a key");
    let mut old = params("127.0.0.1");
    old.not_before = rcgen::date_time_ymd(2020, 1, 1);
    old.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let server = Secure::start(&old.signed_by(&own, &issuer).expect("a certificate").pem(), &own);
    let ca: &Path = &server.folder.path().join("ca.pem");
    std::fs::write(ca, issuer.pem()).expect("written");
    let told = server.complains(&server.url(), &["--ca-file", &ca.to_string_lossy()]);
    assert!(told.contains("certificate has expired"), "{told}");
}
