//! The engine on a simulated disk and target, one seed at a time: random producers, failures, crashes and operators.
//! After the faults stop everything must drain, in order, with nothing lost and nothing invented.

mod world;

use klambda_core::outcome::Outcome;
use serde_json::json;
use world::{Rng, World};

fn ordered(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {
            "target": {"url": "http://127.0.0.1:9000/"},
            "ordering": "ordered",
            "retry": {"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "100ms"},
        },
    })
}

#[test]
fn events_of_a_key_arrive_in_order_through_failures_and_crashes() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        world.put(ordered("orders"));
        let mut sent = 0;
        for round in 0..400 {
            for _ in 0..rng.below(4) {
                let key = format!("k{}", rng.below(5));
                world.send(&key, None);
                sent += 1;
            }
            world.step(&mut rng, |rng, _| match rng.below(10) {
                0 => Outcome::Timeout,
                1 => Outcome::Status { code: 500, retry_after_ms: None, detail: String::new() },
                _ => world::ok(),
            });
            if rng.below(60) == 0 {
                world.crash(&mut rng);
            }
            if round % 97 == 0 {
                world.engine.request_checkpoint();
            }
        }
        world.drain();
        world.check_order(seed);
        assert!(sent > 0, "seed {seed}");
    }
}

#[test]
fn a_shuffled_producer_is_put_in_order() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let mut document = ordered("orders");
        document["spec"]["orderingPolicy"] = json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "60s"}});
        world.put(document);
        let mut events: Vec<(String, u64)> =
            (0..4).flat_map(|key| (1..=30).map(move |n| (format!("k{key}"), n))).collect();
        // Shuffled within a window, so that the buffer is used and never overflows.
        for n in 0..events.len() {
            let other = (n + rng.below(8) as usize).min(events.len() - 1);
            events.swap(n, other);
        }
        for (key, sequence) in events {
            world.send(&key, Some(sequence));
            world.step(&mut rng, |_, _| world::ok());
            if rng.below(80) == 0 {
                world.crash(&mut rng);
            }
        }
        world.drain();
        world.check_sequences(seed, 4, 30);
    }
}

#[test]
fn a_poison_event_parks_its_lane_and_a_resume_keeps_the_order() {
    let mut rng = Rng(7);
    let mut world = World::new(7);
    let mut document = ordered("orders");
    document["spec"]["retry"] = json!({"attempts": 2, "backoff": "10ms"});
    world.put(document);
    for n in 0..10 {
        world.send(if n % 2 == 0 { "sick" } else { "well" }, None);
    }
    for _ in 0..50 {
        world.step(&mut rng, |_, key| if key == "sick" { world::error(500) } else { world::ok() });
    }
    assert_eq!(world.delivered("well").len(), 5);
    assert_eq!(world.delivered("sick").len(), 0);
    world.crash(&mut rng);
    let parked = world.engine.find_dead_letter(world.id("orders"), klambda_core::ids::Position(1)).unwrap();
    assert!(parked.is_some_and(|letter| letter.holds_lane && letter.attempts == 2));
    world.engine.act_on_lane("orders", "sick", klambda_dispatch::operate::LaneAction::Resume).unwrap();
    world.drain();
    assert_eq!(world.delivered("sick").len(), 5);
    world.check_order(7);
}
