//! Liveness: after the troubles stop, everything drains within a limit, or lanes stay parked with a reason that their
//! description shows.
//!
//! Covers gap timers, slots, retries, breakers, parked lanes, pauses and a full disk.

use super::Violation;
use crate::outside::Outside;
use klambda_dispatch::Engine;
use klambda_dispatch::views::LaneQuery;

const NAME: &str = "liveness";

/// The lanes that are not empty, and what each lane waits for.
pub struct Standing {
    /// Lanes that continue by themselves.
    pub moving: Vec<String>,
    /// Lanes that need manual action: subscription, key, and whether they wait at a gap.
    pub parked: Vec<(String, String, bool)>,
}

pub fn standing(engine: &Engine) -> Result<Standing, Violation> {
    let mut standing = Standing { moving: Vec::new(), parked: Vec::new() };
    let mut query =
        LaneQuery { within: Default::default(), subscription: None, state: None, after: None, limit: 100 };
    loop {
        let page = engine.view_lanes(&query).map_err(|failure| Violation::new(NAME, failure.to_string()))?;
        for lane in page.items.iter().filter(|lane| lane.depth > 0 || lane.state == "paused") {
            let reason = lane.waits_for.as_deref().unwrap_or_default();
            let line = format!(
                "{} {}: {} ({} waiting) for {reason:?}",
                lane.subscription_name(),
                lane.key,
                lane.state,
                lane.depth
            );
            if reason.is_empty() && lane.depth > 0 {
                return Err(Violation::new(NAME, format!("a lane waits without a reason: {line}")));
            }
            match lane.state {
                "parked" | "paused" => {
                    let gap = lane.gap.is_some() && reason.contains("sequence");
                    standing.parked.push((lane.subscription_name(), lane.key.clone(), gap));
                }
                _ if reason.contains("paused") => {
                    standing.parked.push((lane.subscription_name(), lane.key.clone(), false));
                }
                _ => standing.moving.push(line),
            }
        }
        match page.after {
            Some(after) => query.after = Some(after),
            None => return Ok(standing),
        }
    }
}

/// The limit is reached and something still moves, or should.
pub fn stuck(outside: &Outside, engine: &Engine, standing: &Standing, rounds: u64) -> Violation {
    let mut text = format!(
        "after {rounds} rounds without trouble: {} pending events, {} unread, {} open requests, catching up: {}",
        engine.waiting(),
        engine.unread(),
        engine.open_requests(),
        engine.is_catching_up(),
    );
    text.push_str(&format!(", idle: {}, accepting: {}", engine.is_idle(), engine.is_accepting()));
    for line in standing.moving.iter().take(5) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    for sub in outside.subs.iter().filter(|sub| sub.life.there) {
        if let Some(view) = engine.view_subscription(&sub.rules.name) {
            text.push_str(&format!("\n  {}: {:?}", sub.rules.name, view.status));
        }
    }
    Violation::new(NAME, text)
}
