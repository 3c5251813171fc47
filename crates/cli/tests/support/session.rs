//! Follows a document as a reader would: runs its `sh` blocks in order and compares their output with its `text` blocks.
//!
//! | block | meaning |
//! |---|---|
//! | `sh` | run to its end; must succeed |
//! | `sh fails` | run to its end; must fail |
//! | `sh skip` | not run |
//! | `sh eventually` | run again and again until the `text` block after it fits |
//! | `sh terminal=NAME` | started in a terminal of its own and left running |
//! | `text` | the output of the block before it |
//! | `json` | the same as JSON, whatever its layout |
//! | `text terminal=NAME` | the output of that terminal since the last such block; waits for it |
//!
//! Ports 8080 and 9000 are replaced by free ones, and replaced back in the output.
//!
//! Every session leaves a transcript in `target/transcripts`, also if it fails.

use super::likeness::{difference, difference_of_json, difference_within};
use super::markdown::{Block, blocks};
use super::process::{Process, wait_until_ready};
use super::{KLAMBDA, eventually, free_port, read, repository};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub fn follow(document: &str) {
    let mut session = Session::new(document);
    let blocks = blocks(&read(document));
    let mut last: Option<String> = None;
    for (index, block) in blocks.iter().enumerate() {
        session.line = block.line;
        match (block.language.as_str(), block.value("terminal")) {
            ("sh", _) if block.has("skip") => last = None,
            ("sh", Some(name)) => session.open(name, &block.text),
            ("sh", None) if block.has("eventually") => {
                session.run_until(block, &blocks[index + 1]);
                last = None;
            }
            ("sh", None) => last = Some(session.run(block)),
            ("text", Some(name)) => session.watch(name, &block.text),
            ("text" | "json", None) => {
                if let Some(printed) = last.take() {
                    session.compare(differs(block, &printed));
                }
            }
            _ => {}
        }
    }
}

fn differs(shown: &Block, printed: &str) -> Option<String> {
    match shown.language.as_str() {
        "json" => difference_of_json(&shown.text, printed),
        _ => difference(&shown.text, printed),
    }
}

struct Session {
    document: String,
    /// Of the block at hand.
    line: usize,
    folder: TempDir,
    server: u16,
    receiver: u16,
    terminals: BTreeMap<String, Terminal>,
    transcript: RefCell<String>,
}

struct Terminal {
    process: Process,
    /// The length of the output that was compared already.
    seen: usize,
}

impl Session {
    fn new(document: &str) -> Session {
        let folder = tempfile::tempdir().expect("a folder");
        let session = Session {
            document: document.to_owned(),
            line: 0,
            folder,
            server: free_port(),
            receiver: free_port(),
            terminals: BTreeMap::new(),
            transcript: RefCell::default(),
        };
        session.copy_examples();
        session
    }

    /// The reader is in the repository's folder; only its examples matter.
    fn copy_examples(&self) {
        let (from, to) = (repository().join("examples"), self.folder.path().join("examples"));
        std::fs::create_dir(&to).expect("a folder");
        for entry in std::fs::read_dir(from).expect("the examples") {
            let path = entry.expect("an example").path();
            // Programs have tests of their own.
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("an example");
            std::fs::write(to.join(path.file_name().expect("a name")), self.with_own_ports(&text))
                .expect("written");
        }
    }

    fn with_own_ports(&self, text: &str) -> String {
        text.replace(":8080", &format!(":{}", self.server)).replace(":9000", &format!(":{}", self.receiver))
    }

    fn as_shown(&self, printed: &[u8]) -> String {
        let printed = String::from_utf8_lossy(printed);
        printed
            .replace(&format!(":{}", self.server), ":8080")
            .replace(&format!(":{}", self.receiver), ":9000")
    }

