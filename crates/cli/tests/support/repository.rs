//! A git repository of a test, and a server for it.

use super::process::Process;
use super::{eventually, free_port};
use std::path::Path;
use std::process::Command;

/// The repository over git's own protocol, for as long as the process is kept.
pub fn served(repository: &Path, folder: &Path) -> (String, Process) {
    let port = free_port();
    let name = repository.file_name().unwrap_or_default().to_string_lossy();
    let mut command = Command::new("git");
    command.args(["daemon", "--reuseaddr", "--export-all", "--listen=127.0.0.1"]);
    command.arg(format!("--port={port}")).arg(format!("--base-path={}", folder.display())).arg(repository);
    let process = Process::start(&mut command, &folder.join("daemon.log"));
    eventually("the repository is served", || {
        let address = format!("127.0.0.1:{port}");
        std::net::TcpStream::connect(address).map(drop).map_err(|_| process.printed())
    });
    (format!("git://127.0.0.1:{port}/{name}"), process)
}

/// A repository with one file in it, changed once more with each call. Answers the commit.
pub fn commit(repository: &Path, file: &str, text: &str) -> String {
    let git = |words: &[&str]| {
        let identity =
            ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false"];
        let mut command = Command::new("git");
        command.arg("-C").arg(repository).args(identity).args(words);
        let output = command.output().expect("git");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let file = repository.join(file);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
    std::fs::write(&file, text).expect("written");
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "A change"]);
    git(&["rev-parse", "HEAD"])
}
