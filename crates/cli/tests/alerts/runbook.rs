//! Runs the commands of a runbook, section by section.

use crate::monitor::Monitor;
use crate::support::markdown::{Block, blocks};
use crate::support::{KLAMBDA, eventually, read};
use std::path::Path;
use std::process::Command;

pub const SECTIONS: [&str; 3] = ["See it", "Fix it", "Prove that it is fixed"];

pub struct Runbook {
    alert: &'static str,
    text: String,
    variables: Vec<(&'static str, String)>,
}

impl Runbook {
    /// `variables` are what the reader takes from the labels of the alert.
    pub fn new(alert: &'static str, variables: Vec<(&'static str, String)>) -> Runbook {
        Runbook { alert, text: read(&format!("docs/operations/runbooks/{alert}.md")), variables }
    }

    pub fn see(&self, monitor: &Monitor) {
        for block in self.section(SECTIONS[0]) {
            match block.language.as_str() {
                "sh" => self.must(&block),
                "promql" => monitor.wait_for(block.text.trim()),
                _ => {}
            }
        }
    }

    pub fn fix(&self) {
        let commands = self.section(SECTIONS[1]).into_iter().filter(|block| block.language == "sh");
        commands.for_each(|block| self.must(&block));
    }

    /// The reader looks again until the commands succeed.
    pub fn prove(&self) {
        for block in self.section(SECTIONS[2]).into_iter().filter(|block| block.language == "sh") {
            eventually(&format!("{}: {}", self.alert, block.text), || self.run(&block));
        }
    }

    fn section(&self, title: &str) -> Vec<Block> {
        let start = format!("\n## {title}\n");
        let text = self.text.split_once(&start).unwrap_or_else(|| panic!("{} has no {title}", self.alert)).1;
        blocks(text.split("\n## ").next().unwrap_or_default())
    }

    fn must(&self, block: &Block) {
        self.run(block).unwrap_or_else(|printed| panic!("{}: {}\n{printed}", self.alert, block.text));
    }

    fn run(&self, block: &Block) -> Result<(), String> {
        let bin = Path::new(KLAMBDA).parent().expect("a folder");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("bash")
            .args(["-e", "-u", "-o", "pipefail", "-c", &block.text])
            .env("PATH", path)
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("bash");
        match output.status.success() != block.has("fails") {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        }
    }
}