    fn bash(&self, text: &str) -> Command {
        // Commands that a reader runs with cargo use the binary under test.
        let text = self.with_own_ports(text).replace("cargo run --release -- ", "klambda ");
        let bin = Path::new(KLAMBDA).parent().expect("a folder");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("bash");
        command
            .args(["-e", "-u", "-o", "pipefail", "-c", &text])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("KLAMBDA_LISTEN", format!("127.0.0.1:{}", self.server))
            .env("KLAMBDA_SERVER", format!("http://127.0.0.1:{}", self.server))
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .env_remove("RUST_LOG");
        command
    }

    fn open(&mut self, name: &str, text: &str) {
        let printed = self.folder.path().join(format!("{name}.terminal"));
        let seen = self.terminals.remove(name).map_or(0, |terminal| terminal.seen);
        let mut process = Process::start(&mut self.bash(text), &printed);
        if text.contains("serve") || text.contains("klambda dev") {
            wait_until_ready(&format!("http://127.0.0.1:{}", self.server), &mut process);
        } else {
            let address = format!("127.0.0.1:{}", self.receiver);
            eventually("the receiver listens", || {
                assert!(!process.has_ended(), "{}:{}: {}", self.document, self.line, process.printed());
                std::net::TcpStream::connect(&address).map(drop).map_err(|error| error.to_string())
            });
        }
        self.note(&format!("({name}) $ "), text);
        self.terminals.insert(name.to_owned(), Terminal { process, seen });
    }

    /// Runs a block to its end and returns its output.
    fn run(&self, block: &Block) -> String {
        let (succeeded, printed) = self.once(block);
        self.note("$ ", &block.text);
        self.note("", &printed);
        let wanted = !block.has("fails");
        assert_eq!(
            succeeded, wanted,
            "{}:{}:\n{}\nprinted:\n{printed}",
            self.document, block.line, block.text
        );
        printed
    }

    fn once(&self, block: &Block) -> (bool, String) {
        let output = self.bash(&block.text).output().expect("bash");
        let printed = self.as_shown(&[output.stdout, output.stderr].concat());
        (output.status.success(), printed)
    }

    fn run_until(&self, block: &Block, shown: &Block) {
        let printed = eventually(&format!("{}:{}", self.document, block.line), || {
            let (_, printed) = self.once(block);
            differs(shown, &printed).map_or(Ok(printed), Err)
        });
        self.note("$ ", &block.text);
        self.note("", &printed);
    }

    fn watch(&mut self, name: &str, shown: &str) {
        let place = format!("{}:{}: terminal {name}", self.document, self.line);
        let terminal = self.terminals.get(name).unwrap_or_else(|| panic!("{place} was never opened"));
        let seen = eventually(&place, || {
            let printed = terminal.process.printed();
            let new = &printed.as_bytes()[terminal.seen..];
            difference_within(shown, &self.as_shown(new)).map_or(Ok(printed.len()), Err)
        });
        if let Some(terminal) = self.terminals.get(name) {
            let new = self.as_shown(&terminal.process.printed().as_bytes()[terminal.seen..seen]);
            self.note(&format!("({name}) "), &new);
        }
        if let Some(terminal) = self.terminals.get_mut(name) {
            terminal.seen = seen;
        }
    }

    fn note(&self, prefix: &str, text: &str) {
        let mut transcript = self.transcript.borrow_mut();
        text.lines().for_each(|line| transcript.extend([prefix, line, "\n"]));
    }

    fn compare(&self, difference: Option<String>) {
        if let Some(difference) = difference {
            let said = self.terminals.values().map(|terminal| terminal.process.printed());
            let said: Vec<String> = said.collect();
            panic!("{}:{}: {difference}\nterminals:\n{}", self.document, self.line, said.join("\n---\n"));
        }
    }
}

/// Where the transcript of a document is.
pub fn transcript_of(document: &str) -> PathBuf {
    repository().join("target/transcripts").join(document.replace('/', "-")).with_extension("txt")
}

impl Drop for Session {
    fn drop(&mut self) {
        let file = transcript_of(&self.document);
        // A test that fails already must not panic again here.
        let _ = std::fs::create_dir_all(file.parent().unwrap_or(&file));
        let _ = std::fs::write(file, self.transcript.take());
    }
}
