//! A real Prometheus, a real Alertmanager, and a receiver that keeps the alerts it gets.

use crate::support::process::{Process, agent};
use crate::support::{eventually, free_port};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

type Seen = Arc<Mutex<Vec<Value>>>;

pub struct Monitor {
    _processes: [Process; 2],
    prometheus: String,
    seen: Seen,
}

impl Monitor {
    /// Watches these servers with these rules.
    pub fn start(folder: &Path, addresses: &[&str], rules: &str) -> Monitor {
        let seen = Seen::default();
        let [prometheus, alertmanager] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        std::fs::write(folder.join("rules.yaml"), rules).expect("written");
        write(
            &folder.join("prometheus.yaml"),
            &json!({
                "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
                "rule_files": ["rules.yaml"],
                "alerting": { "alertmanagers": [{ "static_configs": [{ "targets": [alertmanager] }] }] },
                "scrape_configs": [{ "job_name": "klambda", "static_configs": [{ "targets": addresses }] }],
            }),
        );
        write(
            &folder.join("alertmanager.yaml"),
            &json!({
                "route": {
                    "receiver": "test",
                    "group_by": ["..."],
                    "group_wait": "0s",
                    "group_interval": "1s",
                    "repeat_interval": "1h",
                },
                "receivers": [{ "name": "test", "webhook_configs": [{ "url": receive(&seen), "send_resolved": true }] }],
            }),
        );
        let storage = |name: &str| folder.join(name).display().to_string();
        let alertmanager = Process::start(
            Command::new("prometheus-alertmanager")
                .arg(format!("--config.file={}", storage("alertmanager.yaml")))
                .arg(format!("--storage.path={}", storage("alertmanager")))
                .arg(format!("--web.listen-address={alertmanager}"))
                .arg("--cluster.listen-address="),
            &folder.join("alertmanager.log"),
        );
        let server = Process::start(
            Command::new("prometheus")
                .arg(format!("--config.file={}", storage("prometheus.yaml")))
                .arg(format!("--storage.tsdb.path={}", storage("tsdb")))
                .arg(format!("--web.listen-address={prometheus}")),
            &folder.join("prometheus.log"),
        );
        let monitor =
            Monitor { _processes: [alertmanager, server], prometheus: format!("http://{prometheus}"), seen };
        eventually("Prometheus scrapes", || match monitor.query("klambda_build_info") {
            Ok(found) if found.len() == addresses.len() => Ok(()),
            other => Err(format!("{other:?}")),
        });
        monitor
    }

    /// Waits for a notification about an alert with these labels.
    pub fn wait(&self, alert: &str, status: &str, labels: &[(&str, String)]) {
        let is_it = |one: &Value| {
            one["status"] == status
                && one["labels"]["alertname"] == alert
                && labels.iter().all(|(name, value)| one["labels"][name] == **value)
        };
        eventually(&format!("{alert} {status} {labels:?}"), || {
            let seen = self.seen.lock().expect("no panic");
            let of_name = || seen.iter().filter(|one| one["labels"]["alertname"] == alert);
            match seen.iter().any(is_it) {
                true => Ok(()),
                false => Err(format!("{:?}", of_name().collect::<Vec<_>>())),
            }
        });
    }

    pub fn wait_for(&self, query: &str) {
        eventually(query, || match self.query(query) {
            Ok(found) if !found.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    pub fn annotations(&self) -> Vec<Value> {
        self.seen.lock().expect("no panic").iter().map(|alert| alert["annotations"].clone()).collect()
    }

    /// The result of an instant query.
    pub fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let mut answer = agent()
            .get(format!("{}/api/v1/query", self.prometheus))
            .query("query", query)
            .call()
            .map_err(|error| error.to_string())?;
        let body: Value = answer.body_mut().read_json().map_err(|error| error.to_string())?;
        match body["data"]["result"].as_array() {
            Some(found) => Ok(found.clone()),
            None => Err(body.to_string()),
        }
    }
}

fn write(file: &Path, config: &Value) {
    std::fs::write(file, config.to_string()).expect("written");
}

/// Starts the receiver of the webhook and returns its URL.
fn receive(seen: &Seen) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let seen = Arc::clone(seen);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || answer(connection, &seen));
        }
    });
    url
}

fn answer(mut connection: TcpStream, seen: &Seen) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let mut notification: Value = serde_json::from_slice(&body)?;
    if let Value::Array(alerts) = notification["alerts"].take() {
        seen.lock().expect("no panic").extend(alerts);
    }
    connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}
