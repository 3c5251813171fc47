//! Views of dead letters, single and as a list.

use super::{Time, event_json};
use crate::apply::event_of;
use crate::dead_letters::{self, Selector};
use crate::edits;
use crate::engine::{Engine, Failure};
use crate::rows;
use crate::subscription::Subscription;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::namespace::{self, Within};
use klambda_core::outcome::Reason;
use klambda_store::address::Kept;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub id: String,
    pub namespace: String,
    pub subscription: String,
    pub key: Option<String>,
    /// Set only in the view of a single dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::CloudEvent>")]
    pub event: Option<Box<RawValue>>,
    /// The event as it was accepted. Set only in the view of a single dead letter that was edited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<super::CloudEvent>")]
    pub original: Option<Box<RawValue>>,
    #[serde(flatten)]
    pub edit: Option<Edit>,
    pub event_id: String,
    pub source: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub position: u64,
    #[schemars(extend("enum" = Reason::ALL.map(Reason::name)))]
    pub reason: &'static str,
    pub last_error: String,
    pub attempts: u32,
    pub failed_at: Time,
    pub accepted_at: Time,
    /// `None` if the event never had a place in a lane.
    pub lane_sequence: Option<u64>,
    pub holds_lane: bool,
    /// The sort key of its subscription in the list.
    #[serde(skip)]
    place: String,
}

impl DeadLetter {
    /// The id, unique across namespaces.
    pub fn full_id(&self) -> String {
        namespace::full_name(&self.namespace, &self.id).into_owned()
    }
}

/// The last edit of a dead letter.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Edit {
    /// How often it was edited.
    pub edits: u64,
    pub edited_by: String,
    pub edited_at: Time,
}

impl From<&edits::Edit> for Edit {
    fn from(edit: &edits::Edit) -> Edit {
        Edit { edits: edit.number, edited_by: edit.by.to_string(), edited_at: Time(edit.time) }
    }
}

/// A list being built, ordered by subscription and position.
#[derive(Debug)]
pub struct Letters {
    selector: Selector,
    within: Within,
    limit: usize,
    after: (String, Position),
    pub items: Vec<DeadLetter>,
}

/// Rows scanned at once.
const ROWS_AT_ONCE: usize = 500;

impl Letters {
    /// `after` is the subscription and position of the last dead letter seen.
    pub fn new(selector: Selector, after: Option<(String, Position)>, limit: usize) -> Letters {
        let within = selector.namespace.as_deref().map_or(Within::All, Within::one);
        Letters { selector, within, limit, after: after.unwrap_or_default(), items: Vec::new() }
    }

    /// Restricts the list to these namespaces.
    pub fn within(self, within: Within) -> Letters {
        Letters { within, ..self }
    }

    /// Cuts the list to the limit. Returns the place of the last item if there are more.
    pub fn cut(&mut self) -> Option<String> {
        if self.items.len() <= self.limit {
            return None;
        }
        self.items.truncate(self.limit);
        self.items.last().map(|letter| format!("{}.{}", letter.place, letter.position))
    }
}

/// The sort key of a subscription: its name. Deleted subscriptions with the same name follow it.
fn place_of(subscription: &Subscription) -> String {
    match subscription.is_retired() {
        true => format!("{}~{:010}", subscription.name(), subscription.id.0),
        false => subscription.name().to_owned(),
    }
}

impl Engine {
    /// A single dead letter with its event.
    pub fn view_dead_letter(
        &self,
        id: SubscriptionId,
        position: Position,
    ) -> Result<Option<DeadLetter>, Failure> {
        let Some(letter) = self.find_dead_letter(id, position)? else { return Ok(None) };
        let shown = |record: &[u8]| Ok::<_, Failure>(event_json(event_of(record)?.1)?);
        let event = Some(shown(&self.read_event(letter.entry.address())?)?);
        let mut view = self.letter_view(letter);
        (view.event, view.original) = match self.edit(id, position) {
            Some(edit) => (Some(shown(&self.store.log.read(edit.at)?)?), event),
            None => (event, None),
        };
        Ok(Some(view))
    }

