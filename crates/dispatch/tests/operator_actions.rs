//! Operator actions on lanes and dead letters: each affects exactly the named item, in bounded steps.

mod world;

use klambda_core::event_codec::EventView;
use klambda_core::ids::Position;
use klambda_core::lane::Flag;
use klambda_core::outcome::Reason;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::{LaneAction, Leftover, Refused};
use klambda_dispatch::replay::{self, Request, State};
use serde_json::json;
use world::{World, error, ok, ordered};

fn letters(world: &World) -> Vec<(u64, bool)> {
    let all = Selector::default();
    let found = world.engine.select_dead_letters(world.id("s"), &all, Position(0), usize::MAX);
    found.expect("read").iter().map(|letter| (letter.entry.position.0, letter.holds_lane)).collect()
}

fn by_id(ids: &[&str]) -> Selector {
    Selector { ids: Some(ids.iter().map(|id| (*id).to_owned()).collect()), ..Selector::default() }
}

fn replay(world: &mut World, selector: Selector) -> u64 {
    let request = Request { selector, rate_per_second: 0, parallelism: 16 };
    world.engine.create_replay(request).expect("a job")
}

/// Runs one round in which every open call gets this status. Returns the ids and flags of the calls.
fn answer(world: &mut World, status: u16) -> Vec<(String, Flag)> {
    world.pass(100);
    let open = world.take_open();
    let seen = open.iter().map(|delivery| {
        let flag = delivery.place.as_ref().map_or(Flag::None, |place| place.flag);
        let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
        (view.id().to_owned(), flag)
    });
    let seen = seen.collect();
    for delivery in open {
        let outcome = if status == 200 { ok() } else { error(status) };
        world.engine.outcome(delivery.ticket, outcome);
    }
    world.settle();
    seen
}

/// A lane of four events: the first is a dead letter outside it, the second parks it, two are pending.
fn parked() -> World {
    let mut world = World::new(1);
    world.put(ordered("s", &json!({"retry": {"attempts": 2, "backoff": "60s"}})));
    (0..4).for_each(|_| world.send("k", None));
    answer(&mut world, 422);
    world.engine.act_on_lane("s", "k", LaneAction::Skip).expect("skipped");
    answer(&mut world, 422);
    assert_eq!(letters(&world), [(1, false), (2, true)]);
    world
}

#[test]
fn to_delete_a_dead_letter_hits_exactly_that_one_whatever_else_is_replayed() {
    for in_flight in [false, true] {
        let mut world = parked();
        let job = replay(&mut world, by_id(&["s.1"]));
        if in_flight {
            world.pass(100);
        } else {
            answer(&mut world, 500);
        }
        assert_eq!(letters(&world), [(2, true)], "the other dead letter is in flight");
        let refused = world.engine.delete_dead_letter("s.1").expect_err("the dead letter is in flight");
        assert!(matches!(&refused, Refused::Conflict(why) if why.contains("s.1")), "{refused:?}");
        world.engine.delete_dead_letter("s.2").expect("deleted");
        assert_eq!(letters(&world), []);
        world.settle();
        world.must_be_sound();
        if !in_flight {
            world.pass(60_000);
        }
        assert_eq!(answer(&mut world, 200), [("e1".into(), Flag::Late)], "the replay continues");
        assert_eq!(world.engine.replay(job).expect("a job").counts.replayed, 1);
        assert_eq!(answer(&mut world, 200), [("e3".into(), Flag::Gap)]);
        assert_eq!(answer(&mut world, 200), [("e4".into(), Flag::None)]);
        (0..3).for_each(|_| world.pass(200));
        world.restart(&mut |_| 0);
        assert_eq!((letters(&world), world.engine.waiting()), (Vec::new(), 0));
        world.must_be_sound();
    }
}

#[test]
fn a_dead_letter_in_flight_in_its_own_place_is_not_deleted() {
    let mut world = parked();
    replay(&mut world, by_id(&["s.2"]));
    world.pass(100);
    let refused = world.engine.delete_dead_letter("s.2").expect_err("in flight");
    assert!(matches!(refused, Refused::Conflict(_)), "{refused:?}");
    let unknown = world.engine.delete_dead_letter("s.77").expect_err("no such dead letter");
    assert!(matches!(unknown, Refused::NotFound(_)), "{unknown:?}");
}

#[test]
fn a_purge_of_an_empty_lane_changes_nothing() {
    let mut world = World::new(1);
    world.put(ordered("s", &json!({})));
    world.send("k", None);
    answer(&mut world, 200);
    let records = world.must_be_sound().records;
    world.engine.act_on_lane("s", "k", LaneAction::Purge).expect("nothing to do");
    world.settle();
    assert_eq!(world.must_be_sound().records, records, "nothing is logged");
    world.send("k", None);
    assert_eq!(answer(&mut world, 200), [("e2".into(), Flag::None)]);
}

