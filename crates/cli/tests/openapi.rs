//! The description of the API, against the real server: it is valid, the server answers as it says, and a client that is
//! generated from it works.
//!
//! `./test` installs the tools under `target/testbed` and runs the tests that need them.

mod support;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::process::{Server, agent};
use support::{free_port, repository};

const TOKEN: &str = "an-admin-of-the-description-tests";

struct World {
    folder: tempfile::TempDir,
    server: Server,
}

impl World {
    /// A server that requires tokens and may call this machine.
    fn start() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, TOKEN).expect("a file");
        let file = file.to_str().expect("text");
        let settings = [("KLAMBDA_TOKEN_FILE", file), ("KLAMBDA_OUTBOUND_ALLOW", "127.0.0.0/8")];
        let server = Server::with(folder.path(), &settings);
        World { folder, server }
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, ureq::http::HeaderMap, String) {
        let mut request = agent().get(format!("{}{path}", self.server.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut answer = request.call().expect("an answer");
        let body = answer.body_mut().read_to_string().expect("text");
        (answer.status().as_u16(), answer.headers().clone(), body)
    }

    /// A command of the Python tools that knows the server.
    fn python(&self) -> Command {
        let mut command = Command::new(testbed().join("venv/bin/python"));
        command.current_dir(repository().join("testbed/openapi"));
        command.env("KLAMBDA_URL", &self.server.url).env("KLAMBDA_TOKEN", TOKEN);
        command.env("KLAMBDA_NOWHERE", format!("http://127.0.0.1:{}/", free_port()));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "127.0.0.1");
        command
    }

    fn description(&self) -> PathBuf {
        let (status, _, body) = self.get("/api/v1/openapi.json", &[BEARER]);
        assert_eq!(status, 200, "{body}");
        let file = self.folder.path().join("openapi.json");
        std::fs::write(&file, body).expect("a file");
        file
    }
}

const BEARER: (&str, &str) = ("authorization", "Bearer an-admin-of-the-description-tests");

fn testbed() -> PathBuf {
    let given = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
    given.unwrap_or_else(|| repository().join("target/testbed"))
}

fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[test]
fn the_description_and_its_page_are_served() {
    let world = World::start();
    for path in ["/api/v1/openapi.json", "/api/v1/docs"] {
        assert_eq!(world.get(path, &[]).0, 401, "{path}");
        let (status, headers, body) = world.get(path, &[BEARER]);
        assert_eq!(status, 200, "{path}: {body}");
        let tag = headers["etag"].to_str().expect("text").to_owned();
        let (status, _, body) = world.get(path, &[BEARER, ("if-none-match", &tag)]);
        assert_eq!((status, body.as_str()), (304, ""), "{path}");
    }
    let document: Value =
        serde_json::from_str(&world.get("/api/v1/openapi.json", &[BEARER]).2).expect("JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let (_, headers, page) = world.get("/api/v1/docs", &[BEARER]);
    assert!(headers["content-security-policy"].to_str().expect("text").starts_with("default-src 'none';"));
    // Nothing is loaded, and nothing runs.
    for part in ["<script", "<link", "<img", "src=", "@import", "url("] {
        assert!(!page.contains(part), "{part} is in the page");
    }
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for operation in methods.as_object().expect("methods").values() {
            let anchor = format!("id=\"{}\"", operation["operationId"].as_str().expect("an id"));
            assert!(page.contains(&anchor), "{path}: {anchor} is not in the page");
        }
    }
}

#[test]
#[ignore = "needs openapi-spec-validator: ./test installs it and runs this"]
fn the_description_is_valid() {
    let world = World::start();
    let file = world.description();
    succeeds(world.python().args(["-m", "openapi_spec_validator", "--schema", "3.1"]).arg(file));
}

/// Left out: a backup copies the whole data folder each time; the answer of an invocation is that of the function.
const LEFT_OUT: [&str; 3] = ["createBackup", "invokeFunction", "invokeAgent"];
/// A rollback needs a version that served, an edit the event of its dead letter, and an acknowledgement or a resend the
/// id of an event, which the generated client has.
const ONLY_REFUSED: [&str; 5] =
    ["rollbackFunction", "rollbackAgent", "editDeadLetter", "acknowledgeWebhookEvents", "resendWebhookEvent"];

#[test]
#[ignore = "needs schemathesis: ./test installs it and runs this"]
fn the_server_answers_as_described() {
    let world = World::start();
    let file = world.description();
    succeeds(world.python().arg("seed.py"));
    let mut command = world.python();
    let seen = world.folder.path().join("seen");
    command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", ".").env("KLAMBDA_SEEN", &seen);
    command.args(["-m", "schemathesis.cli", "run", "--url", &world.server.url]).arg(&file);
    command.args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
    let checks =
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    command.args(["--checks", checks, "--phases", "examples,coverage,fuzzing"]);
    command.args([
        "--max-examples",
        "8",
        "--seed",
        "1",
        "--no-shrink",
        "--continue-on-failure",
        "--max-time",
        "75",
    ]);
    command.args([
        "--request-timeout",
        "20",
        "--generation-database",
        "none",
        "--warnings",
        "off",
        "--no-color",
    ]);
    for id in LEFT_OUT {
        command.args(["--exclude-operation-id", id]);
    }
    let said = succeeds(&mut command);
    assert!(said.contains("passed"), "{said}");
    must_have_succeeded(&file, &seen);
    assert!(!has_crashed(world.folder.path()), "{}", world.server.process.printed());
}

/// Refusals alone would say little about a route.
fn must_have_succeeded(description: &Path, seen: &Path) {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let description: Value = serde_json::from_str(&read(description)).expect("JSON");
    let seen = read(seen);
    let has_succeeded = |id: &str| seen.lines().any(|line| line.starts_with(&format!("{id} 2")));
    let operations = description["paths"].as_object().expect("paths").values();
    let ids = operations.flat_map(|methods| methods.as_object().expect("methods").values());
    let ids = ids.filter_map(|operation| operation["operationId"].as_str());
    let is_exempt = |id: &str| LEFT_OUT.contains(&id) || ONLY_REFUSED.contains(&id);
    let missed: Vec<&str> = ids.filter(|id| !is_exempt(id) && !has_succeeded(id)).collect();
    assert!(missed.is_empty(), "no request of these succeeded: {missed:?}");
}

fn has_crashed(folder: &Path) -> bool {
    std::fs::read_to_string(folder.join("serve.log")).is_ok_and(|log| log.contains("panicked"))
}

#[test]
#[ignore = "needs openapi-python-client: ./test installs it and runs this"]
fn a_generated_client_calls_every_webhook_route() {
    let world = World::start();
    let said = succeeds(world.python().arg("client.py").arg(world.folder.path()));
    assert!(said.contains("16 routes"), "{said}");
}
