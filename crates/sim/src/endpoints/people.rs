//! Operators and receivers of webhook endpoints: they disable and enable, acknowledge, recover, purge and change
//! endpoints, whether it makes sense or not.

use crate::checkers::{Verdict, Violation};
use crate::history::{Acked, EndpointNo, Entry, Webhook};
use crate::world::World;
use klambda_core::ids::FeedNumber;
use klambda_core::lane::State as LaneState;
use klambda_core::time::Millis;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::feed::Since;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::replay::Request;
use klambda_dispatch::views::LaneQuery;

impl World {
    pub fn operate_endpoints(&mut self) -> Verdict {
        for endpoint in 0..self.endpoints.len() as EndpointNo {
            self.look_at_health(endpoint)?;
            if self.outside.calm {
                self.enable_at_last(endpoint)?;
                continue;
            }
            if self.endpoints.rng.one_in(12) {
                self.read_some(endpoint)?;
            }
            if self.endpoints.rng.one_in(self.mix.operator_every) {
                self.act_on_endpoint(endpoint)?;
            }
        }
        Ok(())
    }

    fn act_on_endpoint(&mut self, endpoint: EndpointNo) -> Verdict {
        match self.endpoints.rng.below(16) {
            0 | 1 => self.switch_endpoint(endpoint),
            2..=5 => self.acknowledge(endpoint),
            6 => self.purge_workflow(endpoint),
            7 => self.change_endpoint(endpoint),
            8 | 9 => self.recover(endpoint),
            _ => self.resume_workflow(endpoint),
        }
    }

    /// The status shows when an endpoint was disabled because it failed for too long.
    fn look_at_health(&mut self, endpoint: EndpointNo) -> Verdict {
        let known = self.outside.endpoint(endpoint);
        match self.host.engine.is_endpoint_disabled(&known.name) {
            Ok(true) if known.disabled.is_none() => {
                self.note(Entry::Webhook { endpoint, what: Webhook::Disabled })
            }
            Ok(false) if known.disabled.is_some() => {
                let text = format!("endpoint {}: it was disabled, and nobody has enabled it", known.name);
                Err(Violation::new("receiver", text))
            }
            _ => Ok(()),
        }
    }

    fn enable_at_last(&mut self, endpoint: EndpointNo) -> Verdict {
        if self.outside.endpoint(endpoint).disabled.is_none() {
            return Ok(());
        }
        self.set_enabled(endpoint, true)
    }

    fn set_enabled(&mut self, endpoint: EndpointNo, enabled: bool) -> Verdict {
        self.collect()?;
        let name = self.outside.endpoint(endpoint).name.clone();
        // The engine may fail after it has written the change.
        let what = match (self.host.engine.set_endpoint_enabled(&name, enabled), enabled) {
            (Err(why), false) => return self.refused("disable", &why),
            (_, true) => Webhook::Enabled,
            (Ok(_), false) => Webhook::Disabled,
        };
        self.note(Entry::Webhook { endpoint, what })
    }

    /// Disables an enabled endpoint. Enables a disabled one, in place or from a time.
    fn switch_endpoint(&mut self, endpoint: EndpointNo) -> Verdict {
        if self.outside.endpoint(endpoint).disabled.is_none() {
            return self.set_enabled(endpoint, false);
        }
        if self.endpoints.rng.one_in(3) {
            self.skip_old(endpoint)?;
        }
        self.set_enabled(endpoint, true)
    }

    fn skip_old(&mut self, endpoint: EndpointNo) -> Verdict {
        const PARTS_MAX: u32 = 100;
        let name = self.outside.endpoint(endpoint).name.clone();
        let Some(through) = self.feed_ends_at(endpoint) else { return Ok(()) };
        // Noted before, because the engine may refuse in the middle.
        self.note(Entry::Webhook { endpoint, what: Webhook::SkippedThrough(through) })?;
        let back_ms = self.endpoints.rng.below(self.mix.round_ms * 40);
        let from = Millis(self.host.engine.now().0.saturating_sub(back_ms));
        for _ in 0..PARTS_MAX {
            match self.host.engine.skip_before(&name, from) {
                Ok((_, true)) => {}
                Ok((_, false)) => return Ok(()),
                Err(why) => return self.refused("skip", &why),
            }
        }
        Err(Violation::new("liveness", format!("endpoint {name}: skipping old events never ends")))
    }

    /// The number of the last entry, shown or not.
    fn feed_ends_at(&self, endpoint: EndpointNo) -> Option<u64> {
        let name = &self.outside.endpoint(endpoint).name;
        let since = Since::Entry(FeedNumber(self.outside.endpoint(endpoint).feed.up_to));
        let all = |since| self.host.engine.read_feed(name, since, None, usize::MAX).ok();
        // Retention may have removed the last entry that was shown.
        let page = all(since)?.ok().or_else(|| all(Since::Beginning)?.ok())?;
        Some(page.up_to.0)
    }

