//! Functions beside the smallest HTTP server of the same language, started by hand; and many of them at once.

mod bare;
mod caller;
pub mod cold;
mod load;
mod relay;
pub mod scale;
pub mod warm;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::bench::interrupt;
use crate::bench::klambda::Klambda;

pub use bare::{Bare, Language};

/// The data of a call, and the answer of both.
const DATA: &str = r#"{"name":"world"}"#;
const ANSWER: &[u8] = br#"{"hello":"world"}"#;
/// A Go toolchain that has never built anything here compiles its standard library first.
const READY_WITHIN: Duration = Duration::from_secs(180);

/// The hello function of a language, in the version that its bare server runs with.
fn document(name: &str, bare: &Bare, grace: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "source": {"type": "inline", "inline": {"code": bare.language.hello()}},
            "runtime": {"language": bare.language.name(), "version": bare.version},
            "scaling": {"maxReplicas": 1, "scaleToZeroGracePeriod": grace},
        },
    })
}

fn request(path: &str) -> Vec<u8> {
    let length = DATA.len();
    let head = "host: localhost\r\ncontent-type: application/json\r\n";
    format!("POST {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{DATA}").into_bytes()
}

fn invoke(name: &str) -> Vec<u8> {
    request(&format!("/api/v1/lambda/functions/{name}/invoke"))
}

fn wait_until_ready(klambda: &Klambda, name: &str) -> anyhow::Result<()> {
    wait(klambda, name, |status| status["phase"] == "Ready")
}

/// Waits until the server says that no process of it runs.
fn wait_until_zero(klambda: &Klambda, name: &str) -> anyhow::Result<()> {
    wait(klambda, name, |status| status["serviceStatus"]["replicas"] == 0)
}

fn wait(klambda: &Klambda, name: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let function = klambda.function(name)?;
        let status = &function["status"];
        if is_so(status) {
            return Ok(());
        }
        if status["phase"] == "Failed" || Instant::now() > deadline {
            bail!("function {name} is not ready: {status}");
        }
        interrupt::sleep(Duration::from_millis(10))?;
    }
}

/// Those that can be measured on this machine, and a line about those that cannot.
fn languages(rig: &crate::bench::rig::Rig) -> anyhow::Result<(Vec<Bare>, String)> {
    let folder = rig.fresh_folder("bare")?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for language in Language::ALL {
        rig.note(format!("functions: the bare server for {}", language.name()));
        match Bare::prepare(language, &folder)? {
            Some(bare) => found.push(bare),
            None => missing.push(language.name()),
        }
    }
    if found.is_empty() {
        bail!("this benchmark needs Node.js, Python or Go; none is installed");
    }
    let left_out = match missing.as_slice() {
        [] => String::new(),
        _ => format!("; left out, since not on this machine: {}", missing.join(", ")),
    };
    Ok((found, left_out))
}

fn check(body: &[u8], status: u16) -> anyhow::Result<()> {
    if status != 200 || body != ANSWER {
        bail!("answered {status} {}", String::from_utf8_lossy(body));
    }
    Ok(())
}

fn number(text: &str) -> anyhow::Result<f64> {
    text.trim().parse().with_context(|| format!("{text} is no number"))
}