#[test]
fn deleting_a_paused_subscription_with_drain_is_refused() {
    let mut world = World::new(1);
    world.put(ordered("s", &json!({"paused": true})));
    world.send("k", None);
    world.pass(100);
    let refused = world
        .engine
        .delete_subscription("s", Leftover::Drain)
        .expect_err("a paused subscription cannot drain");
    let Refused::Conflict(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("paused") && why.contains("klambda subscription resume s"), "{why}");
    world.engine.pause_subscription("s", false).expect("resumed");
    assert!(!world.engine.delete_subscription("s", Leftover::Drain).expect("it drains"));
    answer(&mut world, 200);
    world.pass(2000);
    assert!(world.engine.subscription_id("s").is_err(), "the subscription is removed when it has drained");
}

#[test]
fn an_empty_list_of_ids_selects_nothing() {
    let mut world = parked();
    assert_eq!(world.engine.purge_dead_letters(&by_id(&[]), true).expect("nothing to do"), 0);
    assert_eq!(letters(&world).len(), 2);
    let job = replay(&mut world, by_id(&[]));
    (0..3).for_each(|_| world.pass(100));
    let job = world.engine.replay(job).expect("a job");
    assert_eq!((job.state, job.counts.selected), (State::Succeeded, 0));
}

#[test]
fn the_highest_number_is_no_sequence() {
    let mut world = World::new(1);
    world.put(ordered("s", &json!({"orderingPolicy": {"sequence": {"attribute": "sequence"}}})));
    world.send("k", Some(1));
    world.send("k", Some(u64::MAX));
    world.send("k", Some(u64::MAX));
    world.send("k", Some(2));
    let out: Vec<String> = (0..4).flat_map(|_| answer(&mut world, 200)).map(|seen| seen.0).collect();
    assert_eq!(out, ["e1", "e4"]);
    let invalid = Selector { reason: Some(Reason::Validation), ..Selector::default() };
    let found = world.engine.select_dead_letters(world.id("s"), &invalid, Position(0), 10).expect("read");
    assert_eq!(found.iter().map(|letter| letter.entry.position.0).collect::<Vec<_>>(), [2, 3]);
}

