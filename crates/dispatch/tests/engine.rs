//! The engine with a simulated disk and target, one seed at a time: random producers, failures, crashes and
//! operators. After the faults stop, everything must drain in order, with no event lost or invented.

mod world;

use klambda_core::outcome::CallOutcome;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::replay::Request;
use klambda_store::disk::Disk;
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
                0 => CallOutcome::Timeout,
                1 => CallOutcome::Status { code: 500, retry_after_ms: None, detail: String::new() },
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
        document["spec"]["orderingPolicy"] =
            json!({"sequence": {"attribute": "sequence"}, "gap": {"timeout": "60s"}});
        world.put(document);
        let mut events: Vec<(String, u64)> =
            (0..4).flat_map(|key| (1..=30).map(move |n| (format!("k{key}"), n))).collect();
        // Shuffled within a window, so that the buffer is used but never overflows.
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
    assert!(parked.is_some_and(|letter| letter.holds_lane && letter.attempts.total == 2));
    world.engine.act_on_lane("orders", "sick", klambda_dispatch::operate::LaneAction::Resume).unwrap();
    world.drain();
    assert_eq!(world.delivered("sick").len(), 5);
    world.check_order(7);
}

fn unordered(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {
            "target": {"url": "http://127.0.0.1:9000/"},
            "retry": {"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "100ms"},
        },
    })
}

#[test]
fn unordered_events_are_all_delivered_and_block_nobody() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        world.put(unordered("all"));
        for round in 0..300 {
            for _ in 0..rng.below(4) {
                world.send("x", None);
            }
            world.step(&mut rng, |rng, _| if rng.below(5) == 0 { world::error(500) } else { world::ok() });
            if rng.below(60) == 0 {
                world.crash(&mut rng);
            }
            if round % 53 == 0 {
                world.engine.request_checkpoint();
            }
        }
        world.drain();
        world.check_all_seen(seed);
    }
}

#[test]
fn a_deep_backlog_leaves_memory_and_drains_in_order() {
    let mut rng = Rng(1);
    let mut world = World::new(1);
    world.put(ordered("orders"));
    world.engine.pause_subscription("orders", true).unwrap();
    for n in 0..8_000 {
        world.send(&format!("k{}", n % 3), None);
        if n % 50 == 0 {
            world.step(&mut rng, |_, _| world::ok());
        }
        if n == 5_000 {
            world.settle();
            world.crash(&mut rng);
        }
    }
    world.settle();
    assert_eq!(world.engine.waiting(), 8_000);
    world.crash(&mut rng);
    world.engine.pause_subscription("orders", false).unwrap();
    world.drain();
    world.check_order(1);
    assert_eq!(world.delivered("k0").len(), 2_667);
}

#[test]
fn many_keys_at_rest_cost_no_memory_and_all_go_on() {
    let mut rng = Rng(2);
    let mut world = World::new(2);
    world.put(ordered("orders"));
    world.engine.pause_subscription("orders", true).unwrap();
    for n in 0..6_000 {
        world.send(&format!("key-{n}"), None);
        if n % 20 == 0 {
            world.step(&mut rng, |_, _| world::ok());
        }
    }
    world.settle();
    assert!(world.engine.lanes_in_memory() < 2_000, "{}", world.engine.lanes_in_memory());
    world.crash(&mut rng);
    world.engine.pause_subscription("orders", false).unwrap();
    world.drain();
    world.check_order(2);
}

#[test]
fn history_flows_through_the_lanes_first() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        for n in 0..200 {
            world.send(&format!("k{}", n % 4), None);
        }
        world.step(&mut rng, |_, _| world::ok());
        let mut document = ordered("late");
        document["spec"]["from"] = json!("earliest");
        world.put(document);
        for _ in 0..100 {
            world.send(&format!("k{}", rng.below(4)), None);
            world.step(&mut rng, |_, _| world::ok());
            if rng.below(40) == 0 {
                world.crash(&mut rng);
            }
        }
        world.drain();
        world.check_order(seed);
    }
}

#[test]
fn new_ordering_rules_wait_for_what_is_there() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        world.put(ordered("orders"));
        for n in 0..120 {
            world.send(&format!("k{}", rng.below(4)), None);
            world.step(&mut rng, |rng, _| if rng.below(4) == 0 { world::error(503) } else { world::ok() });
            if n == 60 {
                let mut document = ordered("orders");
                document["spec"]["orderingPolicy"] = json!({"key": {"attribute": "partitionkey"}});
                world.put(document);
            }
            if rng.below(40) == 0 {
                world.crash(&mut rng);
            }
        }
        world.drain();
        world.check_order(seed);
    }
}

