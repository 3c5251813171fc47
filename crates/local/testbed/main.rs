//! The programs that the tests of this crate start: the exec helper, a small server, and a parent to be killed. Not shipped.

use klambda_local::fleet::{self, Fleet, Run, Scaling, Version};
use klambda_local::process::limits::Groups;
use klambda_local::process::{Command, Limits, Options, Spawner};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().and_then(|role| role.into_string().ok()).as_deref() {
        Some("child") => klambda_local::child::main(arguments),
        Some("serve") => serve(),
        Some("parent") => parent(Path::new(&arguments.next().expect("a folder"))),
        // Acts as the client of a container engine: `rm --force NAME`.
        Some("rm") => std::fs::write(arguments.nth(1).expect("a name"), "").expect("a file"),
        role => panic!("unknown role {role:?}"),
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Serves like a wrapper, on the socket that is its standard input. Its environment sets how it fails.
fn serve() {
    println!("starting");
    std::thread::sleep(Duration::from_millis(setting("START_DELAY_MS").unwrap_or(0)));
    if let Some(code) = setting("EXIT_AT_START") {
        eprintln!("{{\"level\":\"error\",\"reason\":\"HandlerNotFound\",\"message\":\"no function main\"}}");
        std::process::exit(code as i32);
    }
    if setting("FORK").is_some() {
        let sleep = std::process::Command::new("sleep").arg("600").stdin(std::process::Stdio::null()).spawn();
        std::thread::spawn(move || sleep.expect("sleep").wait());
    }
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a socket"));
    for mut stream in listener.incoming().flatten() {
        let Some(path) = read(&mut stream) else { continue };
        if let Some(ms) = path.strip_prefix("/block/").and_then(|ms| ms.parse().ok()) {
            println!("called {path}");
            *BLOCKED_UNTIL.lock().expect("a lock") = Some(Instant::now() + Duration::from_millis(ms));
        }
        std::thread::spawn(move || answer(stream, &path));
    }
}

/// Simulates a single blocked thread: after the call that sets it, nobody gets a response.
static BLOCKED_UNTIL: Mutex<Option<Instant>> = Mutex::new(None);

/// Reads a request and returns its path.
fn read(stream: &mut UnixStream) -> Option<String> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or("/").to_owned())
}

fn answer(mut stream: UnixStream, path: &str) {
    while BLOCKED_UNTIL.lock().expect("a lock").is_some_and(|until| Instant::now() < until) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let body = match path {
        "/healthz" if setting("NEVER_ANSWER").is_some() => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "/healthz" => String::new(),
        "/crash" => std::process::exit(3),
        "/slow" => {
            println!("called /slow");
            std::thread::sleep(Duration::from_secs(600));
            String::new()
        }
        "/allocate" => allocate(),
        "/environment" => std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect(),
        _ => {
            std::thread::sleep(Duration::from_millis(setting("DELAY_MS").unwrap_or(0)));
            println!("called {path}");
            std::env::var("VERSION").unwrap_or_default()
        }
    };
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

/// Allocates more and more memory, until the process is killed.
fn allocate() -> String {
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(vec![7_u8; 4 << 20]);
        std::thread::sleep(Duration::from_millis(5));
    }
    held.len().to_string()
}

/// A server with two replicas that waits to be killed.
#[tokio::main(flavor = "current_thread")]
async fn parent(folder: &Path) {
    let program = std::env::current_exe().expect("a program");
    let helper = vec![program.clone().into_os_string(), "child".into()];
    let options = Options { helper, records: folder.join("children"), groups: Groups::none() };
    let spawner = Spawner::start(options).expect("a spawner");
    let fleet = Fleet::start(fleet::Options::new(folder.to_path_buf()), spawner).expect("a fleet");
    let command = Command {
        program,
        arguments: vec!["serve".into()],
        folder: PathBuf::from("/"),
        environment: vec![("FORK".into(), "1".into())],
        limits: Limits::default(),
        container: Some(folder.join("removed").to_string_lossy().into_owned()),
        files: None,
    };
    let scaling = Scaling { min_replicas: 2, ..Scaling::default() };
    let (id, artifact) = (Arc::from("1"), Arc::from("a"));
    let version = Version { id, artifact, generation: 1, run: Run::Process(Arc::new(command)), scaling };
    fleet.deploy("f", version).expect("a new function");
    let mut changes = fleet.changes();
    while fleet.observe("f").is_none_or(|seen| seen.versions[0].ready < 2) {
        changes.next().await;
    }
    println!("ready");
    std::future::pending::<()>().await;
}
