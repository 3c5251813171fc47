//! What runs elsewhere takes over when it answers, as what runs here does: until then it is asked, and what served before
//! serves on.

use crate::control::Control;
use crate::elsewhere;
use crate::names::Name;
use klambda_functions::failure::{Failure, Reason};
use klambda_local::fleet::Run;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two questions; and once it has failed, since it may come up later.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_FAILED: Duration = Duration::from_secs(10);
/// How long one question may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Control {
    /// Asks until something answers, or until nobody wants this version any more.
    pub(crate) async fn ask(self, name: Name, version: Arc<str>, url: Arc<str>) {
        let until = Instant::now() + self.options.start_timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let within = if left.is_zero() { ANSWER_WITHIN } else { left.min(ANSWER_WITHIN) };
            let answered = elsewhere::answers(&url, within).await;
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
        let Some(platform) = self.running() else { return true };
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name).filter(|entry| !entry.retiring) else { return true };
        let asked = entry.deployed.iter_mut().find(|known| known.asking && known.version == *version);
        let Some(deployed) = asked else { return true };
        let is_done = answered.is_ok();
        match answered {
            Ok(()) => {
                deployed.run = Ok(Run::Remote(url.clone()));
                deployed.asking = false;
                platform.tell_fleet(name, deployed, &self.options);
            }
            Err(why) if is_late && deployed.run.is_ok() => {
                deployed.run = Err(Failure::new(Reason::UrlUnreachable, why));
            }
            Err(_) => return false,
        }
        drop(state);
        self.enqueue(name);
        is_done
    }
}
