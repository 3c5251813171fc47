//! A function at a URL takes over after its first response, like one that runs here. Until then the URL is checked, and the
//! previous version keeps serving.

use super::Machine;
use crate::fleet::Run;
use crate::outgoing::{cause, client};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::name::Name;
use reqwest::Method;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Delay between two checks, and the delay after a failure, because the URL may work later.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_FAILED: Duration = Duration::from_secs(10);
/// Timeout of one check.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Machine {
    /// Checks until the URL responds, or until this version is no longer wanted.
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

    /// Returns whether checking is finished.
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

/// Whether the URL responds, with any status. Sends the OPTIONS request that receivers of CloudEvents expect first.
async fn answers(url: &str, within: Duration) -> Result<(), String> {
    let client = client()?;
    let asked = client.request(Method::OPTIONS, url).timeout(within).send().await;
    asked.map(drop).map_err(|error| format!("{url} does not respond: {}", cause(&error)))
}