    /// Continues a list. Returns true if there is more to scan. Finds one item more than the limit if there are more.
    pub fn list_dead_letters(&self, letters: &mut Letters) -> Result<bool, Failure> {
        let (name, position) = letters.after.clone();
        let Some((name, id)) = self.subscription_from(letters, &name) else { return Ok(false) };
        let after = if name == letters.after.0 { position } else { Position(0) };
        let (found, up_to) = self.letters_after(id, after)?;
        for letter in found {
            if letters.items.len() <= letters.limit && letters.selector.matches(&letter, self.name_of(id)) {
                letters.items.push(self.letter_view(letter));
            }
        }
        letters.after = match up_to {
            Some(position) => (name, position),
            // The directly following name, so that the next subscription is found whatever its name is.
            None => (format!("{name}\0"), Position(0)),
        };
        Ok(letters.items.len() <= letters.limit)
    }

    /// The first subscription from this name on that may match the selector.
    fn subscription_from(&self, letters: &Letters, name: &str) -> Option<(String, SubscriptionId)> {
        let selector = &letters.selector;
        let meant = |s: &&Subscription| {
            s.tally.dead + s.tally.held > 0
                && letters.within.has(&s.document.namespace)
                && selector.subscription.as_ref().is_none_or(|wanted| wanted == s.name())
        };
        let places = self.subscriptions.values().filter(meant).map(|s| (place_of(s), s.id));
        places.filter(|(place, _)| place.as_str() >= name).min()
    }

    /// Dead letters of both kinds in order, in portions, and the last position scanned if there are more.
    #[allow(clippy::type_complexity)]
    fn letters_after(
        &self,
        id: SubscriptionId,
        after: Position,
    ) -> Result<(Vec<dead_letters::DeadLetter>, Option<Position>), Failure> {
        let mut found = Vec::new();
        let mut up_to: Option<Position> = None;
        for letter in [rows::DEAD, rows::HELD] {
            let prefix = rows::of_subscription(letter, id);
            let from = rows::at_position(letter, id, self.first_after(letter, id, after));
            let page = self.store.rows.scan(&prefix, &from, ROWS_AT_ONCE)?;
            if page.len() == ROWS_AT_ONCE
                && let Some((row, _)) = page.last()
            {
                let last = Position(rows::number_of(row));
                up_to = Some(up_to.map_or(last, |up_to| up_to.min(last)));
            }
            for (row, value) in &page {
                found.push(dead_letters::decode(letter, id, Position(rows::number_of(row)), value)?);
            }
        }
        found.retain(|letter| up_to.is_none_or(|up_to| letter.entry.position <= up_to));
        found.sort_by_key(|letter| letter.entry.position);
        Ok((found, up_to))
    }

    pub(super) fn letter_view(&self, letter: dead_letters::DeadLetter) -> DeadLetter {
        let edit = self.edit(letter.subscription, letter.entry.position).map(Edit::from);
        let (namespace, name) = namespace::split(self.name_of(letter.subscription));
        let lane_sequence = letter.lane_sequence();
        DeadLetter {
            id: letter.id(name),
            namespace: namespace.to_owned(),
            subscription: name.to_owned(),
            key: letter.key,
            event: None,
            original: None,
            edit,
            event_id: letter.event_id,
            source: letter.source,
            kind: letter.kind,
            position: letter.entry.position.0,
            reason: letter.reason.name(),
            last_error: letter.error,
            attempts: letter.attempts.total,
            failed_at: Time(letter.failed),
            accepted_at: Time(letter.entry.accepted),
            lane_sequence,
            holds_lane: letter.holds_lane,
            place: self.subscriptions.get(letter.subscription).map(place_of).unwrap_or_default(),
        }
    }
}
