//! Changes that are not durable must have no effect: a power cut would undo them, and a number could be given to an
//! event other than the one delivered with it.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::subscription::Document;
use klambda_dispatch::Delivery;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::replay::Request;
use serde_json::json;
use world::{World, ordered};

/// Everything that can start now without a sync.
fn starts(world: &mut World) -> Vec<Delivery> {
    let mut started = Vec::new();
    loop {
        world.engine.tick(world.now);
        world.engine.flush();
        let more = world.engine.take_deliveries();
        if more.is_empty() {
            return started;
        }
        started.extend(more);
    }
}

fn numbers(deliveries: &[Delivery]) -> Vec<u64> {
    deliveries.iter().filter_map(|delivery| Some(delivery.place.as_ref()?.number.0)).collect()
}

#[test]
fn an_event_that_opens_a_lane_for_others_is_durable_before_they_go_out() {
    let mut world = World::new(1);
    let policy = json!({
        "sequence": {"attribute": "sequence"}, "gap": {"timeout": "1h"}, "buffer": {"maxEvents": 3},
    });
    world.put(ordered("s", &json!({"orderingPolicy": policy})));
    for sequence in [14, 15] {
        world.send("k", Some(sequence));
        world.settle();
    }
    world.send("k", Some(16));
    assert_eq!(numbers(&starts(&mut world)), [0; 0], "the full buffer is not durable yet");
    world.restart(&mut |_| 0);
    world.send("k", Some(13));
    world.settle();
    let open = world.take_open();
    assert_eq!(numbers(&open), [1]);
    let event = EventView::decode(&open[0].record[open[0].event.clone()]).expect("an event");
    assert_eq!(event.attribute("sequence").as_deref(), Some("13"), "no event had a number before");
}

#[test]
fn an_event_from_the_past_goes_out_once_its_place_is_durable() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(1);
        world.send("k", None);
        world.settle();
        let spec = json!({"from": "earliest", "ordering": ordering});
        let document = Document::parse(&ordered("s", &spec)).expect("a valid document");
        world.engine.put_subscription(document, false).expect("put");
        assert_eq!(starts(&mut world).len(), 0, "the subscription is not durable either");
        world.settle();
        assert_eq!(world.take_open().len(), 1);
    }
}

/// Unsynced arrivals that use up memory.
fn press(world: &mut World, lanes: std::ops::Range<u64>) {
    for n in lanes {
        world.send(&format!("fill{n}"), None);
        world.engine.run_prepare();
        assert!(starts(world).is_empty(), "no new delivery starts");
    }
}

/// The row would not contain how far the log must be durable before anything starts.
#[test]
fn a_lane_with_a_decision_that_is_not_durable_stays_in_memory() {
    let mut world = World::new(2);
    let filters = |prefix: &str| json!([{"prefix": {"partitionkey": prefix}}]);
    let retry = json!({"attempts": 3, "backoff": "5s", "maxBackoff": "5s"});
    let policy = json!({"onFailure": "skip"});
    world.put(ordered("s", &json!({"filters": filters("k"), "orderingPolicy": policy, "retry": retry})));
    world.put(ordered("fill", &json!({"filters": filters("fill"), "paused": true})));
    for (id, code) in [("dead", 422), ("retried", 500)] {
        world.send_as("k", None, id);
        world.settle();
        let open = world.take_open();
        assert_eq!(open.len(), 1);
        world.engine.outcome(open[0].ticket, world::error(code));
        world.settle();
    }
    (0..800).for_each(|n| world.send(&format!("fill{n}"), None));
    world.pass(10);
    let request = Request { selector: Selector::default(), rate_per_second: 1000, parallelism: 16 };
    world.engine.create_replay(request).expect("created");
    assert!(starts(&mut world).is_empty(), "the lane waits for its next attempt");
    assert_eq!(world.engine.dead_letters(), 0, "the dead letter is back in its lane");
    press(&mut world, 800..1500);
    world.now = world.now + 6000;
    assert!(starts(&mut world).is_empty(), "a power cut would undo the replay");
    world.settle();
    assert_eq!(world.take_open().len(), 1);
}

#[test]
fn an_unordered_event_that_is_replayed_goes_out_once_that_is_durable() {
    let mut world = World::new(3);
    world.put(ordered("s", &json!({"ordering": "unordered"})));
    world.send("k", None);
    world.settle();
    world.take_open().into_iter().for_each(|call| world.engine.outcome(call.ticket, world::error(422)));
    world.settle();
    assert_eq!(world.engine.dead_letters(), 1);
    let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 1 };
    world.engine.create_replay(request).expect("created");
    world.settle();
    for _ in 0..3 {
        world.now = world.now + 1;
        assert!(starts(&mut world).is_empty(), "a power cut would undo the replay");
    }
    assert_eq!(world.engine.dead_letters(), 0, "the event is in flight again");
    world.settle();
    assert_eq!(world.take_open().len(), 1);
}
