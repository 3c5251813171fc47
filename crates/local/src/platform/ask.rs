//! What runs elsewhere takes over when it answers, as what runs here does: until then it is asked, and what served before
//! serves on.

use super::Machine;
use crate::fleet::Run;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::name::Name;
use reqwest::Method;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Between two questions; and once it has failed, since it may come up later.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_FAILED: Duration = Duration::from_secs(10);
/// How long one question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Machine {
    /// Asks until something answers, or until nobody wants this version any more.
    pub(super) async fn ask(self, name: Name, version: Arc<str>, url: Arc<str>) {
        let until = Instant::now() + self.options.start_timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let within = if left.is_zero() { ANSWER_WITHIN } else { left.min(ANSWER_WITHIN) };
            let answered = answers(&url, within).await;
            let again = if Instant::now() < until { AGAIN } else { AGAIN_FAILED };
            if self.note_answer(&name, &version, &url, answered, again == AGAIN_FAILED) {
                return;
            }
            tokio::time::sleep(again).await;
        }
    }

    /// Whether there is nothing more to ask.
    fn note_answer(
        &self,
        name: &Name,
        version: &Arc<str>,
        url: &Arc<str>,
        answered: Result<(), String>,
        is_late: bool,
    ) -> bool {
        let mut functions = self.lock();
        let Some(function) = functions.get_mut(name).filter(|function| !function.retiring) else {
            return true;
        };
        let asked = function.deployed.iter_mut().find(|known| known.asking && known.version == *version);
        let Some(deployed) = asked else { return true };
        let is_done = answered.is_ok();
        match answered {
            Ok(()) => {
                deployed.run = Ok(Run::Remote(url.clone()));
                deployed.asking = false;
                self.tell_fleet(name, deployed);
            }
            Err(why) if is_late && deployed.run.is_ok() => {
                deployed.run = Err(Failure::new(Reason::UrlUnreachable, why));
            }
            Err(_) => return false,
        }
        drop(functions);
        self.changed(name);
        is_done
    }
}

/// Whether something answers there, whatever it says. It is asked as receivers of CloudEvents are before the first event.
async fn answers(url: &str, within: Duration) -> Result<(), String> {
    let client = client()?;
    let asked = client.request(Method::OPTIONS, url).timeout(within).send().await;
    asked.map(drop).map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        format!("{url} does not answer: {cause}")
    })
}

/// One client for all, so that its connections are used again.
fn client() -> Result<&'static reqwest::Client, String> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // The client takes what does its cryptography from the process; whoever was first has set the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    let client = built.map_err(|error| format!("no client can be made: {error}"))?;
    Ok(CLIENT.get_or_init(|| client))
}
