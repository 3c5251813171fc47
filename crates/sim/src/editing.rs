//! Operators who edit dead letters: they replace the data of the next delivery. Like webhook endpoints, edits have
//! random numbers of their own.

use crate::checkers::{Verdict, edits};
use crate::event::{ProducedEvent, SOURCES};
use crate::history::{Content, Entry, SubNo};
use crate::mix::Trouble;
use crate::rng::Rng;
use crate::world::World;
use klambda_core::event::{Data, Event, Form};
use klambda_core::event_codec::EventView;
use klambda_core::ids::Position;
use klambda_dispatch::dead_letters::{DeadLetter, Selector};

pub struct Editing {
    rng: Rng,
    /// The number of edits so far. Each edit has another content.
    versions: u32,
}

impl Editing {
    pub fn new(seed: u64) -> Editing {
        Editing { rng: Rng::new(seed ^ 0x0065_0064_0069_0074), versions: 0 }
    }
}

const PREFIX: &str = "edit ";

/// The event with the data of this edit.
fn edit(made: &ProducedEvent, version: u32) -> Event {
    let bytes = format!("{PREFIX}{version}").into();
    Event { data: Some(Data { bytes, form: Form::Text }), ..made.to_event() }
}

/// What was sent, or which edit of it.
pub fn content(made: &ProducedEvent, view: &EventView<'_>) -> Content {
    let event = view.to_event();
    if SOURCES[made.source] != view.source() {
        return Content::Other;
    }
    if event == made.to_event() {
        return Content::Original;
    }
    let data = event.data.as_ref().and_then(|data| std::str::from_utf8(&data.bytes).ok());
    let version = data.and_then(|text| text.strip_prefix(PREFIX)?.parse().ok());
    version.filter(|version| edit(made, *version) == event).map_or(Content::Other, Content::Edit)
}

impl World {
    pub fn edit_letters(&mut self) -> Verdict {
        let wants = self.mix.has(Trouble::Edits) && !self.known.names.is_empty();
        if !wants || !self.editing.rng.one_in(self.mix.operator_every) {
            return Ok(());
        }
        let at = self.editing.rng.below(self.known.names.len() as u64) as usize;
        let Some((name, sub)) = self.known.names.iter().nth(at).map(|(name, sub)| (name.clone(), *sub))
        else {
            return Ok(());
        };
        let Ok(id) = self.host.engine.subscription_id(&name) else { return Ok(()) };
        const LOOKED_AT: usize = 20;
        let letters = self.host.engine.select_dead_letters(id, &Selector::default(), Position(0), LOOKED_AT);
        match letters.unwrap_or_default() {
            letters if letters.is_empty() => Ok(()),
            letters => {
                let letter = self.editing.rng.pick(&letters).clone();
                self.edit_letter(&name, sub, &letter)
            }
        }
    }

    fn edit_letter(&mut self, name: &str, sub: SubNo, letter: &DeadLetter) -> Verdict {
        let Some(event) = self.event_of(letter) else { return Ok(()) };
        self.editing.versions += 1;
        let version = self.editing.versions;
        let edited = edit(self.outside.made(event), version);
        let done = self.host.engine.edit_dead_letter(&letter.id(name), &edited, "operator", None);
        let sure = done.is_ok();
        if let Err(why) = &done {
            self.refused("edit", why)?;
        }
        if sure || self.host.engine.failure().is_some() {
            self.note(Entry::Edited { sub, event, version, sure })?;
        }
        // Disk errors may prevent the view.
        let view = self.host.engine.view_dead_letter(letter.subscription, letter.entry.position);
        let Some(view) = view.ok().flatten().filter(|_| sure) else { return Ok(()) };
        let view = serde_json::to_value(&view).unwrap_or_default();
        let original = self.outside.made(event).text();
        edits::is_shown(&view, &format!("{PREFIX}{version}"), original.as_deref())
    }
}
