//! The encoding of a lane, or of a queue alone, in the tables. It contains everything except `in_flight`, which does
//! not survive the process.

use crate::ids::{LaneNumber, Locator, Position, Sequence};
use crate::lane::{
    Delivery, Early, Entry, Flag, Gap, Gaps, Lane, Passed, Producer, Queue, Spilled, SpilledEarly, Turn,
    Watermark,
};
use crate::planted::{self, Bug};
use crate::time::Millis;
use crate::wire::{Malformed, Reader, put_option, put_varint};

const VERSION: u8 = 3;

const OPENING: u8 = 1;
const HELD: u8 = 2;
const GAP_PARKED: u8 = 4;
const PAUSED: u8 = 8;
const TURN_QUEUE: u8 = 16;
const TURN_ASIDE: u8 = 32;

const FLAG_NEXT: u8 = 1;
const FLAG_LOADED: u8 = 2;

impl Lane {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.push(self.bits());
        put_varint(out, self.since.0);
        put_varint(out, self.active_at.0);
        put_option(out, self.gap.until.map(|at| at.0));
        put_delivery(out, &self.delivery);
        put_producer(out, &self.producer);
        self.queue.encode(out);
        put_entries(out, self.aside.iter());
        put_early(out, &self.early);
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Lane, Malformed> {
        if r.u8()? != VERSION {
            return Err(Malformed("lane version"));
        }
        let bits = r.u8()?;
        let mut lane = Lane::new(Millis(r.varint()?));
        lane.active_at = Millis(r.varint()?);
        lane.gap.until = r.option()?.map(Millis);
        lane.delivery = take_delivery(r)?;
        lane.producer = take_producer(r)?;
        lane.queue = Queue::decode(r)?;
        lane.aside = take_entries(r)?.into();
        lane.early = take_early(r)?;
        lane.set_bits(bits);
        Ok(lane)
    }

    fn bits(&self) -> u8 {
        bit(self.producer.opening, OPENING)
            | bit(self.held, HELD)
            | bit(self.gap.parked, GAP_PARKED)
            | bit(self.paused, PAUSED)
            | bit(self.delivery.persistent_turn() == Some(Turn::Queue), TURN_QUEUE)
            | bit(self.delivery.persistent_turn() == Some(Turn::Aside), TURN_ASIDE)
    }

    fn set_bits(&mut self, bits: u8) {
        let on = |bit: u8| bits & bit != 0;
        self.producer.opening = on(OPENING);
        self.held = on(HELD) && !planted::is_on(Bug::ParkedOpens);
        self.gap.parked = on(GAP_PARKED);
        self.paused = on(PAUSED);
        self.delivery.turn = on(TURN_QUEUE).then_some(Turn::Queue).or(on(TURN_ASIDE).then_some(Turn::Aside));
    }
}

impl Queue {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(bit(self.flag_next, FLAG_NEXT) | bit(self.flag_loaded, FLAG_LOADED));
        put_varint(out, self.next_number.0);
        put_varint(out, self.spilled.first_chunk);
        put_varint(out, self.spilled.next_chunk);
        put_varint(out, self.spilled.entries);
        put_entries(out, self.front.iter());
        put_entries(out, self.back.iter());
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Queue, Malformed> {
        let bits = r.u8()?;
        Ok(Queue {
            next_number: LaneNumber(r.varint()?),
            spilled: Spilled { first_chunk: r.varint()?, next_chunk: r.varint()?, entries: r.varint()? },
            front: take_entries(r)?.into(),
            back: take_entries(r)?,
            flag_next: bits & FLAG_NEXT != 0,
            flag_loaded: bits & FLAG_LOADED != 0,
        })
    }
}

fn bit(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

fn put_delivery(out: &mut Vec<u8>, delivery: &Delivery) {
    put_varint(out, u64::from(delivery.attempts));
    put_varint(out, u64::from(delivery.queue_total));
    put_varint(out, u64::from(delivery.aside_total));
    put_option(out, delivery.retry_at.map(|at| at.0));
}

fn take_delivery(r: &mut Reader<'_>) -> Result<Delivery, Malformed> {
    let attempts = r.u32()?;
    Ok(Delivery {
        attempts: if planted::is_on(Bug::RetriesReset) { 0 } else { attempts },
        queue_total: r.u32()?,
        aside_total: r.u32()?,
        retry_at: r.option()?.map(Millis),
        ..Delivery::default()
    })
}

fn put_producer(out: &mut Vec<u8>, producer: &Producer) {
    put_option(out, producer.expected.map(|sequence| sequence.0));
    for passed in [producer.watermark.older, producer.watermark.newer] {
        put_varint(out, passed.at.0);
        put_varint(out, passed.below.0);
    }
    put_gaps(out, &producer.gaps);
}

fn take_producer(r: &mut Reader<'_>) -> Result<Producer, Malformed> {
    Ok(Producer {
        expected: r.option()?.map(Sequence),
        watermark: Watermark { older: take_passed(r)?, newer: take_passed(r)? },
        gaps: take_gaps(r)?,
        opening: false,
    })
}

fn put_early(out: &mut Vec<u8>, early: &Early) {
    put_varint(out, early.spilled.entries);
    put_varint(out, early.spilled.bytes);
    put_varint(out, early.spilled.highest.0);
    put_varint(out, early.entries.len() as u64);
    for (sequence, entry) in &early.entries {
        put_varint(out, sequence.0);
        put_entry(out, entry);
    }
}

fn take_early(r: &mut Reader<'_>) -> Result<Early, Malformed> {
    let spilled = SpilledEarly { entries: r.varint()?, bytes: r.varint()?, highest: Sequence(r.varint()?) };
    let mut early = Early { spilled, ..Early::default() };
    for _ in 0..r.varint()? {
        let sequence = Sequence(r.varint()?);
        early.insert(sequence, take_entry(r)?);
    }
    Ok(early)
}

fn take_passed(r: &mut Reader<'_>) -> Result<Passed, Malformed> {
    Ok(Passed { at: Millis(r.varint()?), below: Sequence(r.varint()?) })
}

/// Ranges are in ascending order. Each is encoded as its distance from the previous one and its length.
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

pub fn put_entries<'a>(out: &mut Vec<u8>, entries: impl ExactSizeIterator<Item = &'a Entry>) {
    put_varint(out, entries.len() as u64);
    entries.for_each(|entry| put_entry(out, entry));
}

pub fn take_entries(r: &mut Reader<'_>) -> Result<Vec<Entry>, Malformed> {
    let n = r.varint()?;
    // An entry has at least six bytes. A wrong count must not reserve memory.
    if n > (r.rest().len() / 6) as u64 {
        return Err(Malformed("entry count"));
    }
    (0..n).map(|_| take_entry(r)).collect()
}

pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_varint(out, entry.position.0);
    put_varint(out, entry.at.raw());
    put_varint(out, entry.number.0);
    put_varint(out, entry.accepted.0);
    put_varint(out, u64::from(entry.bytes));
    out.push(entry.flag as u8);
}

pub fn take_entry(r: &mut Reader<'_>) -> Result<Entry, Malformed> {
    Ok(Entry {
        position: Position(r.varint()?),
        at: Locator::new(r.varint()?),
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
