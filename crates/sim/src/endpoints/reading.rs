//! Receivers that read the feed: they continue where they stopped, or after an event that they know, in all workflows
//! or in one. A page is shown when everything in it is durable, as the program answers such a request.

use crate::checkers::{Verdict, Violation, feed};
use crate::event::HOME;
use crate::history::{EndpointNo, Entry, Listed, Page, Webhook};
use crate::mix::Trouble;
use crate::world::World;
use klambda_core::event_codec::EventView;
use klambda_core::ids::FeedNumber;
use klambda_core::webhook::EventId;
use klambda_dispatch::Token;
use klambda_dispatch::feed::{FeedItem, FeedPage, Since, Unavailable};
use klambda_dispatch::operate::Refused;
use klambda_store::log;
use klambda_store::record::Record;

/// A page that was read and is not shown yet.
pub struct Asked {
    endpoint: EndpointNo,
    since: u64,
    workflow: Option<String>,
    page: FeedPage,
}

/// More than a run has.
const ALL: usize = 1_000_000;

impl World {
    /// A receiver reads some of the feed.
    pub(super) fn read_some(&mut self, endpoint: EndpointNo) -> Verdict {
        let known = &self.outside.endpoint(endpoint).feed;
        let rng = &mut self.endpoints.rng;
        let limit = *rng.pick(&[1, 7, 100, 1000]);
        let at = rng.below(known.up_to + 1);
        let entry = known.entries.range(at..).next().map(|(feed, at)| (*feed, at.clone()));
        match (rng.below(6), entry) {
            (0, _) => self.ask(endpoint, at, Since::Entry(FeedNumber(at)), None, limit),
            (1 | 2, Some((feed, (workflow, number)))) => {
                let only = rng.one_in(2).then(|| workflow.clone());
                let id = self.outside.endpoint(endpoint).place(&workflow, number).map(|place| place.id);
                id.map_or(Ok(()), |id| self.ask_after(endpoint, feed, id, only, limit))
            }
            (3, _) => self.ask_unknown(endpoint),
            _ => {
                let up_to = known.up_to;
                self.ask(endpoint, up_to, Since::Entry(FeedNumber(up_to)), None, limit)
            }
        }
    }

    /// Continues after an event. An event that was accepted twice is found where it is last.
    fn ask_after(
        &mut self,
        endpoint: EndpointNo,
        feed: u64,
        id: EventId,
        workflow: Option<String>,
        limit: usize,
    ) -> Verdict {
        let Some(feed) = self.entry_of(endpoint, feed, id)? else { return Ok(()) };
        self.ask(endpoint, feed, Since::Event(id), workflow, limit)
    }

    /// The entry of an event that the feed has shown at `feed`, or later if its id was used again.
    pub(super) fn entry_of(
        &mut self,
        endpoint: EndpointNo,
        feed: u64,
        id: EventId,
    ) -> Result<Option<u64>, Violation> {
        let name = &self.outside.endpoint(endpoint).name;
        match self.host.engine.read_feed(name, Since::Event(id), None, 0) {
            Ok(Ok(page)) if page.up_to.0 < feed => {
                let text =
                    format!("endpoint {name}: event {id} was entry {feed} and is entry {}", page.up_to);
                Err(Violation::new("feed", text))
            }
            Ok(Ok(page)) => Ok(Some(page.up_to.0)),
            Ok(Err(why)) => self.unavailable(endpoint, feed, &why).map(|()| None),
            Err(_) => Ok(None),
        }
    }

    fn unavailable(&mut self, endpoint: EndpointNo, since: u64, why: &Unavailable) -> Verdict {
        let passed = matches!(why, Unavailable::Passed { .. });
        self.note(Entry::Webhook { endpoint, what: Webhook::Unavailable { since, passed } })
    }

    fn ask_unknown(&self, endpoint: EndpointNo) -> Verdict {
        let name = &self.outside.endpoint(endpoint).name;
        let since = Since::Event(EventId::new("nowhere", "/nobody", "nothing"));
        match self.host.engine.read_feed(name, since, None, 1) {
            Err(_) | Ok(Err(Unavailable::Unknown { .. })) => Ok(()),
            other => {
                let text = format!("endpoint {name}: the feed after an unknown event is {other:?}");
                Err(Violation::new("feed", text))
            }
        }
    }

