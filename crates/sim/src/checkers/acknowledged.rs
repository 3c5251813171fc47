//! Acknowledged: what a receiver acknowledged, by its response or by a request, is not sent again. Only a crash can
//! undo it, and only before it is durable. A request covers every waiting event up to its entry of the feed, in all
//! workflows or in one, except those behind an open call. Repeating it changes nothing.

use super::{Verdict, Violation};
use crate::history::{Acked, Entry, Webhook};
use crate::outside::Outside;
use crate::outside::endpoints::{Endpoint, State};

const NAME: &str = "acknowledged";
/// The number of events that a violation names.
const SHOWN_MAX: usize = 20;

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Webhook { endpoint, what } = entry else { return Ok(()) };
    let endpoint = outside.endpoint(*endpoint);
    match what {
        Webhook::Called { workflow, events, .. } => {
            let is_done = |number: u64| {
                let place = endpoint.place(workflow, number);
                matches!(place.map(|place| place.state), Some(State::Done { .. }))
            };
            match events.iter().find(|pushed| is_done(pushed.number)) {
                None => Ok(()),
                Some(pushed) => {
                    let id = &outside.made(pushed.event).id;
                    let text = format!(
                        "endpoint {} workflow {workflow}: event {id} number {} was sent again although its \
                         acknowledgement was durable",
                        endpoint.name, pushed.number
                    );
                    let lane = Some((0, workflow.clone()));
                    Err(Violation { lane, ..Violation::of_event(NAME, pushed.event, text) })
                }
            }
        }
        Webhook::Acknowledged(acked) => requested(endpoint, acked),
        _ => Ok(()),
    }
}

/// Entries that were not shown yet, and events that may have left, are not counted.
fn requested(endpoint: &Endpoint, acked: &Acked) -> Verdict {
    if acked.again && acked.events > 0 {
        let text =
            format!("endpoint {}: a repeated acknowledgement covered {} events", endpoint.name, acked.events);
        return Err(Violation::new(NAME, text));
    }
    let waits = |(workflow, number): &(&str, u64)| {
        endpoint.place(workflow, *number).is_some_and(|place| endpoint.surely_waits(workflow, place))
    };
    let waiting: Vec<(&str, u64)> = endpoint.covered(acked).filter(waits).collect();
    if !acked.complete || acked.events >= waiting.len() as u64 {
        return Ok(());
    }
    let text = format!(
        "endpoint {}: {} events were waiting up to entry {} of the feed, but the acknowledgement covered {}: {:?}",
        endpoint.name,
        waiting.len(),
        acked.through,
        acked.events,
        &waiting[..waiting.len().min(SHOWN_MAX)],
    );
    let lane = waiting.first().map(|(workflow, _)| (0, (*workflow).to_owned()));
    Err(Violation { lane, ..Violation::new(NAME, text) })
}
