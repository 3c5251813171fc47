//! Reads a feed in pages.

use super::{CHUNK, Ends, FeedEntry, chunk_of, decode, place_in_chunk};
use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use crate::rows;
use klambda_core::ids::{FeedNumber, SubscriptionId};
use klambda_core::webhook::EventId;
use klambda_store::address::LogAddress;

/// Entries that one page looks at, whatever it returns.
const LOOKED_AT_MAX: u64 = 100_000;
/// Chunks that are read at once.
const ROWS_AT_ONCE: u64 = 64;

/// Where a reader continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Beginning,
    /// After the event with this id.
    Event(EventId),
    /// After this entry.
    Entry(FeedNumber),
}

#[derive(Debug)]
pub struct FeedPage {
    pub items: Vec<FeedItem>,
    /// The last entry that was looked at.
    pub up_to: FeedNumber,
    /// There are further entries.
    pub more: bool,
}

#[derive(Debug)]
pub struct FeedItem {
    pub number: FeedNumber,
    pub entry: FeedEntry,
    /// Where the event can be read now.
    pub located: LogAddress,
}

#[derive(Debug)]
pub enum Unavailable {
    /// Retention has removed events after this place. `oldest` is the first that is available.
    Passed { oldest: Option<EventId> },
    /// The feed does not know this id.
    Unknown { oldest: Option<EventId> },
}

impl Engine {
    /// A page of a feed. Call it as a command: what it returns is durable when the command returns.
    pub fn read_feed(
        &self,
        name: &str,
        since: Since,
        workflow: Option<&str>,
        limit: usize,
    ) -> Result<Result<FeedPage, Unavailable>, Refused> {
        let id = self.subscription_id(name)?;
        let Some(ends) = self.feed_ends(id) else {
            return Err(Refused::NotFound(format!("subscription {name:?} is not a webhook endpoint")));
        };
        let after = match since {
            Since::Beginning => Some(self.passed(id, ends)?),
            Since::Entry(number) => Some(number.0),
            Since::Event(event) => self.feed_number(id, event)?.map(|number| number.0),
        };
        match after {
            Some(after) if after <= ends.count && self.is_available_after(id, ends, after)? => {
                Ok(Ok(self.page_of_feed(id, after, ends.count, workflow, limit)?))
            }
            other => {
                let oldest = self.page_of_feed(id, self.passed(id, ends)?, ends.count, None, 1)?;
                let oldest = oldest.items.first().map(|item| item.entry.id);
                Ok(Err(match other {
                    Some(_) => Unavailable::Passed { oldest },
                    None => Unavailable::Unknown { oldest },
                }))
            }
        }
    }

    /// True if retention has removed no event after this place. A reader that continues needs no search.
    fn is_available_after(&self, id: SubscriptionId, ends: Ends, after: u64) -> Result<bool, Failure> {
        if after > ends.forgotten {
            let (oldest, last) = (self.store.log.oldest(), FeedNumber(after));
            let entries = self.feed_chunk(id, chunk_of(last))?;
            let rest = entries.get(place_in_chunk(last)..).unwrap_or_default();
            if !rest.is_empty() && rest.iter().all(|entry| entry.at >= oldest) {
                return Ok(true);
            }
        }
        Ok(after >= self.passed(id, ends)?)
    }

    /// How many entries at the beginning have lost their events to retention. Entries are nearly in the order of the
    /// log, so the place is searched by halving.
    fn passed(&self, id: SubscriptionId, ends: Ends) -> Result<u64, Failure> {
        let oldest = self.store.log.oldest();
        let is_passed = |entry: &FeedEntry| entry.at < oldest;
        let (mut low, mut high) = (ends.forgotten / CHUNK, ends.count.div_ceil(CHUNK));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.feed_chunk(id, middle)?.last() {
                Some(last) if is_passed(last) => low = middle + 1,
                _ => high = middle,
            }
        }
        if low * CHUNK >= ends.count {
            return Ok(ends.count);
        }
        let rest = self.feed_chunk(id, low)?.iter().rposition(is_passed).map_or(0, |place| place as u64 + 1);
        Ok(low * CHUNK + rest)
    }

    fn page_of_feed(
        &self,
        id: SubscriptionId,
        after: u64,
        count: u64,
        workflow: Option<&str>,
        limit: usize,
    ) -> Result<FeedPage, Failure> {
        let mut page = FeedPage { items: Vec::new(), up_to: FeedNumber(after), more: false };
        let end = count.min(after + LOOKED_AT_MAX);
        while page.up_to.0 < end && page.items.len() < limit {
            let wanted = (limit - page.items.len()) as u64 / CHUNK + 2;
            for (chunk, row) in self.feed_rows(id, page.up_to.0 / CHUNK, wanted)? {
                if page.up_to.0 < end {
                    self.add_to_page(&mut page, chunk, &row, workflow, limit)?;
                }
            }
        }
        page.more = page.up_to.0 < count;
        Ok(page)
    }

    /// Adds the entries of the chunk after those that the page has seen.
    fn add_to_page(
        &self,
        page: &mut FeedPage,
        chunk: u64,
        row: &[u8],
        workflow: Option<&str>,
        limit: usize,
    ) -> Result<(), Failure> {
        let (expected, first) = (page.up_to.0 / CHUNK, page.up_to.0 % CHUNK);
        if page.items.len() == limit {
            return Ok(());
        }
        let entries = decode(row)?;
        if chunk != expected || entries.len() as u64 <= first {
            return Err(Failure::State(format!("chunk {expected} of a feed is incomplete")));
        }
        for entry in entries.into_iter().skip(first as usize) {
            if page.items.len() == limit {
                return Ok(());
            }
            page.up_to.0 += 1;
            if entry.is_gone || workflow.is_some_and(|wanted| wanted != &*entry.workflow) {
                continue;
            }
            if let Some(located) = self.locate(entry.at)? {
                page.items.push(FeedItem { number: page.up_to, entry, located });
            }
        }
        Ok(())
    }

    /// The encoded chunks from this one on, at least one and at most `limit`. One scan is much cheaper than a search per
    /// chunk.
    fn feed_rows(&self, id: SubscriptionId, from: u64, limit: u64) -> Result<Vec<(u64, Vec<u8>)>, Failure> {
        let (prefix, limit) = (rows::of_subscription(rows::FEED, id), limit.min(ROWS_AT_ONCE));
        let found = self.store.rows.scan(&prefix, &rows::feed(id, from), limit as usize)?;
        let mut chunks: Vec<(u64, Vec<u8>)> =
            found.into_iter().map(|(key, row)| (rows::number_of(&key), row)).collect();
        let feed = self.subscriptions.get(id).and_then(|s| s.on_disk.feed.as_deref());
        let tail = feed.and_then(|feed| Some((feed.ends.count / CHUNK, feed.tail.as_ref()?)));
        // A row of the last chunk may be older than what is in memory.
        if let Some((last, tail)) = tail.filter(|(last, _)| (from..from + limit).contains(last)) {
            chunks.retain(|(chunk, _)| *chunk < last);
            chunks.push((last, tail.clone()));
        }
        match chunks.is_empty() {
            true => Err(Failure::State(format!("chunk {from} of a feed is missing"))),
            false => Ok(chunks),
        }
    }

    /// Where an event can be read: its place, or the copy that retention made.
    pub(crate) fn locate(&self, at: LogAddress) -> Result<Option<LogAddress>, Failure> {
        if at >= self.store.log.oldest() { Ok(Some(at)) } else { self.copy_of(at) }
    }
}
