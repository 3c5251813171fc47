//! Operators: they create, change, pause and delete subscriptions, act on lanes, and delete and replay dead letters,
//! whether it makes sense or not. The engine may refuse actions that do not fit.

use crate::checkers::{self, Verdict};
use crate::event::{EventNo, KINDS, OTHER};
use crate::history::{Decision, Entry, SubNo};
use crate::mix::Trouble;
use crate::outside::Sub;
use crate::recovery::catching_up;
use crate::rules::Rules;
use crate::world::World;
use klambda_core::ids::{Position, Sequence};
use klambda_core::lane::State as LaneState;
use klambda_core::outcome::Reason;
use klambda_dispatch::dead_letters::{DeadLetter, Selector};
use klambda_dispatch::operate::{LaneAction, Leftover, Put, Refused};
use klambda_dispatch::replay::Request;
use klambda_dispatch::views::LaneQuery;

impl World {
    pub fn operate(&mut self) -> Verdict {
        if self.outside.calm {
            return Ok(());
        }
        let name = |n: u64| match self.mix.has(Trouble::Namespaces) {
            true if n % 2 == 1 => format!("{OTHER}/sub{}", n / 2),
            true => format!("sub{}", n / 2),
            false => format!("sub{n}"),
        };
        let missing = (0..self.mix.subscriptions).map(name).find(|name| !self.known.names.contains_key(name));
        if let Some(name) = missing
            && (self.round < 3 || self.rng.one_in(30))
        {
            return self.create(&name);
        }
        self.delete_as_planned()?;
        self.edit_letters()?;
        if self.known.names.is_empty() || !self.rng.one_in(self.mix.operator_every) {
            return Ok(());
        }
        match self.rng.below(13) {
            0..=4 if self.mix.has(Trouble::LaneActions) => self.act_on_lane(),
            5 if self.mix.has(Trouble::PolicyChanges) => self.change(),
            6 if self.mix.has(Trouble::Deletions) && self.rng.one_in(4) => self.delete(),
            7 if self.mix.has(Trouble::Pauses) => self.pause(),
            8 | 9 if self.mix.has(Trouble::Replays) => self.replay(),
            10 if self.mix.has(Trouble::LetterDeletions) && self.rng.one_in(2) => self.replay_beside(),
            10 if self.mix.has(Trouble::LetterDeletions) => self.delete_letters(),
            12 if self.mix.has(Trouble::Retargets) => self.retarget(),
            11 => {
                self.host.engine.request_checkpoint();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn some_subscription(&mut self) -> (String, SubNo) {
        let at = self.rng.below(self.known.names.len() as u64) as usize;
        let (name, sub) = self.known.names.iter().nth(at).expect("there is a subscription");
        (name.clone(), *sub)
    }

    pub fn refused(&mut self, what: &'static str, _why: &Refused) -> Verdict {
        self.note(Entry::Refused { what })
    }

    // ---- subscriptions ------------------------------------------------------------------------------------

    fn create(&mut self, name: &str) -> Verdict {
        // A new subscription must not get the dead letters of its predecessor, which a replay would deliver.
        let left = Selector { subscription: Some(name.to_owned()), ..Selector::default() };
        if self.host.engine.knows_subscription(name).is_ok()
            && let Err(why) = self.host.engine.purge_dead_letters(&left, true)
        {
            return self.refused("create", &why);
        }
        let rules = Rules::random(name, &self.mix, &mut self.rng);
        match self.host.engine.put_subscription(rules.document(), false) {
            Ok(_) => {}
            Err(why) => return self.refused("create", &why),
        }
        let Ok(id) = self.host.engine.subscription_id(name) else { return Ok(()) };
        let sub = self.outside.subs.len() as SubNo;
        let (drains, reads) = self.catching_up(name, rules.lags());
        let ids_limited = self.mix.marks_max < u64::MAX;
        let mut created = Sub::new(rules.clone(), drains || reads);
        created.limits.ids_limited = ids_limited;
        self.outside.subs.push(created);
        self.known.names.insert(name.to_owned(), sub);
        self.known.ids.insert(id, sub);
        self.known.rules_given.insert(sub, vec![rules]);
        self.note(Entry::Decided(Decision::Created { sub }))?;
        self.offer_stalled_replies()
    }

    fn catching_up(&self, name: &str, may_lag: bool) -> (bool, bool) {
        let status = self.host.engine.view_subscription_status(name);
        status.map_or((false, false), |status| catching_up(&status, may_lag))
    }

    fn change(&mut self) -> Verdict {
        let (name, sub) = self.some_subscription();
        let known = self.outside.sub(sub);
        if known.next_rules.is_some() || known.life.catching_up || known.life.draining || known.rules.paused {
            return Ok(());
        }
        let rules = known.rules.changed(&self.mix, &mut self.rng);
        let discard = self.rng.one_in(3);
        self.put(&name, sub, rules, discard)
    }

    /// Changes the target, preferably of a subscription whose breaker is open or half-open.
    fn retarget(&mut self) -> Verdict {
        let is_open = |name: &&String| {
            let status = self.host.engine.view_subscription_status(name);
            status.is_some_and(|status| status.breaker.state != "closed")
        };
        let (name, sub) = match self.known.names.keys().find(is_open) {
            Some(name) => (name.clone(), self.known.names[name]),
            None => self.some_subscription(),
        };
        let known = self.outside.sub(sub);
        if known.next_rules.is_some() || known.life.catching_up || known.life.draining {
            return Ok(());
        }
        let rules = Rules { host: self.rng.below(self.mix.hosts), ..known.rules.clone() };
        self.put(&name, sub, rules, false)
    }

    pub fn put(&mut self, name: &str, sub: SubNo, rules: Rules, discard: bool) -> Verdict {
        let old = self.outside.sub(sub).rules.clone();
        let put = match self.host.engine.put_subscription(rules.document(), discard) {
            Ok(put) => put,
            Err(why) => {
                self.refused("change", &why)?;
                if self.host.engine.failure().is_some() {
                    self.known.rules_given.entry(sub).or_default().push(rules);
                }
                let sure = !discard || matches!(why, Refused::LanesParked { .. } | Refused::Conflict(_));
                return if sure {
                    Ok(())
                } else {
                    self.note(Entry::Decided(Decision::DiscardedMaybe { sub }))
                };
            }
        };
        if put == Put::Unchanged {
            return Ok(());
        }
        let new_epoch = old.ordering != rules.ordering;
        let (drains, _) = self.catching_up(name, rules.lags());
        self.known.rules_given.entry(sub).or_default().push(rules.clone());
        self.outside.subs[sub as usize].given(rules, drains, &self.outside.events);
        let discards = discard && new_epoch;
        self.note(Entry::Decided(Decision::Changed { sub, discards, drains, new_epoch }))?;
        self.offer_stalled_replies()
    }

    fn delete(&mut self) -> Verdict {
        let (name, sub) = self.some_subscription();
        let leftover = *self.rng.pick(&[Leftover::Refuse, Leftover::Drain, Leftover::Discard]);
        match self.host.engine.delete_subscription(&name, leftover) {
            Ok(true) => {
                self.known.names.remove(&name);
                self.note(Entry::Decided(Decision::Removed { sub }))
            }
            Ok(false) => self.note(Entry::Decided(Decision::Draining { sub })),
            Err(why) => self.refused("delete", &why),
        }
    }

    fn pause(&mut self) -> Verdict {
        let (name, sub) = self.some_subscription();
        let paused = !self.outside.sub(sub).rules.paused;
        self.set_paused(&name, sub, paused)
    }

    pub fn set_paused(&mut self, name: &str, sub: SubNo, paused: bool) -> Verdict {
        match self.host.engine.pause_subscription(name, paused) {
            Ok(()) => self.note(Entry::Decided(Decision::Paused { sub, paused })),
            Err(why) => self.refused("pause", &why),
        }
    }

    // ---- lanes --------------------------------------------------------------------------------------------

    fn act_on_lane(&mut self) -> Verdict {
        let (name, sub) = self.some_subscription();
        // Occasionally any lane, which is usually empty.
        if self.rng.one_in(5) {
            let Some(key) = self.any_lane(sub) else { return Ok(()) };
            let action = *self.rng.pick(&[LaneAction::Purge, LaneAction::Resume, LaneAction::Skip]);
            return self.lane_action(&name, sub, &key, action);
        }
        let Some(key) = self.some_lane(&name, sub) else { return Ok(()) };
        let expected = self.rng.below(200);
        let action = match self.rng.below(12) {
            0..=3 => LaneAction::Resume,
            4..=6 => LaneAction::Skip,
            7 => LaneAction::Purge,
            8 | 9 => LaneAction::Pause,
            10 => LaneAction::Reset { expected: Sequence(expected) },
            _ => LaneAction::Resume,
        };
        self.lane_action(&name, sub, &key, action)
    }

    /// Picks a lane, preferably one that needs manual action.
    fn some_lane(&mut self, name: &str, sub: SubNo) -> Option<String> {
        let state =
            *self.rng.pick(&[Some(LaneState::Parked), Some(LaneState::Paused), Some(LaneState::Gap), None]);
        let query = LaneQuery {
            within: Default::default(),
            subscription: Some(name.to_owned()),
            state,
            after: None,
            limit: 20,
        };
        let page = self.host.engine.view_lanes(&query).ok()?;
        let keys: Vec<String> = page.items.into_iter().map(|lane| lane.key).collect();
        if !keys.is_empty() {
            return Some(self.rng.pick(&keys).clone());
        }
        self.any_lane(sub)
    }

    fn any_lane(&mut self, sub: SubNo) -> Option<String> {
        let lanes = &self.outside.sub(sub).lanes;
        let at = self.rng.below(lanes.len() as u64) as usize;
        lanes.keys().nth(at).cloned()
    }

    pub fn lane_action(&mut self, name: &str, sub: SubNo, key: &str, action: LaneAction) -> Verdict {
        if let Err(why) = self.host.engine.act_on_lane(name, key, action) {
            self.refused("lane", &why)?;
            // If the engine failed during the action, the next process may find it in the log.
            if self.host.engine.failure().is_none() {
                return Ok(());
            }
        }
        let key = key.to_owned();
        self.note(Entry::Decided(match action {
            LaneAction::Resume => Decision::Resume { sub, key },
            LaneAction::Skip => Decision::Skip { sub, key },
            LaneAction::Purge => Decision::Purge { sub, key },
            LaneAction::Pause => Decision::PauseLane { sub, key },
            LaneAction::Reset { expected } => Decision::Reset { sub, key, expected: expected.0 },
        }))
    }

    // ---- dead letters -------------------------------------------------------------------------------------

    pub fn letters(&self, name: &str) -> Vec<DeadLetter> {
        let Ok(id) = self.host.engine.subscription_id(name) else { return Vec::new() };
        let select =
            || self.host.engine.select_dead_letters(id, &Selector::default(), Position(0), usize::MAX);
        // Several consecutive reads may fail.
        const TRIES: u32 = 50;
        (0..TRIES).find_map(|_| select().ok()).unwrap_or_default()
    }

    fn delete_letters(&mut self) -> Verdict {
        let (name, sub) = self.some_subscription();
        let before = self.letters(&name);
        if before.is_empty() {
            return Ok(());
        }
        if !self.rng.one_in(8) {
            let letter = self.rng.pick(&before).clone();
            return self.delete_letter(&name, sub, &letter, &before);
        }
        let selector = Selector { subscription: Some(name.clone()), ..Selector::default() };
        let holders = self.rng.one_in(2);
        if let Err(why) = self.host.engine.purge_dead_letters(&selector, holders) {
            self.refused("delete letters", &why)?;
        }
        let after = self.letters(&name);
        self.letters_deleted(sub, &before, &after)
    }

    fn delete_letter(
        &mut self,
        name: &str,
        sub: SubNo,
        letter: &DeadLetter,
        before: &[DeadLetter],
    ) -> Verdict {
        let result = self.host.engine.delete_dead_letter(&letter.id(name));
        let after = self.letters(name);
        checkers::deletion::refusal(letter, &result)?;
        if self.host.engine.failure().is_none() && self.faults_are_off() {
            checkers::deletion::of_one(letter, &result, before, &after)?;
        }
        if let Err(why) = &result {
            self.refused("delete letter", why)?;
        }
        self.letters_deleted(sub, before, &after)
    }

    fn letters_deleted(&mut self, sub: SubNo, before: &[DeadLetter], after: &[DeadLetter]) -> Verdict {
        let left: Vec<Position> = after.iter().map(|letter| letter.entry.position).collect();
        for letter in before.iter().filter(|letter| !left.contains(&letter.entry.position)) {
            let Some(event) = self.event_of(letter) else {
                return Err(checkers::no_invention::unknown_letter(letter));
            };
            self.note(Entry::Decided(Decision::LetterDeleted { sub, event }))?;
        }
        Ok(())
    }

    /// Two dead letters of one lane: one that parks it, and one beside it, which a replay delivers first.
    fn held_and_beside(&self, name: &str) -> Option<(DeadLetter, DeadLetter)> {
        let mut letters = self.letters(name);
        let beside = |held: &DeadLetter, other: &DeadLetter| {
            !other.holds_lane && other.entry.number.0 > 0 && other.key == held.key
        };
        let is_held = |held: &DeadLetter| held.holds_lane && letters.iter().any(|other| beside(held, other));
        let held = letters.iter().position(is_held)?;
        let held = letters.swap_remove(held);
        let other = letters.into_iter().find(|other| beside(&held, other))?;
        Some((held, other))
    }

    /// Replays the dead letter beside the lane. The one that parks the lane is deleted while the replay runs.
    fn replay_beside(&mut self) -> Verdict {
        let mut going = self.known.names.iter().filter(|(_, sub)| !self.outside.sub(**sub).rules.paused);
        let found = going.find_map(|(name, sub)| Some((name, *sub, self.held_and_beside(name)?)));
        let Some((name, sub, (held, other))) = found else { return self.skip_parked() };
        let name = name.clone();
        let selector = Selector { ids: Some(vec![other.id(&name)]), ..Selector::default() };
        let request = Request { selector, rate_per_second: 0, parallelism: 1 };
        // The call happens in the next round, when the replay is durable.
        self.watched.deletion = Some((self.round + self.rng.between(2, 3), name, held));
        self.start_replay(request, Some(sub))
    }

    /// Skips the head of a parked lane. It becomes a dead letter beside the lane.
    fn skip_parked(&mut self) -> Verdict {
        let query = LaneQuery {
            within: Default::default(),
            subscription: None,
            state: Some(LaneState::Parked),
            after: None,
            limit: 20,
        };
        let Ok(page) = self.host.engine.view_lanes(&query) else { return Ok(()) };
        // Prefers a lane that will fail again.
        let Some(lane) = page.items.into_iter().max_by_key(|lane| lane.depth) else { return Ok(()) };
        let name = lane.subscription_name();
        match self.known.names.get(&name).copied() {
            Some(sub) => self.lane_action(&name, sub, &lane.key, LaneAction::Skip),
            None => Ok(()),
        }
    }

    fn delete_as_planned(&mut self) -> Verdict {
        let Some((_, name, held)) = self.watched.deletion.take_if(|(due, ..)| *due <= self.round) else {
            return Ok(());
        };
        let Some(sub) = self.known.names.get(&name).copied() else { return Ok(()) };
        let before = self.letters(&name);
        let is_it = |letter: &&DeadLetter| letter.holds_lane && letter.entry.position == held.entry.position;
        match before.iter().find(is_it).cloned() {
            Some(letter) => self.delete_letter(&name, sub, &letter, &before),
            None => Ok(()),
        }
    }

    /// With disk errors, a failed read may truncate a list.
    fn faults_are_off(&self) -> bool {
        !self.mix.has(Trouble::DiskError)
    }

    pub fn event_of(&self, letter: &DeadLetter) -> Option<EventNo> {
        let sub = self.outside.sub(*self.known.ids.get(&letter.subscription)?);
        self.producer.find(sub.rules.is_elsewhere(), &letter.source, &letter.event_id)
    }

    fn replay(&mut self) -> Verdict {
        let only = self.rng.one_in(2).then(|| self.some_subscription());
        let (name, sub) = only.unzip();
        let request = Request {
            selector: self.some_selector(name),
            rate_per_second: *self.rng.pick(&[0, 0, 20, 200]),
            parallelism: self.rng.between(1, 4) as u32,
        };
        match self.rng.below(6) {
            // A dry run changes nothing.
            0 => self.dry_run(request),
            1 if self.watched.replays_made > 0 => {
                let id = self.rng.between(1, self.watched.replays_made);
                return match self.host.engine.stop_replay(id) {
                    Ok(()) => self.note(Entry::Decided(Decision::ReplayStopped)),
                    Err(why) => self.refused("stop", &why),
                };
            }
            _ => return self.start_replay(request, sub),
        }
        Ok(())
    }

    fn dry_run(&self, request: Request) {
        let Ok(mut dry) = self.host.engine.begin_dry_run(request) else { return };
        while let Ok(false) = self.host.engine.continue_dry_run(&mut dry) {}
    }

    /// Selects all dead letters or some of them.
    fn some_selector(&mut self, subscription: Option<String>) -> Selector {
        let all = Selector { subscription, ..Selector::default() };
        match self.rng.below(6) {
            0 => Selector { key: Some(format!("k{}", self.rng.below(self.mix.keys))), ..all },
            1 => Selector { kind: Some((*self.rng.pick(&KINDS)).to_owned()), ..all },
            2 => Selector { reason: Some(*self.rng.pick(&Reason::ALL)), ..all },
            _ => all,
        }
    }

    pub fn start_replay(&mut self, request: Request, sub: Option<SubNo>) -> Verdict {
        match self.host.engine.create_replay(request) {
            Ok(id) => {
                self.watched.replays_made = self.watched.replays_made.max(id);
                self.note(Entry::Decided(Decision::Replay { sub }))
            }
            Err(why) => self.refused("replay", &why),
        }
    }
}
