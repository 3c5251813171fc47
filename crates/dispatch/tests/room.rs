//! Memory of events in flight that are not sent yet is limited, and waiting for memory uses no attempt.

mod world;

use klambda_core::event::{self, Attribute, Data, Event, Form};
use klambda_dispatch::{Config, Delivery, Sender, Token};
use serde_json::{Value, json};
use world::{World, config, ok, ordered};

const EVENT: usize = 10_000;
const ROOM: usize = 100_000;

fn new() -> World {
    World::with(1, Config { unsent_bytes_max: ROOM, ..config() })
}

fn to(name: &str, ordering: &str) -> Value {
    let filters = json!([{"exact": {"type": name}}]);
    ordered(name, &json!({"filters": filters, "concurrency": 100, "ordering": ordering}))
}

fn send(world: &mut World, kind: &str, count: usize, bytes: usize) {
    for n in 0..count {
        let key = Attribute { name: "partitionkey".into(), value: event::Value::String(format!("k{n}")) };
        let id = format!("{kind}-{n}");
        let data = Some(Data { form: Form::Binary, bytes: vec![b'x'; bytes].into() });
        let event = Event { id, source: "/test".into(), kind: kind.into(), attributes: vec![key], data };
        world.engine.accept(Token(0), &Sender::default(), vec![Ok(event)]);
        world.settle();
    }
}

fn ids(open: &[Delivery]) -> usize {
    open.len()
}

#[test]
fn a_subscription_whose_target_reads_nothing_leaves_room_for_others() {
    for ordering in ["ordered", "unordered"] {
        let mut world = new();
        world.put(to("hung", ordering));
        world.put(to("well", ordering));
        send(&mut world, "hung", 20, EVENT);
        let hung = world.take_open();
        // As many as leave the same room for another subscription.
        assert_eq!(ids(&hung), 5, "{ordering}");
        assert!(world.engine.unsent_bytes() <= ROOM * 6 / 10);
        send(&mut world, "well", 1, EVENT);
        let well = world.take_open();
        assert_eq!((ids(&well), &well[0].document.name), (1, &"well".to_owned()));
        assert_eq!(world.engine.sample().metrics.room_waits, 1);

        // The events are sent but not answered, so the next ones may start.
        world.engine.sent(well[0].ticket);
        hung.iter().for_each(|delivery| world.engine.sent(delivery.ticket));
        hung.iter().for_each(|delivery| world.engine.sent(delivery.ticket));
        assert_eq!(world.engine.unsent_bytes(), 0);
        world.settle();
        assert_eq!(ids(&world.take_open()), 5);

        // The end of a call releases its bytes only once, whether they were sent or not.
        hung.iter().for_each(|delivery| world.engine.outcome(delivery.ticket, ok()));
        world.settle();
        assert_eq!(ids(&world.take_open()), 0);
    }
}

#[test]
fn waiting_for_memory_uses_no_attempt_and_loses_no_event() {
    for ordering in ["ordered", "unordered"] {
        let mut world = new();
        world.put(to("a", ordering));
        send(&mut world, "a", 20, EVENT);
        let mut delivered = 0;
        while world.engine.waiting() > 0 {
            let open = world.take_open();
            assert!((1..=5).contains(&ids(&open)), "{ordering}: {} are open", ids(&open));
            for delivery in open {
                assert_eq!(delivery.attempt, 1);
                world.engine.outcome(delivery.ticket, ok());
                delivered += 1;
            }
            world.settle();
        }
        assert_eq!((delivered, world.engine.unsent_bytes()), (20, 0), "{ordering}");
        world.must_be_sound();
    }
}

#[test]
fn small_events_do_not_wait_and_one_that_is_larger_than_all_goes_alone() {
    let mut world = World::with(1, Config { unsent_bytes_max: EVENT / 2, ..config() });
    world.put(to("large", "ordered"));
    world.put(to("small", "ordered"));
    send(&mut world, "large", 2, EVENT);
    send(&mut world, "small", 30, 100);
    let open = world.take_open();
    assert_eq!(open.iter().filter(|delivery| delivery.document.name == "large").count(), 1);
    assert_eq!(ids(&open), 31);
}
