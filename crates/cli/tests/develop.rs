//! The developer loop: a new function passes its own tests, is called without a server, and is served while it changes.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::process::{Process, agent, left_in, users_of};
use support::shell::{share_cache_of_user, text};
use support::{KLAMBDA, eventually};
use tempfile::TempDir;

/// The machine of a developer: folders for work, for temporary files and for the cache.
struct Desk {
    folder: TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().expect("a folder");
        share_cache_of_user(&folder.path().join("cache"));
        fs::create_dir(folder.path().join("tmp")).expect("a folder");
        Desk { folder }
    }

    fn with(language: &str) -> Desk {
        let desk = Desk::new();
        desk.ok(&["init", language, "hello"]);
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).expect("written");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(KLAMBDA);
        // The user's own server has nothing to do with this.
        command.args(words).env("KLAMBDA_SERVER", "http://127.0.0.1:1").env("KLAMBDA_LISTEN", "127.0.0.1:1");
        command.env("XDG_CACHE_HOME", self.path("cache")).env("TMPDIR", self.path("tmp"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("klambda")
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The exit code and the error line, which is the last one. Nothing is on stdout.
    fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.run(words);
        assert_eq!(text(&output.stdout), "", "{words:?}");
        let errors = text(&output.stderr);
        assert_eq!(errors.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{errors}");
        (output.status.code().unwrap_or(-1), errors.lines().last().unwrap_or_default().to_owned())
    }

    /// Nothing of us runs, and no temporary file is left.
    fn is_clean(&self) {
        eventually("the processes end", || match users_of(self.folder.path()) {
            0 => Ok(()),
            count => Err(format!("{count} processes")),
        });
        assert_eq!(left_in(&self.path("tmp")), [""; 0]);
    }
}

fn new_function_works(language: &str, test: &[&str]) {
    let desk = Desk::with(language);
    let tested =
        Command::new(test[0]).args(&test[1..]).current_dir(desk.path("hello")).output().expect("a tool");
    assert!(tested.status.success(), "{test:?}: {}{}", text(&tested.stdout), text(&tested.stderr));
    let readme = fs::read_to_string(desk.path("hello/README.md")).expect("a README");
    assert!(readme.contains(&test.join(" ")), "{readme}");
    let output = desk.run(&["run", "hello", "--data", r#"{"name": "Ada"}"#, "--timeout", "1m"]);
    assert_eq!(text(&output.stdout), "{\"hello\":\"Ada\"}\n", "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("order placed"), "{}", text(&output.stderr));
    desk.is_clean();
}

#[test]
fn a_new_function_in_nodejs_works() {
    new_function_works("nodejs", &["node", "--test"]);
}

#[test]
fn a_new_function_in_python_works() {
    new_function_works("python", &["python3", "-m", "unittest"]);
}

#[test]
fn a_new_function_in_go_works() {
    new_function_works("go", &["go", "test"]);
}

#[test]
fn init_overwrites_nothing() {
    let desk = Desk::new();
    fs::create_dir(desk.path("used")).expect("a folder");
    desk.write("used/index.js", "mine");
    let (code, error) = desk.fails(&["init", "nodejs", "used"]);
    assert_eq!((code, error.as_str()), (2, "error: used: the folder is not empty; name a new one"));
    assert_eq!(fs::read_to_string(desk.path("used/index.js")).expect("read"), "mine");
    assert_eq!(left_in(&desk.path("used")).len(), 1);
    let (code, error) = desk.fails(&["init", "python", "Orders_2"]);
    assert!(code == 2 && error.contains("--name"), "{code} {error}");
    assert!(!desk.path("Orders_2").exists());
    desk.ok(&["init", "python", "Orders_2", "--name", "orders"]);
    let manifest = fs::read_to_string(desk.path("Orders_2/function.yaml")).expect("a manifest");
    assert!(manifest.contains("name: \"orders\""), "{manifest}");
}

#[test]
fn run_tells_what_is_wrong() {
    let desk = Desk::with("nodejs");
    let (code, error) = desk.fails(&["run", "hello", "--data", "{bad"]);
    assert!(code == 2 && error.starts_with("error: --data is not JSON"), "{code} {error}");
    let (code, error) = desk.fails(&["run"]);
    assert!(code == 2 && error.contains("has no function.yaml; `klambda init"), "{code} {error}");
    let (code, error) = desk.fails(&["run", "hello", "--server", "http://127.0.0.1:2"]);
    assert!(code == 2 && error.contains("--server"), "{code} {error}");
    let (code, error) = desk.fails(&["run", "hello"]);
    assert!(code == 1 && error.contains("HTTP 500: TypeError: "), "{code} {error}");
    desk.write("hello/index.js", "exports.handler = async () => process.exit(3);");
    let (code, error) = desk.fails(&["run", "hello"]);
    assert!(code == 1 && error.contains("ended before it answered"), "{code} {error}");
    desk.write("hello/index.js", "exports.handler = () => new Promise(() => {});");
    let (code, error) = desk.fails(&["run", "hello", "--timeout", "2s"]);
    assert!(code == 1 && error.contains("no answer after 2s"), "{code} {error}");
    desk.write("hello/index.js", "exports.handler = {{");
    let (code, error) = desk.fails(&["run", "hello"]);
    assert!(code == 1 && error.contains("(SyntaxError)"), "{code} {error}");
    desk.write("hello/function.yaml", "kind: LambdaFunction\nmetadata: {name: hello}\nspec: {runtme: {}}\n");
    let (code, error) = desk.fails(&["run", "hello"]);
    assert!(code == 2 && error.contains("runtme"), "{code} {error}");
    desk.is_clean();
}

#[test]
fn run_takes_whole_events_and_files_and_prints_replies() {
    let desk = Desk::with("nodejs");
    desk.write(
        "hello/index.js",
        "exports.handler = ({ type, partitionkey, data }) =>
           ({ specversion: '1.0', type: 'reply', source: '/f', data: { type, partitionkey, data } });",
    );
    let event = json!({"specversion": "1.0", "id": "e1", "source": "/shop", "type": "order.placed",
        "partitionkey": "k", "data": 7});
    desk.write("event.json", &event.to_string());
    desk.write("data.txt", "plain");
    let reply = |words: &[&str]| -> Value {
        let printed = desk.ok(&[&["run", "hello"], words].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
    };
    let whole = reply(&["--event", "event.json"]);
    assert_eq!(whole["type"], "reply");
    assert_eq!(whole["data"], json!({"type": "order.placed", "partitionkey": "k", "data": 7}));
    let data = &reply(&["--data-file", "data.txt", "--type", "t"])["data"];
    assert_eq!(data, &json!({"type": "t", "data": "plain"}));
    desk.write("event.json", "{");
    assert_eq!(desk.fails(&["run", "hello", "--event", "event.json"]).0, 2);
    desk.is_clean();
}

/// `klambda dev` and its output.
struct Session {
    process: Process,
    url: String,
}

impl Session {
    fn start(desk: &Desk) -> Session {
        let mut process = Process::start(&mut desk.command(&["dev", "hello"]), &desk.path("printed"));
        let url = eventually("it is ready", || {
            let printed = process.printed();
            assert!(!process.has_ended(), "{printed}");
            let url = printed.lines().find_map(|line| line.strip_prefix("server  ")?.split(' ').next());
            let is_ready = printed.contains("ready   function/hello");
            url.filter(|_| is_ready).map(str::to_owned).ok_or(printed.clone())
        });
        Session { process, url }
    }

    fn prints(&self, expected: &str) {
        eventually(expected, || match self.process.printed() {
            printed if printed.contains(expected) => Ok(()),
            printed => Err(printed),
        });
    }

    fn answer(&self) -> String {
        let url = format!("{}/api/v1/lambda/functions/hello/invoke", self.url);
        let mut answer = agent().post(url).send_json(json!({"name": "Ada"})).expect("an answer");
        answer.body_mut().read_to_string().expect("text")
    }
}

fn replace(file: &Path, from: &str, to: &str) {
    let before = fs::read_to_string(file).expect("read");
    assert!(before.contains(from), "{before}");
    fs::write(file, before.replace(from, to)).expect("written");
}

#[test]
fn dev_serves_while_the_code_changes_and_leaves_nothing_behind() {
    let desk = Desk::with("nodejs");
    let session = Session::start(&desk);
    let send = format!("klambda event send --server {} --type order.placed --key", session.url);
    session.prints(&send);
    let event =
        ["event", "send", "--server", &session.url, "--type", "order.placed", "--key", "k1", "--id", "e1"];
    desk.ok(&[&event[..], &["--data", r#"{"name": "Cy"}"#]].concat());
    session.prints("event   e1 order.placed key k1: delivered\n");
    session.prints("Cy");
    desk.ok(&["event", "send", "--server", &session.url, "--type", "other", "--id", "e2"]);
    session.prints("event   e2 other: no trigger of the function matches it\n");

    let code = desk.path("hello/index.js");
    replace(&code, "hello:", "welcome:");
    session.prints("change  index.js\n");
    eventually("the new version answers", || match session.answer() {
        answer if answer == r#"{"welcome":"Ada"}"# => Ok(()),
        answer => Err(answer),
    });
    replace(&code, "return {", "return {{");
    session.prints("The source does not compile: index.js: SyntaxError");
    session.prints("Generation 2 keeps serving.\n");
    assert_eq!(session.answer(), r#"{"welcome":"Ada"}"#);
    replace(&desk.path("hello/function.yaml"), "runtime:", "runtme:");
    session.prints("unknown field");

    let Session { process, .. } = session;
    process.signal(Signal::INT);
    let (printed, status) = (process.printed(), process.wait());
    assert!(status.success(), "{status} {printed}");
    desk.is_clean();
}

#[test]
fn an_interrupt_does_not_wait_for_slow_calls() {
    let desk = Desk::with("nodejs");
    desk.write(
        "hello/index.js",
        "exports.handler = () => { console.log('slow'); return new Promise(() => {}); };",
    );
    let session = Session::start(&desk);
    desk.ok(&["event", "send", "--server", &session.url, "--type", "order.placed", "--key", "k"]);
    session.prints("log     info slow\n");
    session.process.signal(Signal::INT);
    let printed = session.process.printed();
    assert!(session.process.wait().success(), "{printed}");
    desk.is_clean();

    let run = Process::start(&mut desk.command(&["run", "hello"]), &desk.path("run.printed"));
    eventually("the call begins", || match run.printed() {
        printed if printed.contains("slow") => Ok(()),
        printed => Err(printed),
    });
    run.signal(Signal::INT);
    let printed = desk.path("run.printed");
    assert_eq!(run.wait().code(), Some(1));
    let printed = fs::read_to_string(printed).expect("what it printed");
    assert!(printed.ends_with("error: interrupted\n"), "{printed}");
    desk.is_clean();
}

#[test]
fn dev_that_is_killed_leaves_no_process_behind() {
    let desk = Desk::with("nodejs");
    let session = Session::start(&desk);
    assert_eq!(session.answer(), r#"{"hello":"Ada"}"#);
    assert!(users_of(desk.folder.path()) >= 2, "the server and the function");
    session.process.signal(Signal::KILL);
    eventually("the processes end", || match users_of(desk.folder.path()) {
        0 => Ok(()),
        count => Err(format!("{count} processes")),
    });
}

#[test]
fn dev_refuses_what_it_cannot_run() {
    let desk = Desk::with("python");
    let (code, error) = desk.fails(&["dev", "hello", "--context", "prod"]);
    assert!(code == 2 && error.contains("--context"), "{code} {error}");
    let manifest = "kind: LambdaFunction\napiVersion: lambda.knative.io/v1alpha1\nmetadata: {name: hello}\n";
    desk.write(
        "hello/function.yaml",
        &format!("{manifest}spec: {{source: {{type: url, url: {{url: 'http://h/'}}}}}}\n"),
    );
    let (code, error) = desk.fails(&["dev", "hello"]);
    assert!(code == 2 && error.contains("spec.source.type is url"), "{code} {error}");
    desk.is_clean();
}
