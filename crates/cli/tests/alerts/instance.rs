//! Servers of this test: each with a fixed address, so that it can stop and start again.

use crate::support::process::{Process, wait_until_ready};
use crate::support::{KLAMBDA, eventually, free_port};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

pub struct Instance {
    pub address: String,
    pub folder: PathBuf,
    data: PathBuf,
    settings: Vec<(&'static str, &'static str)>,
    process: Mutex<Option<Process>>,
}

impl Instance {
    pub fn start(folder: &Path, data: PathBuf, settings: &[(&'static str, &'static str)]) -> Instance {
        std::fs::create_dir_all(folder).expect("a folder");
        let instance = Instance {
            address: format!("127.0.0.1:{}", free_port()),
            folder: folder.to_owned(),
            data,
            settings: settings.to_vec(),
            process: Mutex::new(None),
        };
        instance.start_again();
        instance
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn start_again(&self) {
        let mut command = Command::new(KLAMBDA);
        command.envs(self.settings.iter().copied());
        command.args(["serve", "--listen", &self.address, "--data"]).arg(&self.data);
        let mut process = Process::start(&mut command, &self.folder.join("serve.log"));
        wait_until_ready(&self.url(), &mut process);
        self.keep(Some(process));
    }

    pub fn stop(&self) {
        let stopped = self.process.lock().expect("no panic").take();
        stopped.map(Process::stop);
    }

    fn keep(&self, process: Option<Process>) {
        *self.process.lock().expect("no panic") = process;
    }

    /// Runs the command line for a namespace. It must succeed.
    pub fn klambda(&self, namespace: &str, words: &[&str]) -> String {
        let output = self.try_klambda(namespace, words);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{words:?} in {namespace}: {text}");
        text
    }

    pub fn try_klambda(&self, namespace: &str, words: &[&str]) -> Output {
        let mut command = Command::new(KLAMBDA);
        command.args(words).env("KLAMBDA_SERVER", self.url()).env("KLAMBDA_NAMESPACE", namespace);
        command.output().expect("klambda")
    }

    pub fn apply(&self, namespace: &str, name: &str, kind: &str, spec: &serde_json::Value) {
        let document = serde_json::json!({
            "apiVersion": "lambda.knative.io/v1alpha1",
            "kind": kind,
            "metadata": { "name": name },
            "spec": spec,
        });
        let file = self.folder.join(format!("{namespace}-{name}.json"));
        std::fs::write(&file, document.to_string()).expect("written");
        self.klambda(namespace, &["apply", "-f", &file.to_string_lossy()]);
    }
}

/// A target that answers with the status in a file.
pub struct Target {
    _process: Process,
    pub url: String,
    status: PathBuf,
}

impl Target {
    pub fn start(folder: &Path, status: &str, more: &[&str]) -> Target {
        std::fs::create_dir_all(folder).expect("a folder");
        let file = folder.join("status");
        std::fs::write(&file, status).expect("written");
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(KLAMBDA);
        command
            .args(["event", "receive", "--no-body", "--listen", &address, "--status-file"])
            .arg(&file)
            .args(more);
        let process = Process::start(&mut command, &folder.join("receive.log"));
        eventually("the target listens", || {
            std::net::TcpStream::connect(&address).map(drop).map_err(|error| error.to_string())
        });
        Target { _process: process, url: format!("http://{address}/"), status: file }
    }

    pub fn answer(&self, status: &str) {
        std::fs::write(&self.status, status).expect("written");
    }
}
