//! A lane as bytes: its row in the tables. Everything but `in_flight`, which ends with the process.

use crate::ids::{Address, LaneNumber, Position, Sequence};
use crate::lane::{Entry, Flag, Gap, Gaps, Lane, Passed, Spilled, SpilledEarly, Turn, Watermark};
use crate::planted::{self, Bug};
use crate::time::Millis;
use crate::wire::{Malformed, Reader, put_option, put_varint};

const VERSION: u8 = 2;
/// Rows that say of only one of the watermark's moments when it was, and of no gap.
const VERSION_1: u8 = 1;

const OPENING: u8 = 1;
const HELD: u8 = 2;
const GAP_PARKED: u8 = 4;
const PAUSED: u8 = 8;
const FLAG_NEXT: u8 = 16;
const FLAG_LOADED: u8 = 32;
const TURN_QUEUE: u8 = 64;
const TURN_ASIDE: u8 = 128;

impl Lane {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.push(self.bits());
        put_varint(out, self.next_number.0);
        put_varint(out, self.since.0);
        put_varint(out, self.active_at.0);
        put_varint(out, u64::from(self.attempts));
        put_varint(out, u64::from(self.attempts_total));
        put_varint(out, u64::from(self.aside_attempts_total));
        put_option(out, self.retry_at.map(|at| at.0));
        put_option(out, self.gap_until.map(|at| at.0));
        put_option(out, self.expected.map(|sequence| sequence.0));
        for passed in [self.watermark.older, self.watermark.newer] {
            put_varint(out, passed.at.0);
            put_varint(out, passed.below.0);
        }
        put_varint(out, self.early_spilled.entries);
        put_varint(out, self.early_spilled.bytes);
        put_varint(out, self.early_spilled.highest.0);
        put_varint(out, self.spilled.first_chunk);
        put_varint(out, self.spilled.next_chunk);
        put_varint(out, self.spilled.entries);
        put_gaps(out, &self.gaps);
        put_entries(out, self.queue.iter());
        put_entries(out, self.back.iter());
        put_entries(out, self.aside.iter());
        put_varint(out, self.early.len() as u64);
        for (sequence, entry) in &self.early {
            put_varint(out, sequence.0);
            put_entry(out, entry);
        }
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Lane, Malformed> {
        let version = r.u8()?;
        if version != VERSION && version != VERSION_1 {
            return Err(Malformed("lane version"));
        }
        let bits = r.u8()?;
        let mut lane = Lane::new(Millis::ZERO);
        lane.set_bits(bits);
        lane.next_number = LaneNumber(r.varint()?);
        lane.since = Millis(r.varint()?);
        lane.active_at = Millis(r.varint()?);
        lane.attempts = r.u32()?;
        if planted::is_on(Bug::RetriesReset) {
            lane.attempts = 0;
        }
        lane.attempts_total = r.u32()?;
        lane.aside_attempts_total = r.u32()?;
        lane.retry_at = r.option()?.map(Millis);
        lane.gap_until = r.option()?.map(Millis);
        lane.expected = r.option()?.map(Sequence);
        lane.watermark = match version {
            VERSION_1 => take_watermark_1(r)?,
            _ => Watermark { older: take_passed(r)?, newer: take_passed(r)? },
        };
        lane.early_spilled =
            SpilledEarly { entries: r.varint()?, bytes: r.varint()?, highest: Sequence(r.varint()?) };
        lane.spilled = Spilled { first_chunk: r.varint()?, next_chunk: r.varint()?, entries: r.varint()? };
        lane.gaps = if version == VERSION_1 { take_plain_gaps(r)? } else { take_gaps(r)? };
        lane.queue = take_entries(r)?.into();
        lane.back = take_entries(r)?;
        lane.aside = take_entries(r)?.into();
        for _ in 0..r.varint()? {
            let sequence = Sequence(r.varint()?);
            let entry = take_entry(r)?;
            lane.early_bytes += u64::from(entry.bytes);
            lane.early.insert(sequence, entry);
        }
        Ok(lane)
    }

    fn bits(&self) -> u8 {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        bit(self.opening, OPENING)
            | bit(self.held, HELD)
            | bit(self.gap_parked, GAP_PARKED)
            | bit(self.paused, PAUSED)
            | bit(self.flag_next, FLAG_NEXT)
            | bit(self.flag_loaded, FLAG_LOADED)
            | bit(self.persistent_turn() == Some(Turn::Queue), TURN_QUEUE)
            | bit(self.persistent_turn() == Some(Turn::Aside), TURN_ASIDE)
    }

