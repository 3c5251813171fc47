//! Lists of lanes. Unsorted lists are ordered by subscription and key, in pages, over lanes in memory and on disk.
//! Sorted lists are the first hundred lanes with pending events. Each call does a bounded amount of work.

use super::lanes::Lane;
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::State;
use klambda_core::namespace::{self, Within};
use klambda_core::time::Millis;
use std::cmp::Reverse;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub struct LaneQuery {
    pub within: Within,
    /// The full name.
    pub subscription: Option<String>,
    pub state: Option<State>,
    /// Full name of the subscription and key of the last lane seen.
    pub after: Option<(String, String)>,
    pub limit: usize,
}

#[derive(Debug)]
pub struct LanePage {
    pub items: Vec<Lane>,
    /// Where to continue. There may be nothing more.
    pub after: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Most pending events first.
    Depth,
    /// Oldest pending event first.
    Age,
    /// Most arrivals first.
    Rate,
}

/// The top lanes so far, and the progress of scanning the lanes on disk.
pub struct Ranking {
    sort: Sort,
    within: Within,
    subscription: Option<String>,
    state: Option<State>,
    top: BTreeMap<(Reverse<u64>, String, String), Lane>,
    begun: bool,
    /// The index row to continue from.
    cursor: Option<Vec<u8>>,
    looked_at: usize,
}

pub const TOP: usize = 100;
/// Rows of lanes scanned at once, which takes a few milliseconds.
const ROWS_AT_ONCE: usize = 256;
/// Maximum number of lanes on disk that a sorted list compares.
const RANKED_MAX: usize = 20_000;

/// The lanes of one subscription, before they are cut to the limit.
struct Found {
    lanes: BTreeMap<String, Lane>,
    /// The lanes on disk were scanned only up to this key.
    up_to: Option<String>,
}

impl Engine {
    /// The next lanes by subscription and key. May return fewer than the limit, or none, together with where to
    /// continue.
    pub fn view_lanes(&self, query: &LaneQuery) -> Result<LanePage, Failure> {
        let mut names: Vec<&str> = match &query.subscription {
            Some(name) => vec![name],
            None => self.names_in(&query.within).collect(),
        };
        names.sort_unstable();
        let after = query.after.as_ref().map(|(name, key)| (name.as_str(), key.as_str()));
        let mut page = LanePage { items: Vec::new(), after: None };
        for name in names {
            let after = match after {
                Some((last, _)) if name < last => continue,
                Some((last, key)) if name == last => key,
                _ => "",
            };
            let left = query.limit - page.items.len();
            if left == 0 {
                page.after = Some((name.to_owned(), String::new()));
                break;
            }
            if self.add_lanes(name, query.state, after, left, &mut page)? {
                break;
            }
        }
        Ok(page)
    }

    fn names_in<'a>(&'a self, within: &'a Within) -> impl Iterator<Item = &'a str> {
        self.subscriptions.names().filter(|name| within.has(namespace::split(name).0))
    }

    /// Adds the lanes of one subscription. Returns true if the page ends here.
    fn add_lanes(
        &self,
        name: &str,
        state: Option<State>,
        after: &str,
        left: usize,
        page: &mut LanePage,
    ) -> Result<bool, Failure> {
        let Some(id) = self.subscriptions.named(name) else { return Ok(false) };
        let found = self.find_lanes(id, name, state, after, left)?;
        let full = found.lanes.len() > left;
        let mut last = None;
        for (key, lane) in found.lanes.into_iter().take(left) {
            page.items.push(lane);
            last = Some(key);
        }
        let next = if full { last } else { found.up_to };
        page.after = next.map(|key| (name.to_owned(), key));
        Ok(page.after.is_some())
    }

    /// Finds up to one lane more than `left`, ordered by key.
    fn find_lanes(
        &self,
        id: SubscriptionId,
        name: &str,
        state: Option<State>,
        after: &str,
        left: usize,
    ) -> Result<Found, Failure> {
        let wanted = |resident: &Resident| state.is_none_or(|state| self.shown_state(resident) == state);
        let mut found = Found { lanes: BTreeMap::new(), up_to: None };
        for resident in self.resident_after(id, after, left + 1, wanted) {
            found.lanes.insert(resident.key.to_string(), self.lane_view(name, resident)?);
        }
        let Some(letter) = index_of(state) else { return Ok(found) };
        let prefix = rows::of_subscription(letter, id);
        let from = [rows::of_lane(letter, id, after).as_slice(), &[0]].concat();
        let rows = self.store.rows.scan(&prefix, &from, ROWS_AT_ONCE)?;
        for (row, value) in &rows {
            let key = rows::lane_of(row);
            if self.lanes.find(id, key).is_some() {
                continue;
            }
            let stored = match letter {
                rows::LANE => Some(self.decode_lane(id, key, value)?),
                _ => self.peek_lane(id, key)?,
            };
            if let Some(stored) = stored.filter(wanted) {
                found.lanes.insert(key.to_owned(), self.lane_view(name, &stored)?);
            }
        }
        if rows.len() == ROWS_AT_ONCE
            && let Some((row, _)) = rows.last()
        {
            let up_to = rows::lane_of(row).to_owned();
            found.lanes.retain(|key, _| *key <= up_to);
            found.up_to = Some(up_to);
        }
        Ok(found)
    }

