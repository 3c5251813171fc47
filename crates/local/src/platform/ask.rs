//! A function at a URL takes over after its first response, like one that runs here. Until then the URL is checked, and the
//! previous version keeps serving.

use super::Machine;
use crate::fleet::Run;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::name::Name;
use klambda_outbound::Reach;
use klambda_outbound::client::{cause, forbidden};
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
        let reach = self.options.outbound.reach(name.namespace());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let within = if left.is_zero() { ANSWER_WITHIN } else { left.min(ANSWER_WITHIN) };
            let answered = answers(&reach, &url, within).await;
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
        answered: Result<(), Failure>,
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
            Err(failure) if is_late && deployed.run.is_ok() => deployed.run = Err(failure),
            Err(_) => return false,
        }
        drop(functions);
        self.changed(name);
        is_done
    }
}

/// Whether the URL responds, with any status. Sends the OPTIONS request that receivers of CloudEvents expect first.
async fn answers(reach: &Reach, url: &str, within: Duration) -> Result<(), Failure> {
    let refused = |why: &dyn std::fmt::Display| Failure::new(Reason::AddressForbidden, why.to_string());
    let silent = |why: String| Failure::new(Reason::UrlUnreachable, format!("{url} does not respond: {why}"));
    let client = reach.client().map_err(|error| silent(error.to_string()))?;
    let request = client.request(Method::OPTIONS, url).map_err(|forbidden| refused(&forbidden))?;
    request.timeout(within).send().await.map(drop).map_err(|error| match forbidden(&error) {
        Some(forbidden) => refused(forbidden),
        None => silent(cause(&error)),
    })
}