#[test]
fn a_dead_letter_from_before_the_subscription_was_ordered_is_replayed_into_its_lane() {
    let mut rng = Rng(5);
    let mut world = World::new(5);
    let mut document = ordered("orders");
    document["spec"].as_object_mut().expect("a spec").remove("ordering");
    world.put(document);
    world.send("k", None);
    for _ in 0..20 {
        world.step(&mut rng, |_, _| world::error(422));
    }
    assert_eq!(world.engine.dead_letters(), 1);
    world.put(ordered("orders"));
    world.send("k", None);
    world.drain();
    let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 1 };
    let job = world.engine.create_replay(request).expect("a job");
    world.engine.when_durable(klambda_dispatch::Token(0));
    world.settle();
    world.crash(&mut rng);
    world.drain();
    let job = world.engine.replay(job).expect("a job");
    assert_eq!((job.counts.selected, job.counts.replayed, world.engine.dead_letters()), (1, 1, 0), "{job:?}");
    assert_eq!(world.delivered("k"), ["e2", "e1"]);
}

#[test]
fn an_unreadable_event_becomes_a_dead_letter_and_the_rest_continues() {
    for ordering in ["ordered", "unordered"] {
        let mut world = World::new(9);
        let mut document = ordered("orders");
        document["spec"]["ordering"] = json!(ordering);
        world.put(document);
        world.engine.pause_subscription("orders", true).expect("pauses");
        (0..600).for_each(|n| world.send(&format!("k{n}"), None));
        world.settle();
        let segment = world.disk.list().expect("lists").into_iter().find(|name| name.starts_with("log-"));
        // Far beyond the part of the log that the engine keeps in memory.
        world.disk.flip_bit(&segment.expect("a segment"), 8 * 4000);
        world.engine.pause_subscription("orders", false).expect("resumes");
        for _ in 0..200 {
            world.step(&mut Rng(1), |_, _| world::ok());
        }
        assert_eq!((world.engine.failure(), world.engine.dead_letters()), (None, 1), "{ordering}");
        assert_eq!(world.seen.len(), 599, "{ordering}");
    }
}

#[test]
fn retention_keeps_what_waits_and_drops_the_rest() {
    let mut rng = Rng(3);
    let mut world = World::new(3);
    let mut document = ordered("orders");
    document["spec"]["retry"] = json!({"attempts": 1});
    world.put(document);
    world.send("sick", None);
    for _ in 0..20 {
        world.step(&mut rng, |_, _| world::error(422));
    }
    for round in 0..40 {
        for n in 0..200 {
            world.send(&format!("well-{}", n % 40), None);
        }
        for _ in 0..60 {
            world.step(&mut rng, |_, _| world::ok());
        }
        world.now = world.now + 24 * 3_600_000;
        if round % 10 == 9 {
            world.settle();
            world.crash(&mut rng);
        }
    }
    world.engine.request_checkpoint();
    for _ in 0..200 {
        world.step(&mut rng, |_, _| world::ok());
    }
    assert!(world.engine.log_bytes() < 20 * (128 << 10), "{}", world.engine.log_bytes());
    world.send_as("sick", None, "e1");
    world.settle();
    assert_eq!(world.engine.waiting(), 1, "a pending event is known, however old");
    world.engine.act_on_lane("orders", "sick", klambda_dispatch::operate::LaneAction::Resume).unwrap();
    world.drain();
    assert_eq!(world.delivered("sick"), ["e1"]);
}

#[test]
fn retention_keeps_what_a_subscription_took_from_the_past() {
    let mut rng = Rng(4);
    let mut world = World::new(4);
    world.send("sick", None);
    world.settle();
    let mut document = ordered("orders");
    document["spec"]["from"] = json!("earliest");
    document["spec"]["retry"] = json!({"attempts": 1});
    world.put(document);
    for _ in 0..20 {
        world.step(&mut rng, |_, _| world::error(422));
    }
    for _ in 0..20 {
        (0..200).for_each(|n| world.send(&format!("well-{}", n % 40), None));
        (0..60).for_each(|_| world.step(&mut rng, |_, _| world::ok()));
        world.now = world.now + 24 * 3_600_000;
    }
    world.engine.request_checkpoint();
    (0..200).for_each(|_| world.step(&mut rng, |_, _| world::ok()));
    assert!(world.engine.log_bytes() < 10 * (128 << 10), "{}", world.engine.log_bytes());
    world.engine.act_on_lane("orders", "sick", klambda_dispatch::operate::LaneAction::Resume).unwrap();
    world.drain();
    assert_eq!(world.delivered("sick"), ["e1"]);
}