    /// A turn that only an open request holds ends with the process.
    pub(crate) fn persistent_turn(&self) -> Option<Turn> {
        self.turn.filter(|_| self.attempts > 0)
    }

    fn set_bits(&mut self, bits: u8) {
        let on = |bit: u8| bits & bit != 0;
        self.opening = on(OPENING);
        self.held = on(HELD) && !planted::is_on(Bug::ParkedOpens);
        self.gap_parked = on(GAP_PARKED);
        self.paused = on(PAUSED);
        self.flag_next = on(FLAG_NEXT);
        self.flag_loaded = on(FLAG_LOADED);
        self.turn = on(TURN_QUEUE).then_some(Turn::Queue).or(on(TURN_ASIDE).then_some(Turn::Aside));
    }
}

fn take_passed(r: &mut Reader<'_>) -> Result<Passed, Malformed> {
    Ok(Passed { at: Millis(r.varint()?), below: Sequence(r.varint()?) })
}

/// The older moment was some time before the newer one: to take it for as new turns nothing away too early.
fn take_watermark_1(r: &mut Reader<'_>) -> Result<Watermark, Malformed> {
    let newer = take_passed(r)?;
    Ok(Watermark { older: Passed { below: Sequence(r.varint()?), ..newer }, newer })
}

/// Ranges rise and do not touch: each is its distance from the one before, and its length.
fn put_gaps(out: &mut Vec<u8>, gaps: &Gaps) {
    put_varint(out, gaps.unknown_below().0);
    put_varint(out, gaps.ranges().len() as u64);
    let mut before = 0;
    for Gap { from, to, at } in gaps.ranges() {
        put_varint(out, from.0 - before);
        put_varint(out, to.0 - from.0);
        put_varint(out, at.0);
        before = to.0;
    }
}

fn take_gaps(r: &mut Reader<'_>) -> Result<Gaps, Malformed> {
    let (unknown_below, n) = (Sequence(r.varint()?), r.varint()?);
    let mut before = 0_u64;
    let mut ranges = Vec::new();
    for _ in 0..n {
        let from = before.checked_add(r.varint()?).ok_or(Malformed("gap"))?;
        let to = from.checked_add(r.varint()?).ok_or(Malformed("gap"))?;
        ranges.push(Gap { from: Sequence(from), to: Sequence(to), at: Millis(r.varint()?) });
        before = to;
    }
    Ok(Gaps::decoded(ranges, unknown_below))
}

/// As rows of version 1 had them: first and last.
fn take_plain_gaps(r: &mut Reader<'_>) -> Result<Gaps, Malformed> {
    let take = |r: &mut Reader<'_>| {
        Ok(Gap { from: Sequence(r.varint()?), to: Sequence(r.varint()?), at: Millis::ZERO })
    };
    let mut ranges: Vec<Gap> = (0..r.varint()?).map(|_| take(r)).collect::<Result<_, Malformed>>()?;
    ranges.sort_by_key(|gap| gap.from);
    let is_ordered = ranges.iter().all(|gap| gap.from <= gap.to)
        && ranges.windows(2).all(|pair| pair[0].to <= pair[1].from);
    if !is_ordered {
        return Err(Malformed("gap"));
    }
    Ok(Gaps::decoded(ranges, Sequence(0)))
}

pub fn put_entries<'a>(out: &mut Vec<u8>, entries: impl ExactSizeIterator<Item = &'a Entry>) {
    put_varint(out, entries.len() as u64);
    entries.for_each(|entry| put_entry(out, entry));
}

pub fn take_entries(r: &mut Reader<'_>) -> Result<Vec<Entry>, Malformed> {
    let n = r.varint()?;
    // An entry is at least six bytes: a wrong count must not reserve memory.
    if n > (r.rest().len() / 6) as u64 {
        return Err(Malformed("entry count"));
    }
    (0..n).map(|_| take_entry(r)).collect()
}

pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_varint(out, entry.position.0);
    put_varint(out, entry.at.0);
    put_varint(out, entry.number.0);
    put_varint(out, entry.accepted.0);
    put_varint(out, u64::from(entry.bytes));
    out.push(entry.flag as u8);
}

pub fn take_entry(r: &mut Reader<'_>) -> Result<Entry, Malformed> {
    Ok(Entry {
        position: Position(r.varint()?),
        at: Address(r.varint()?),
        number: LaneNumber(r.varint()?),
        accepted: Millis(r.varint()?),
        bytes: r.u32()?,
        flag: match r.u8()? {
            0 => Flag::None,
            1 => Flag::Late,
            2 => Flag::Gap,
            _ => return Err(Malformed("flag")),
        },
    })
}