    fn ask(
        &mut self,
        endpoint: EndpointNo,
        after: u64,
        since: Since,
        workflow: Option<String>,
        limit: usize,
    ) -> Verdict {
        let name = self.outside.endpoint(endpoint).name.clone();
        match self.host.engine.read_feed(&name, since, workflow.as_deref(), limit) {
            Ok(Ok(page)) => {
                let token = self.take_token();
                self.host.engine.when_durable(Token(token));
                let since = if since == Since::Beginning { first_of(&page) } else { after };
                self.endpoints.reading.insert(token, Asked { endpoint, since, workflow, page });
                Ok(())
            }
            Ok(Err(why)) => {
                self.unavailable(endpoint, after, &why)?;
                match since {
                    // The reader continues with the oldest event.
                    Since::Entry(_) => self.ask(endpoint, 0, Since::Beginning, workflow, limit),
                    _ => Ok(()),
                }
            }
            Err(why) => self.unreadable(&name, &why),
        }
    }

    /// Only a disk that cannot be read may refuse a reader.
    fn unreadable(&self, name: &str, why: &Refused) -> Verdict {
        let reads_fail = self.mix.has(Trouble::DiskError) || self.mix.has(Trouble::CrashInRecovery);
        if reads_fail || self.host.engine.failure().is_some() {
            return Ok(());
        }
        Err(Violation::new("feed", format!("endpoint {name}: the feed cannot be read: {why:?}")))
    }

    /// Everything that was done before the request with this token is durable.
    pub fn page_is_durable(&mut self, token: u64) -> Verdict {
        let Some(Asked { endpoint, since, workflow, page }) = self.endpoints.reading.remove(&token) else {
            return Ok(());
        };
        let mut items = Vec::with_capacity(page.items.len());
        for item in &page.items {
            match self.listed(endpoint, item)? {
                Read::Listed(listed) => items.push(listed),
                Read::Gone => {}
                Read::Failed => return Ok(()),
            }
        }
        let page = Page { since, workflow, items, up_to: page.up_to.0 };
        self.note(Entry::Webhook { endpoint, what: Webhook::Shown(page) })
    }

    fn listed(&self, endpoint: EndpointNo, item: &FeedItem) -> Result<Read, Violation> {
        let wrong = |text: String| Violation::new("feed", text);
        let record = match self.host.engine.reader().read(item.located) {
            Ok(record) => record,
            Err(log::Error::Gone(_)) => return Ok(Read::Gone),
            Err(_) => return Ok(Read::Failed),
        };
        let event = match Record::decode(&record) {
            Ok(Record::Event { event, .. } | Record::Kept { event, .. }) => event,
            other => return Err(wrong(format!("entry {} is {other:?}", item.number))),
        };
        let view = EventView::decode(event).map_err(|_| wrong("an event is unreadable".into()))?;
        let elsewhere = view.attribute(HOME).is_some();
        let event = self.producer.find(elsewhere, view.source(), view.id());
        let event = event.filter(|_| elsewhere == self.outside.endpoint(endpoint).elsewhere);
        let event = event.ok_or_else(|| wrong(format!("entry {} was never made", item.number)))?;
        let entry = &item.entry;
        Ok(Read::Listed(Listed {
            feed: item.number.0,
            event,
            id: entry.id,
            workflow: entry.workflow.to_string(),
            number: entry.number.0,
            previous: entry.previous,
            unchanged: self.outside.made(event).to_event() == view.to_event(),
        }))
    }

    // ---- the end of a run ---------------------------------------------------------------------------------

    /// Everything is durable: reads each feed once from its beginning, and again from the last entry that was shown.
    pub fn feeds_are_complete(&mut self) -> Verdict {
        for endpoint in 0..self.endpoints.len() as EndpointNo {
            let up_to = self.outside.endpoint(endpoint).feed.up_to;
            self.ask(endpoint, up_to, Since::Entry(FeedNumber(up_to)), None, ALL)?;
            self.show_all()?;
            self.ask(endpoint, 0, Since::Beginning, None, ALL)?;
            self.show_all()?;
            let known = self.outside.endpoint(endpoint);
            let status = self.host.engine.view_subscription_status(&known.name);
            let delivered = status.map_or(0, |status| status.delivered);
            feed::at_end(&self.outside, known, delivered)?;
        }
        Ok(())
    }

    fn show_all(&mut self) -> Verdict {
        let tokens: Vec<u64> = self.endpoints.reading.keys().copied().collect();
        tokens.into_iter().try_for_each(|token| self.page_is_durable(token))
    }
}

enum Read {
    Listed(Listed),
    /// Retention has removed the event since the page was read.
    Gone,
    Failed,
}

/// A page from the beginning starts at the oldest event.
fn first_of(page: &FeedPage) -> u64 {
    page.items.first().map_or(page.up_to.0, |item| item.number.0 - 1)
}