#[test]
fn retention_keeps_a_dead_letter_that_was_taken_back_into_a_long_queue() {
    let mut world = World::new(5);
    let mut document = ordered("orders");
    document["spec"]["orderingPolicy"] = json!({"key": {"attribute": "nokey"}});
    world.put(document.clone());
    world.send("sick", None);
    world.settle();
    assert_eq!(world.engine.dead_letters(), 1, "the dead letter has no key");
    document["spec"]["orderingPolicy"] = json!({});
    world.put(document);
    // No call of this lane is answered, so its queue grows around the dead letter.
    (0..1000).for_each(|_| world.send("sick", None));
    world.settle();
    let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 3 };
    world.engine.create_replay(request).expect("one dead letter");
    world.settle();
    world.pass(10);
    assert_eq!(world.engine.dead_letters(), 0, "the event is pending in its lane");
    (0..1000).for_each(|_| world.send("sick", None));
    world.settle();
    // Long enough for retention to copy the copies.
    for _ in 0..40 {
        world.pass(24 * 3_600_000);
        world.engine.request_checkpoint();
    }
    world.drain();
    assert_eq!(world.delivered("sick").iter().filter(|id| *id == "e1").count(), 1);
}

#[test]
fn a_replay_keeps_the_order_of_each_key_and_survives_crashes() {
    use klambda_dispatch::dead_letters::Selector;
    use klambda_dispatch::replay::{Request, State};
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        let mut document = ordered("orders");
        document["spec"]["retry"] = json!({"attempts": 1});
        document["spec"]["orderingPolicy"] =
            json!({"onFailure": if seed % 2 == 0 { "park" } else { "skip" }});
        world.put(document);
        for n in 0..60 {
            world.send(&format!("k{}", n % 6), None);
        }
        for _ in 0..60 {
            world.step(&mut rng, |rng, _| if rng.below(3) == 0 { world::error(500) } else { world::ok() });
        }
        for attempt in 0..80 {
            let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 3 };
            let job = world.engine.create_replay(request).unwrap();
            world.engine.when_durable(klambda_dispatch::Token(0));
            world.settle();
            for _ in 0..2000 {
                world
                    .step(&mut rng, |rng, _| if rng.below(6) == 0 { world::error(500) } else { world::ok() });
                if rng.below(50) == 0 {
                    world.crash(&mut rng);
                }
                if world.engine.replay(job).is_some_and(|job| job.state != State::Running) {
                    break;
                }
            }
            let report = world.engine.replay(job).unwrap();
            assert_ne!(report.state, State::Running, "seed {seed} attempt {attempt}: {report:?}");
            assert_eq!(
                (report.counts.order_violations, report.counts.duplicates),
                (0, 0),
                "seed {seed}: {report:?}"
            );
            let accounted = report.counts.replayed + report.counts.failed + report.counts.skipped;
            assert_eq!(accounted, report.counts.selected, "seed {seed} attempt {attempt}: {report:?}");
            if world.engine.dead_letters() == 0 && world.engine.waiting() == 0 {
                break;
            }
        }
        world.drain();
        world.check_all_seen(seed);
        if seed % 2 == 0 {
            world.check_order(seed);
        }
    }
}

#[test]
fn a_server_with_nothing_to_do_sleeps() {
    let mut world = World::new(1);
    world.put(ordered("orders"));
    world.send("k", None);
    world.engine.flush();
    let job = world.engine.sync_job().expect("something to sync");
    world.now = world.now + 500;
    world.engine.tick(world.now);
    world.engine.flush();
    assert!(world.engine.sync_job().is_none());
    assert!(world.engine.wake_at() > world.now, "one sync is running");
    let result = job.run();
    world.engine.sync_done(job.up_to, result);
    world.drain();
    world.pass(500);
    assert!(world.engine.wake_at() > world.now, "nothing is left to sync");
}