/// Gaps skipped by a timer, by the buffer limit and by an operator.
#[test]
fn gaps_that_were_given_up_are_shown() {
    let mut world = World::new(1);
    let policy = json!({
        "sequence": {"attribute": "sequence"}, "gap": {"timeout": "100ms", "action": "skip"}, "buffer": {"maxEvents": 2},
    });
    world.put(ordered("s", &json!({"orderingPolicy": policy})));
    [1, 3].into_iter().for_each(|n| world.send("k", Some(n)));
    (0..4).for_each(|_| drop(answer(&mut world, 200)));
    [6, 8].into_iter().for_each(|n| world.send("k", Some(n)));
    answer(&mut world, 200);
    world.engine.act_on_lane("s", "k", LaneAction::Skip).expect("skipped");
    world.settle();
    world.restart(&mut |_| 0);
    let mut lane = world.engine.view_lane("s", "k").expect("read").expect("a lane");
    lane.resolve(&world.engine.reader());
    let gaps: Vec<(u64, u64)> = lane.gaps.iter().flatten().map(|gap| (gap.from, gap.to)).collect();
    assert_eq!((gaps.as_slice(), lane.gaps_given_up), (&[(2, 2), (4, 5), (7, 7)][..], 3));
    let steps: Vec<String> = lane
        .timeline
        .iter()
        .flatten()
        .map(|step| format!("{} {}", step.step, step.detail.clone().unwrap_or_default()))
        .collect();
    let given_up = |sequences: &str| format!("gap skipped sequence {sequences}");
    let places = ["2", "4 to 5", "7"].map(|n| steps.iter().position(|step| *step == given_up(n)));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{steps:#?}");
}

/// A parked lane with a late event outside it.
#[test]
fn a_late_dead_letter_queues_behind_a_parked_head_and_the_job_ends() {
    for crashed in [false, true] {
        let mut world = World::new(1);
        let policy = json!({"strict": true, "sequence": {"attribute": "sequence"}});
        world.put(ordered("s", &json!({"orderingPolicy": policy})));
        world.send("k", Some(1));
        answer(&mut world, 200);
        world.send_as("k", Some(1), "late");
        (2..4).for_each(|n| world.send("k", Some(n)));
        answer(&mut world, 422);
        assert_eq!(letters(&world), [(2, false), (3, true)]);
        let job = replay(&mut world, by_id(&["s.2"]));
        (0..3).for_each(|_| world.pass(100));
        if crashed {
            world.restart(&mut |_| 0);
        }
        let done = world.engine.replay(job).expect("a job");
        let counts = (
            done.state,
            done.counts.selected,
            done.counts.waiting,
            done.counts.skipped,
            done.counts.replayed,
        );
        assert_eq!(counts, (State::Succeeded, 1, 1, 0, 0), "{done:?}");
        assert_eq!(letters(&world), [(3, true)], "the late event is in the lane");
        assert_eq!(world.engine.waiting(), 3);
        assert_eq!(answer(&mut world, 200), [], "the late event is behind the parked head");
        world.engine.act_on_lane("s", "k", LaneAction::Resume).expect("resumed");
        let out: Vec<(String, Flag)> = (0..4).flat_map(|_| answer(&mut world, 200)).collect();
        let expected = [("e2", Flag::None), ("e3", Flag::None), ("late", Flag::Late)];
        assert_eq!(out, expected.map(|(id, flag)| (id.to_owned(), flag)));
        world.must_be_sound();
    }
}

/// Rows read in one step delay all other work.
#[test]
fn a_replay_looks_through_many_dead_letters_in_bounded_steps() {
    const MANY: u64 = 3000;
    let mut world = World::new(1);
    world.put(ordered("s", &json!({"concurrency": 5000})));
    (0..MANY).for_each(|n| world.send(&format!("k{n}"), None));
    (0..4).for_each(|_| drop(answer(&mut world, 422)));
    assert_eq!(letters(&world).len() as u64, MANY);
    let request = Request { selector: Selector::default(), rate_per_second: 1, parallelism: 1 };
    let mut dry = world.engine.begin_dry_run(request.clone()).expect("begins");
    let mut longest = 0;
    loop {
        let before = world.engine.rows_read();
        let is_done = world.engine.continue_dry_run(&mut dry).expect("reads");
        longest = longest.max(world.engine.rows_read() - before);
        if is_done {
            break;
        }
    }
    assert!(longest <= replay::PART as u64, "{longest} rows in one step");
    let view = world.engine.view_dry_run(dry);
    assert_eq!((view.selected, view.keys), (MANY, MANY));
    let items = view.items.expect("the first of them");
    assert_eq!((items.len(), items[0].as_str(), items[99].as_str()), (100, "s.1", "s.100"));

    // The same for the job itself. A tick reads few other rows.
    let job = world.engine.create_replay(request).expect("a job");
    let mut longest = 0;
    while world.engine.replay(job).expect("a job").counts.selected == 0 {
        let before = world.engine.rows_read();
        world.engine.tick(world.now);
        longest = longest.max(world.engine.rows_read() - before);
        let is_planned = world.engine.replay(job).expect("a job").counts.selected > 0;
        assert!(is_planned || world.engine.wake_at() <= world.now, "the job wants to continue");
    }
    assert!(longest <= 2 * replay::PART as u64, "{longest} rows in one tick");
    assert_eq!(world.engine.replay(job).expect("a job").counts.selected, MANY);
}

#[test]
fn a_job_leaves_alone_what_another_took_back_since() {
    let mut world = World::new(1);
    let without_key = json!({"orderingPolicy": {"key": {"attribute": "nokey"}, "onFailure": "skip"}});
    world.put(ordered("s", &without_key));
    (0..3).for_each(|_| world.send("k", None));
    world.settle();
    assert_eq!(letters(&world), [(1, false), (2, false), (3, false)]);
    world.put(ordered("s", &json!({"orderingPolicy": {"onFailure": "skip"}})));
    // The first job is at the first dead letter when the second job replays the last one, which then fails again in
    // its new place.
    let all = replay(&mut world, Selector::default());
    world.pass(1);
    let open = world.take_open();
    let last = replay(&mut world, by_id(&["s.3"]));
    world.pass(1);
    open.into_iter().for_each(|delivery| world.engine.outcome(delivery.ticket, ok()));
    world.settle();
    assert_eq!(answer(&mut world, 422), [("e3".to_owned(), Flag::Late)]);
    assert_eq!(answer(&mut world, 200), [("e2".to_owned(), Flag::Late)]);
    (0..3).for_each(|_| drop(answer(&mut world, 200)));
    let report = |job| world.engine.replay(job).expect("a job");
    assert_eq!((report(last).state, report(last).counts.failed), (State::Failed, 1));
    assert_eq!((report(all).counts.replayed, report(all).counts.order_violations), (2, 0));
    assert_eq!(report(all).skipped_reasons.get("gone"), Some(&1));
    assert_eq!(letters(&world), [(3, false)]);
}