    /// The lanes in memory with the lowest keys after this one.
    fn resident_after(
        &self,
        id: SubscriptionId,
        after: &str,
        limit: usize,
        wanted: impl Fn(&Resident) -> bool,
    ) -> Vec<&Resident> {
        let of_it =
            |resident: &&Resident| resident.subscription == id && *resident.key > *after && wanted(resident);
        let mut found: Vec<&Resident> =
            self.lanes.iter().map(|(_, resident)| resident).filter(of_it).collect();
        if found.len() > limit {
            found.select_nth_unstable_by(limit, |a, b| a.key.cmp(&b.key));
            found.truncate(limit);
        }
        found
    }

    /// Continues a sorted list. Returns true if there is more to scan.
    pub fn rank_lanes(&self, ranking: &mut Ranking) -> Result<bool, Failure> {
        if !std::mem::replace(&mut ranking.begun, true) {
            self.rank_resident(ranking)?;
            // The rate of a lane is known only while it is in memory.
            ranking.cursor = (ranking.sort != Sort::Rate).then(Vec::new);
        }
        let Some(from) = ranking.cursor.take() else { return Ok(false) };
        let only = ranking.subscription.as_ref().map(|name| self.subscriptions.named(name.as_str()));
        let prefix = |letter| match only {
            Some(Some(id)) => rows::of_subscription(letter, id),
            _ => vec![letter],
        };
        // Two indexes, one after the other, in the order of their letters.
        for letter in [rows::PARKED, rows::WAITING] {
            if from.first().is_some_and(|at| *at > letter) {
                continue;
            }
            let found = self.store.rows.scan(&prefix(letter), &from, ROWS_AT_ONCE)?;
            for (row, _) in &found {
                self.rank_row(ranking, row)?;
            }
            ranking.looked_at += found.len();
            if let Some((row, _)) = found.last()
                && found.len() == ROWS_AT_ONCE
            {
                ranking.cursor = Some([row.as_slice(), &[0]].concat());
                return Ok(!ranking.is_partial());
            }
        }
        Ok(false)
    }

    fn rank_resident(&self, ranking: &mut Ranking) -> Result<(), Failure> {
        let busy = self.lanes.iter().map(|(_, resident)| resident).filter(|r| r.lane.depth() > 0);
        for resident in busy {
            self.rank(ranking, resident)?;
        }
        Ok(())
    }

    fn rank_row(&self, ranking: &mut Ranking, row: &[u8]) -> Result<(), Failure> {
        let key = rows::lane_of(row);
        let id = rows::subscription_of(row);
        if !self.subscriptions.contains(id) {
            return Ok(());
        }
        if self.lanes.find(id, key).is_some() {
            return Ok(());
        }
        match self.peek_lane(id, key)? {
            Some(stored) => self.rank(ranking, &stored),
            None => Ok(()),
        }
    }

    fn rank(&self, ranking: &mut Ranking, resident: &Resident) -> Result<(), Failure> {
        let name = self.name_of(resident.subscription);
        if !ranking.within.has(namespace::split(name).0)
            || ranking.subscription.as_deref().is_some_and(|wanted| wanted != name)
            || ranking.state.is_some_and(|state| self.shown_state(resident) != state)
        {
            return Ok(());
        }
        let score = ranking.sort.score(resident, self.now);
        let place = (Reverse(score), name.to_owned(), resident.key.to_string());
        let last = ranking.top.last_key_value();
        if ranking.top.len() == TOP && last.is_some_and(|(last, _)| *last < place) {
            return Ok(());
        }
        let lane = self.lane_view(name, resident)?;
        ranking.top.insert(place, lane);
        if ranking.top.len() > TOP {
            ranking.top.pop_last();
        }
        Ok(())
    }
}

/// The index that lists lanes in this state; `None` if they are only in memory.
fn index_of(state: Option<State>) -> Option<u8> {
    match state {
        Some(State::Running) => None,
        Some(State::Parked) => Some(rows::PARKED),
        Some(State::Retrying | State::Gap) => Some(rows::WAITING),
        Some(State::Open | State::Paused) | None => Some(rows::LANE),
    }
}

impl Sort {
    fn score(self, resident: &Resident, now: Millis) -> u64 {
        match self {
            Sort::Depth => resident.lane.depth(),
            Sort::Age => resident.lane.first_waiting().map_or(0, |entry| now.since(entry.accepted)),
            Sort::Rate => (resident.rate.per_second(now) * 1000.0) as u64,
        }
    }
}

impl Ranking {
    /// A ranking of the lanes that the query selects.
    pub fn new(sort: Sort, query: &LaneQuery) -> Ranking {
        Ranking {
            sort,
            within: query.within.clone(),
            subscription: query.subscription.clone(),
            state: query.state,
            top: BTreeMap::new(),
            begun: false,
            cursor: None,
            looked_at: 0,
        }
    }

    /// True if there are too many lanes on disk to compare all of them.
    pub fn is_partial(&self) -> bool {
        self.looked_at >= RANKED_MAX
    }

    pub fn into_lanes(self) -> Vec<Lane> {
        self.top.into_values().collect()
    }
}
