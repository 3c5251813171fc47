//! The routes of an event: its place in each subscription that receives it.

use crate::address::LogAddress;
use klambda_core::ids::{Sequence, SubscriptionId};
use klambda_core::wire::{Malformed, Reader, put_bytes, put_option, put_varint};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route<'a> {
    pub subscription: SubscriptionId,
    pub previous: LogAddress,
    pub to: To<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To<'a> {
    Lane {
        key: &'a str,
        sequence: Option<Sequence>,
    },
    /// The subscription is unordered.
    Alone,
    /// The event has no valid key or sequence although the policy requires one: a dead letter beside the lanes.
    Invalid {
        what: &'a str,
    },
    /// The subscription reads the log, or starts to with this event, and will read the event later.
    Later,
    /// The event was to be read later but never will be: retention removed it, or the owner discarded it. `key` is
    /// the lane that misses it; empty if the event had no lane.
    Missed {
        key: &'a str,
        why: Missed,
    },
}

/// Why an accepted event was never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    Retention,
    Discarded,
}

pub(super) fn put_routes(out: &mut Vec<u8>, routes: &[Route<'_>]) {
    put_varint(out, routes.len() as u64);
    routes.iter().for_each(|route| put_route(out, route));
}

pub(super) fn take_routes<'a>(r: &mut Reader<'a>) -> Result<Vec<Route<'a>>, Malformed> {
    let n = r.varint()?;
    if n > r.rest().len() as u64 {
        return Err(Malformed("route count"));
    }
    (0..n).map(|_| take_route(r)).collect()
}

pub(super) fn skip_routes(r: &mut Reader<'_>) -> Result<(), Malformed> {
    (0..r.varint()?).try_for_each(|_| take_route(r).map(drop))
}

pub(super) fn put_route(out: &mut Vec<u8>, route: &Route<'_>) {
    put_varint(out, u64::from(route.subscription.0));
    put_varint(out, route.previous.0);
    match &route.to {
        To::Lane { key, sequence } => {
            out.push(0);
            put_bytes(out, key.as_bytes());
            put_option(out, sequence.map(|sequence| sequence.0));
        }
        To::Alone => out.push(1),
        To::Invalid { what } => {
            out.push(2);
            put_bytes(out, what.as_bytes());
        }
        To::Later => out.push(3),
        To::Missed { key, why } => {
            out.push(match why {
                Missed::Retention => 4,
                Missed::Discarded => 5,
            });
            put_bytes(out, key.as_bytes());
        }
    }
}

pub(super) fn take_route<'a>(r: &mut Reader<'a>) -> Result<Route<'a>, Malformed> {
    Ok(Route {
        subscription: SubscriptionId(r.u32()?),
        previous: LogAddress(r.varint()?),
        to: match r.u8()? {
            0 => To::Lane { key: r.text()?, sequence: r.option()?.map(Sequence) },
            1 => To::Alone,
            2 => To::Invalid { what: r.text()? },
            3 => To::Later,
            4 => To::Missed { key: r.text()?, why: Missed::Retention },
            5 => To::Missed { key: r.text()?, why: Missed::Discarded },
            _ => return Err(Malformed("route")),
        },
    })
}