    /// The receiver has everything up to an event that the feed has shown.
    fn acknowledge(&mut self, endpoint: EndpointNo) -> Verdict {
        // Calls that have started are open for the receiver, too.
        self.collect()?;
        let known = self.outside.endpoint(endpoint);
        let up_to = known.feed.up_to;
        let some = self.endpoints.rng.below(up_to + 1).max(up_to.saturating_sub(40));
        let Some((feed, (workflow, number))) = known.feed.entries.range(some..).next() else { return Ok(()) };
        let Some(id) = known.place(workflow, *number).map(|place| place.id) else { return Ok(()) };
        let (feed, only) = (*feed, self.endpoints.rng.one_in(3).then(|| workflow.clone()));
        let Some(through) = self.entry_of(endpoint, feed, id)? else { return Ok(()) };
        let repeats = if self.endpoints.rng.one_in(3) { 2 } else { 1 };
        for n in 0..repeats {
            let mut acked =
                Acked { through, workflow: only.clone(), events: 0, again: n > 0, complete: true };
            let name = &self.outside.endpoint(endpoint).name;
            let mut from = String::new();
            loop {
                match self.host.engine.acknowledge_part(name, id, only.as_deref(), &from) {
                    Ok(part) => {
                        acked.events += part.events;
                        match part.next {
                            Some(next) => from = next,
                            None => break,
                        }
                    }
                    Err(_) => {
                        acked.complete = false;
                        break;
                    }
                }
            }
            let complete = acked.complete;
            self.note(Entry::Webhook { endpoint, what: Webhook::Acknowledged(acked) })?;
            if !complete {
                break;
            }
        }
        Ok(())
    }

    fn purge_workflow(&mut self, endpoint: EndpointNo) -> Verdict {
        if !self.endpoints.rng.one_in(4) {
            return Ok(());
        }
        let known = self.outside.endpoint(endpoint);
        let at = self.endpoints.rng.below(known.workflows.len() as u64) as usize;
        let Some((workflow, _)) = known.workflows.iter().nth(at) else { return Ok(()) };
        let (name, workflow) = (known.name.clone(), workflow.clone());
        let Some(through) = self.feed_ends_at(endpoint) else { return Ok(()) };
        let what = Webhook::Purged { workflow: workflow.clone(), through };
        self.note(Entry::Webhook { endpoint, what })?;
        match self.host.engine.act_on_lane(&name, &workflow, LaneAction::Purge) {
            Ok(()) => Ok(()),
            Err(why) => self.refused("purge", &why),
        }
    }

    /// Other limits of calls, while calls are open.
    fn change_endpoint(&mut self, endpoint: EndpointNo) -> Verdict {
        let mut settings = self.endpoints.settings[endpoint as usize].clone();
        settings.batch_max = super::Settings::random_batch(&mut self.endpoints.rng);
        settings.concurrency = *self.endpoints.rng.pick(&[1, 4, 256]);
        let batch_max = settings.batch_max();
        match self.host.engine.put_subscription(settings.document(), false) {
            Ok(_) => self.note(Entry::Webhook { endpoint, what: Webhook::Changed { batch_max } }),
            Err(why) => self.refused("change endpoint", &why),
        }
    }

    /// Sends again what the endpoint did not get.
    fn recover(&mut self, endpoint: EndpointNo) -> Verdict {
        let name = self.outside.endpoint(endpoint).name.clone();
        let (namespace, _) = klambda_core::namespace::split(&name);
        let since = Millis(self.host.engine.now().0.saturating_sub(self.endpoints.rng.below(100_000)));
        let selector = Selector {
            namespace: Some(namespace.to_owned()),
            subscription: Some(name.clone()),
            since: Some(since),
            ..Selector::default()
        };
        let request = Request { selector, rate_per_second: 0, parallelism: 4 };
        match self.host.engine.create_replay(request) {
            Ok(id) => {
                self.watched.replays_made = self.watched.replays_made.max(id);
                Ok(())
            }
            Err(why) => self.refused("recover", &why),
        }
    }

    fn resume_workflow(&mut self, endpoint: EndpointNo) -> Verdict {
        let name = self.outside.endpoint(endpoint).name.clone();
        let query = LaneQuery {
            within: Default::default(),
            subscription: Some(name.clone()),
            state: Some(LaneState::Parked),
            after: None,
            limit: 10,
        };
        let Ok(page) = self.host.engine.view_lanes(&query) else { return Ok(()) };
        page.items.into_iter().try_for_each(|lane| self.resume_parked(&name, &lane.key))
    }

    pub fn resume_parked(&mut self, name: &str, workflow: &str) -> Verdict {
        match self.host.engine.act_on_lane(name, workflow, LaneAction::Resume) {
            Ok(()) => Ok(()),
            Err(why) => self.refused("resume", &why),
        }
    }
}
