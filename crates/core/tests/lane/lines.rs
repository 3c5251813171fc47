//! One test for each rule of the specification that concerns the lane. The reference model runs along in each of
//! them.

use crate::harness::{Fate, START, World, policy};
use klambda_core::ids::{LaneNumber, Locator, Position, Sequence};
use klambda_core::lane::{
    Action, CHUNK, Count, Entry, FRONT_MAX, Flag, Hold, Input, Policy, Refused, State, Turn, Why,
};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;

fn world(change: impl FnOnce(&mut Policy)) -> World {
    let mut policy = policy();
    change(&mut policy);
    World::new(policy)
}

impl World {
    /// Sends one event for each of these sequences.
    fn send_all(&mut self, sequences: impl IntoIterator<Item = u64>) {
        for sequence in sequences {
            self.send((sequence, 0), 1);
        }
    }

    fn start_and_fail(&mut self, fatal: bool) -> Vec<Action> {
        self.now = self.now.max(self.machine.lane.retry_at().unwrap_or(self.now));
        self.start().expect("the lane is ready");
        self.fail(fatal)
    }

    fn start_and_deliver(&mut self) -> Entry {
        self.start().expect("the lane is ready");
        self.deliver().expect("a delivery is in flight")
    }

    /// Delivers everything that is deliverable now. Returns (position, number, flag) of each event.
    fn out(&mut self) -> Vec<(u64, u64, Flag)> {
        self.deliver_all().iter().map(|entry| (entry.position.0, entry.number.0, entry.flag)).collect()
    }

    fn start_one(&mut self) {
        self.start().expect("the lane is ready");
    }

    fn fail_one(&mut self) {
        self.fail(false);
    }

    fn state(&self) -> State {
        self.machine.lane.state()
    }

    fn expected(&self) -> Option<u64> {
        self.machine.lane.expected().map(|sequence| sequence.0)
    }
}

/// The counted violations and the recorded gaps.
fn told(actions: &[Action]) -> (Vec<Count>, Vec<(u64, u64)>) {
    let counts = actions.iter().filter_map(|action| match action {
        Action::Count { what, .. } => Some(*what),
        _ => None,
    });
    let gaps = actions.iter().filter_map(|action| match action {
        Action::GapRecorded { from, to, .. } => Some((from.0, to.0)),
        _ => None,
    });
    (counts.collect(), gaps.collect())
}

// ---- order ------------------------------------------------------------------------------------------------

#[test]
fn line_8_without_a_sequence_in_the_policy_arrival_decides() {
    let mut world = world(|policy| policy.sequenced = false);
    world.send_all([3, 1, 2]);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::None), (3, 3, Flag::None)]);
    assert_eq!(world.apply(Input::Reset { expected: Sequence(1) }), Err(Refused::NotSequenced));
}

#[test]
fn line_9_zero_or_one_opens_a_new_lane_at_once() {
    for first in [0, 1] {
        let mut world = world(|_| {});
        world.send_all([first]);
        assert_eq!((world.state(), world.expected()), (State::Open, Some(first + 1)));
        assert_eq!(world.out(), [(1, 1, Flag::None)]);
    }
}

#[test]
fn line_9_another_first_sequence_waits_one_timeout_and_the_lane_opens_at_the_lowest() {
    let mut world = world(|_| {});
    world.send_all([7, 5]);
    assert_eq!((world.state(), world.expected()), (State::Gap, None));
    let actions = world.wait_for_gap();
    assert_eq!(world.now, START + 100);
    assert_eq!(actions, [], "opening a lane is not a gap");
    assert_eq!(world.out(), [(2, 1, Flag::None)]);
    assert_eq!(
        (world.state(), world.expected()),
        (State::Gap, Some(6)),
        "the next missing sequence is a gap"
    );
}

#[test]
fn line_9_what_is_below_the_opening_is_late_for_it_was_passed_just_now() {
    let mut world = world(|_| {});
    world.send_all([5]);
    world.wait_for_gap();
    world.send_all([4]);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::Late)]);
}

#[test]
fn line_9_a_person_who_skips_opens_the_lane() {
    let mut world = world(|_| {});
    world.send_all([5]);
    assert_eq!(world.must(Input::Skip), [], "opening a lane records no gap");
    assert_eq!(world.out(), [(1, 1, Flag::None)]);
}

#[test]
fn line_9_first_opens_anywhere_and_a_number_opens_there() {
    let mut first = world(|policy| policy.start = Start::First);
    first.send_all([7]);
    assert_eq!(first.expected(), Some(8));
    let mut at = world(|policy| policy.start = Start::At(5));
    at.send_all([7, 5]);
    assert_eq!((at.expected(), at.machine.lane.buffered()), (Some(6), 1));
}

#[test]
fn line_10_the_expected_goes_out_and_the_buffer_after_it() {
    let mut world = world(|_| {});
    world.send_all([1, 3, 4]);
    assert_eq!(world.machine.lane.buffered(), 2);
    world.send_all([2]);
    assert_eq!(world.out(), [(1, 1, Flag::None), (4, 2, Flag::None), (2, 3, Flag::None), (3, 4, Flag::None)]);
    assert_eq!((world.state(), world.expected()), (State::Open, Some(5)));
}

#[test]
fn line_10_early_is_counted_and_the_lane_waits_for_what_is_missing() {
    let mut world = world(|_| {});
    world.send_all([1]);
    world.deliver_all();
    world.send_all([4]);
    assert_eq!(world.state(), State::Gap);
    assert_eq!(world.machine.lane.missing(), Some((Sequence(2), Sequence(3))));
    assert_eq!(world.machine.lane.gap_timer(), Some(START + 100));
}

#[test]
fn line_10_a_known_id_goes_no_further_wherever_its_event_is() {
    let mut world = world(|policy| policy.strict = true);
    world.send_all([1, 3]);
    assert_eq!(world.send((1, 0), 1), None, "waiting");
    assert_eq!(world.send((3, 0), 1), None, "buffered");
    world.start();
    assert_eq!(world.send((1, 0), 1), None, "in flight");
    world.fail(true);
    assert_eq!(world.send((1, 0), 1), None, "dead letter");
}

#[test]
fn line_10_passed_within_the_window_is_late_and_longer_ago_is_known() {
    let mut world = world(|policy| policy.strict = true);
    world.send_all(1..=3);
    world.deliver_all();
    world.now = START + 9_999;
    world.send((2, 1), 1);
    assert_eq!(world.fates[&Position(4)], Fate::DeadLetter, "passed within the window");
    world.now = START + 20_000;
    world.send((2, 2), 1);
    assert_eq!(world.fates[&Position(5)], Fate::Known, "passed longer ago than the window");
    assert_eq!(world.machine.lane.depth(), 0);
}

/// The windows follow each other without a break: a window ends exactly when its time is up.
#[test]
fn line_10_a_window_ends_when_its_time_is_up() {
    let mut world = world(|policy| policy.strict = true);
    world.send_all(1..=3);
    world.deliver_all();
    for (at, sequence) in [(10_000, 4), (15_000, 5)] {
        world.now = START + at;
        world.send_all([sequence]);
        world.deliver_all();
    }
    world.now = START + 20_000;
    world.send((2, 1), 1);
    assert_eq!(world.fates[&Position(6)], Fate::Known, "passed longer ago than one window");
}

/// The id window is not part of an epoch: it can change while a lane has a history.
#[test]
fn line_10_another_window_makes_nothing_older_than_it_is() {
    for (window_ms, then_ms) in [(86_400_000, 200), (200, 86_400_000)] {
        let mut world = world(|policy| policy.window_ms = window_ms);
        world.send_all(1..=2);
        world.deliver_all();
        world.now = START + 500;
        world.send_all([3]);
        world.deliver_all();
        world.now = START + 550;
        (world.policy.window_ms, world.model.policy.window_ms) = (then_ms, then_ms);
        world.send((3, 1), 1);
        assert_eq!(world.out(), [(4, 4, Flag::Late)], "passed 50 ms ago");
        world.now = START + 1_200;
        world.send((1, 1), 1);
        let long_past = if then_ms == 200 { Fate::Known } else { Fate::Waiting };
        assert_eq!(world.fates[&Position(5)], long_past, "passed 1,200 ms ago");
    }
}

#[test]
fn line_10_what_a_person_or_a_timer_passed_just_now_is_late_however_long_the_lane_slept() {
    let mut world = world(|policy| policy.gap_action = GapAction::Park);
    world.send_all([1, 3, 4]);
    world.deliver_all();
    world.wait_for_gap();
    world.now = world.now + 100_000;
    world.must(Input::Skip);
    world.send((4, 1), 1);
    assert_eq!(world.out(), [(2, 2, Flag::Gap), (3, 3, Flag::None), (4, 4, Flag::Late)]);
}

#[test]
fn line_10_a_recorded_gap_is_late_for_ever() {
    let mut world = world(|_| {});
    world.send_all([1, 3]);
    world.deliver_all();
    assert_eq!(told(&world.wait_for_gap()).1, [(2, 2)]);
    world.deliver_all();
    world.now = world.now + 1_000_000;
    world.send_all([2]);
    assert_eq!(world.out(), [(3, 3, Flag::Late)]);
}

/// More gaps than a lane remembers: a forgotten gap is still late; a delivered sequence above it is a duplicate.
#[test]
fn line_10_what_may_never_have_been_delivered_is_never_a_duplicate() {
    let mut world = world(|policy| (policy.start, policy.strict) = (Start::First, true));
    world.hurry(|world| {
        for n in 0..1100 {
            world.send_all([2 * n]);
            world.deliver_all();
            world.wait_for_gap();
        }
        world.send_all([2200]);
        world.deliver_all();
        world.wait_for_gap();
        world.deliver_all();
    });
    let lane = &world.machine.lane;
    assert_eq!((lane.gaps().ranges().len(), lane.gaps().forgotten()), (1024, Some(Sequence(151))));
    world.now = world.now + 1_000_000;
    for (sequence, is_late) in [(151, true), (150, true), (1, true), (152, false), (153, true), (2199, true)]
    {
        let position = world.send((sequence, 1), 1).expect("an unknown id");
        let fate = if is_late { Fate::DeadLetter } else { Fate::Known };
        assert_eq!(world.fates[&position], fate, "sequence {sequence}");
    }
}

#[test]
fn line_10_a_sequence_that_is_buffered_under_another_id_is_late() {
    let mut world = world(|_| {});
    world.send_all([1, 3]);
    world.send((3, 1), 1);
    assert_eq!(world.out(), [(1, 1, Flag::None), (3, 2, Flag::Late)]);
    assert_eq!(world.machine.lane.buffered(), 1);
}

#[test]
fn line_10_also_when_it_is_buffered_on_disk() {
    let mut world = world(|policy| (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, 1));
    world.send_all([1, 3, 4]);
    assert_eq!(world.machine.early.len(), 1);
    world.send((4, 1), 1);
    assert_eq!(world.out(), [(1, 1, Flag::None), (4, 2, Flag::Late)]);
}

#[test]
fn line_11_late_under_strict_is_a_dead_letter_beside_the_lane() {
    let mut world = world(|policy| policy.strict = true);
    world.send_all([1, 2]);
    world.start();
    world.send((1, 1), 1);
    let letter = world.letters[&Position(3)];
    assert_eq!((letter.number, letter.flag), (LaneNumber(0), Flag::Late));
    assert_eq!(world.machine.lane.hold(), None, "a late event does not park the lane");
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::None)]);
}

#[test]
fn line_11_late_otherwise_goes_out_flagged_and_both_are_counted() {
    for strict in [false, true] {
        let mut world = world(|policy| policy.strict = strict);
        world.send_all([1]);
        let entry = crate::harness::entry(2, 1, world.now);
        world.fates.insert(Position(2), Fate::Waiting);
        let actions = world.must(Input::Arrived { entry, sequence: Some(Sequence(1)), taken: false });
        assert_eq!(told(&actions).0, [Count::Late]);
        assert_eq!(world.out().last(), Some(&if strict { (1, 1, Flag::None) } else { (2, 2, Flag::Late) }));
    }
}

#[test]
fn line_12_gap_timer_starts_when_nothing_deliverable_is_left_before_the_gap() {
    let mut world = world(|_| {});
    world.send_all([1, 2, 4]);
    assert_eq!(world.machine.lane.gap_timer(), None);
    world.now = START + 500;
    world.start_and_deliver();
    world.start();
    assert_eq!(world.machine.lane.gap_timer(), None, "the last event before the gap is still in flight");
    world.now = START + 700;
    world.deliver();
    assert_eq!(world.machine.lane.gap_timer(), Some(START + 800));
}

#[test]
fn line_12_gap_timer_runs_once_per_gap() {
    let mut world = world(|_| {});
    world.send_all([1, 5]);
    world.deliver_all();
    world.now = START + 60;
    world.send_all([4, 6]);
    world.send((6, 1), 1);
    world.deliver_all();
    assert_eq!(
        world.machine.lane.gap_timer(),
        Some(START + 100),
        "early and late events do not restart the timer"
    );
}

#[test]
fn line_12_gap_timer_does_not_run_behind_a_dead_letter() {
    let mut world = world(|_| {});
    world.send_all([1, 3]);
    world.start_and_fail(true);
    assert_eq!((world.state(), world.machine.lane.gap_timer()), (State::Parked, None));
}

#[test]
fn line_12_a_timer_that_is_due_does_not_wake_a_lane_that_has_something_to_deliver_first() {
    let mut world = world(|_| {});
    world.send_all([1, 3]);
    world.deliver_all();
    world.send((3, 1), 1);
    world.must(Input::Pause);
    world.now = world.now + 1000;
    assert_eq!(world.machine.lane.wake_at(), None);
    world.must(Input::Resume);
    world.deliver_all();
    assert_eq!(world.machine.lane.wake_at(), world.machine.lane.gap_timer());
}

#[test]
fn line_12_gap_timer_is_wall_time_across_restarts_clamped_to_its_length() {
    let mut world = world(|_| {});
    world.send_all([1, 3]);
    world.deliver_all();
    world.crash();
    assert_eq!(world.machine.lane.gap_timer(), Some(START + 100));
    let mut lane = world.machine.lane.clone();
    let back = START - 5000;
    lane.clamp_timers(&world.policy, 1000, back);
    assert_eq!(lane.gap_timer(), Some(back + 100));
    lane.clamp_timers(&world.policy, 1000, START);
    assert_eq!(lane.gap_timer(), Some(back + 100), "clamping never postpones a timer");
}

#[test]
fn line_12_skip_leaves_a_tombstone_and_flags_the_next() {
    let mut world = world(|_| {});
    world.send_all([1, 4, 5]);
    world.deliver_all();
    assert_eq!(told(&world.wait_for_gap()), (vec![Count::Gap], vec![(2, 3)]));
    assert_eq!(world.out(), [(2, 2, Flag::Gap), (3, 3, Flag::None)]);
    assert!(world.letters.is_empty(), "a gap is never a dead letter");
}

#[test]
fn line_12_park_waits_for_a_person_or_the_missing_event() {
    let mut world = world(|policy| policy.gap_action = GapAction::Park);
    world.send_all([1, 3]);
    world.deliver_all();
    assert_eq!(told(&world.wait_for_gap()), (vec![Count::Gap], vec![]));
    assert_eq!((world.state(), world.machine.lane.hold()), (State::Parked, Some(Hold::Gap)));
    assert_eq!(world.machine.lane.wake_at(), None);
    assert_eq!(world.must(Input::GapExpired), [], "a gap is counted once");
    world.send_all([2]);
    assert_eq!(world.out(), [(3, 2, Flag::None), (2, 3, Flag::None)]);
    assert_eq!(world.state(), State::Open);
}

/// A late event splits, shortens or removes its range. Ranges that touch are merged.
#[test]
fn line_12_gaps_are_remembered_as_ranges() {
    let mut world = world(|_| {});
    let ranges = |world: &World| -> Vec<(u64, u64)> {
        world.machine.lane.gaps().ranges().iter().map(|gap| (gap.from.0, gap.to.0)).collect()
    };
    world.send_all([1, 6, 8]);
    world.deliver_all();
    world.now = START + 500;
    world.wait_for_gap();
    world.deliver_all();
    world.wait_for_gap();
    world.deliver_all();
    assert_eq!(ranges(&world), [(2, 5), (7, 7)]);
    assert_eq!(
        world.machine.lane.gaps().ranges()[0].at,
        START + 500,
        "the range has the time at which the lane gave up"
    );
    world.send_all([3, 7]);
    assert_eq!(ranges(&world), [(2, 2), (4, 5)]);
    world.send_all([2, 5, 4]);
    assert_eq!(ranges(&world), []);
    world.deliver_all();
    world.send_all([10]);
    world.must(Input::Purge);
    assert_eq!(ranges(&world), [(9, 10)]);
    world.send_all([12]);
    world.wait_for_gap();
    assert_eq!(ranges(&world), [(9, 11)], "the new gap is merged with the previous one");
    world.must(Input::Reset { expected: Sequence(1) });
    assert_eq!(ranges(&world), [], "a reset forgets all gaps");
}

#[test]
fn line_12_what_is_counted_names_the_event_its_sequence_and_the_expected_one() {
    let mut world = world(|policy| policy.start = Start::First);
    world.send_all([1]);
    let arrived = |world: &mut World, position: u64, sequence: u64| {
        let entry = crate::harness::entry(position, 1, world.now);
        world.fates.insert(Position(position), Fate::Waiting);
        world.must(Input::Arrived { entry, sequence: Some(Sequence(sequence)), taken: false })
    };
    let counted = |what, position: u64, sequence: u64, expected: u64| Action::Count {
        what,
        at: Locator::new(position * 100),
        sequence: Sequence(sequence),
        expected: Some(Sequence(expected)),
    };
    assert_eq!(arrived(&mut world, 2, 4), [counted(Count::Early, 2, 4, 2)]);
    assert_eq!(arrived(&mut world, 3, 1), [counted(Count::Late, 3, 1, 2)]);
    world.deliver_all();
    let (from, to, next) = (Sequence(2), Sequence(3), Some(Locator::new(200)));
    assert_eq!(world.wait_for_gap(), [counted(Count::Gap, 2, 4, 2), Action::GapRecorded { from, to, next }]);
}

/// The arrival of the missing event resumes a parked lane. If the next gap exceeds the limit too, the lane does not
/// wait for it.
#[test]
fn line_13_the_next_gap_is_held_against_the_limit_at_once() {
    for buffer_events_max in [2, 3] {
        let mut world = world(|policy| {
            (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, buffer_events_max);
        });
        world.send_all([1]);
        world.deliver_all();
        world.send_all([3, 5, 7, 9]);
        assert_eq!(world.state(), State::Parked);
        world.send_all([2]);
        assert_eq!(world.machine.lane.hold(), Some(Hold::Gap), "three events wait behind the next gap");
        world.deliver_all();
        assert_eq!(world.machine.lane.missing(), Some((Sequence(4), Sequence(4))));
        world.must(Input::Skip);
        let held = (buffer_events_max == 2).then_some(Hold::Gap);
        assert_eq!(world.machine.lane.hold(), held, "two events wait behind the gap after it");
        world.must(Input::Resume);
        world.deliver_all();
        assert_eq!(world.state(), State::Gap, "resume waits for one more timeout");
        world.wait_for_gap();
        assert_eq!(world.machine.lane.hold(), Some(Hold::Gap));
    }
}

#[test]
fn line_13_at_the_limit_skip_skips_at_once() {
    let mut world = world(|policy| policy.buffer_events_max = 2);
    world.send_all([1, 3]);
    assert_eq!(world.machine.lane.buffered(), 1);
    world.send_all([5]);
    assert_eq!((world.machine.lane.buffered(), world.expected()), (1, Some(4)));
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::Gap)]);
}

#[test]
fn line_13_one_large_event_skips_as_many_gaps_as_it_takes() {
    let mut world = world(|policy| policy.buffer_bytes_max = 10);
    world.send_all([1, 3]);
    world.send((5, 0), 10);
    assert_eq!(world.machine.lane.buffered(), 0);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::Gap), (3, 3, Flag::Gap)]);
}

#[test]
fn line_13_at_the_limit_park_parks_and_later_events_queue_on_disk() {
    let mut world = world(|policy| (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, 2));
    world.send_all([1]);
    world.deliver_all();
    world.send_all([9, 3, 5, 7, 4, 11]);
    assert_eq!(world.state(), State::Parked);
    assert_eq!((world.machine.early.len(), world.machine.lane.depth()), (4, 6));
    world.send_all([2]);
    assert_eq!(world.out().iter().map(|out| out.0).collect::<Vec<_>>(), [8, 3, 6, 4]);
    assert_eq!(world.machine.lane.missing(), Some((Sequence(6), Sequence(6))));
}

/// Events beyond the byte limit go to disk, the highest sequences first. Events within the limit stay in memory.
#[test]
fn line_13_the_limit_in_bytes_bounds_memory_too() {
    for (last, on_disk) in [(4, 0), (5, 1), (9, 1)] {
        let mut world = world(|policy| (policy.gap_action, policy.buffer_bytes_max) = (GapAction::Park, 10));
        world.send_all([1]);
        world.deliver_all();
        world.send((3, 0), 6);
        assert_eq!((world.state(), world.machine.early.len()), (State::Gap, 0), "the buffer has room");
        world.send((4, 0), last);
        assert_eq!((world.state(), world.machine.early.len()), (State::Parked, on_disk), "6 + {last} bytes");
        assert_eq!(world.machine.lane.buffered(), 2);
    }
}

/// Early events keep their order across memory and disk: an event above those in memory goes to disk too.
#[test]
fn line_13_early_events_in_memory_and_on_disk_are_one_order() {
    let mut world = world(|policy| (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, 2));
    world.send_all([1]);
    world.deliver_all();
    assert!(!world.machine.lane.has_spilled_early());
    world.send_all([9, 3, 5, 7]);
    assert!(world.machine.lane.has_spilled_early());
    world.send_all([2]);
    assert_eq!(world.out().len(), 2);
    world.send_all([11, 4, 6, 8, 10]);
    assert_eq!(world.out().iter().map(|out| out.0).collect::<Vec<_>>(), [8, 4, 9, 5, 10, 2, 11, 7]);
    assert!(!world.machine.lane.has_spilled_early() && world.machine.lane.is_idle());
}

/// A purge passes the highest pending sequence, also if it is on disk, regardless of the order of arrival.
#[test]
fn line_24_a_purge_goes_on_after_the_highest_that_waited() {
    let mut world = world(|policy| (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, 2));
    world.send_all([1]);
    world.deliver_all();
    world.send_all([3, 4, 9, 7]);
    assert_eq!(world.machine.early.len(), 2);
    world.must(Input::Purge);
    assert_eq!(world.expected(), Some(10));
}

#[test]
fn line_24_a_purge_of_an_empty_lane_changes_and_flags_nothing() {
    let mut world = world(|_| {});
    world.send_all([1, 2]);
    world.start_and_deliver();
    world.start();
    let before = world.machine.lane.clone();
    assert_eq!(world.must(Input::Purge), [], "an event in flight is not pending");
    assert_eq!(world.machine.lane, before);
    world.deliver();
    assert_eq!(world.must(Input::Purge), []);
    world.send_all([3]);
    assert_eq!(world.out(), [(3, 3, Flag::None)]);
}

#[test]
fn line_24_to_delete_the_dead_letter_that_holds_a_lane_hits_exactly_that_one() {
    let mut world = world(|_| {});
    assert_eq!(world.apply(Input::Discard), Err(Refused::NotParked));
    world.send_all([1, 2, 3]);
    world.start_and_fail(true);
    world.must(Input::Skip);
    world.start_and_fail(true);
    world.requeue(0);
    for step in [World::start_one, World::fail_one] {
        step(&mut world);
        let mut other = world.machine.lane.clone();
        let mut actions = Vec::new();
        other
            .apply(Input::Discard, &world.policy, world.now, &mut actions)
            .expect("a dead letter parks the lane");
        assert!(
            matches!(actions[..], [Action::Unhold(_), Action::Dropped(entry)] if entry.position == Position(2))
        );
        assert_eq!(other.head(), world.machine.lane.head(), "the replay keeps its turn");
        assert_eq!(other.attempts(), world.machine.lane.attempts());
    }
    world.must(Input::Discard);
    assert_eq!(world.fates[&Position(2)], Fate::Dropped);
    world.now = world.now + 50;
    assert_eq!(world.out(), [(1, 1, Flag::Late), (3, 3, Flag::Gap)]);
}

/// A purge removes the middle of a long queue on disk. A new queue of the same length is not affected.
#[test]
fn line_24_after_the_purge_of_a_long_queue_another_goes_out_whole() {
    let mut world = world(|policy| policy.sequenced = false);
    let long = (FRONT_MAX + 3 * CHUNK) as u64;
    world.hurry(|world| world.send_all(1..=long));
    assert!(!world.machine.chunks.is_empty(), "the middle of the queue is on disk");
    world.must(Input::Purge);
    assert_eq!(world.machine.lane.depth(), 0);
    let mut out = Vec::new();
    world.hurry(|world| {
        world.send_all(long + 1..=2 * long);
        out = world.out().iter().map(|out| out.0).collect();
    });
    assert_eq!(out, (long + 1..=2 * long).collect::<Vec<_>>());
}

#[test]
fn line_14_an_idle_lane_forgets_the_producers_sequence_and_keeps_our_own() {
    let mut world = world(|policy| policy.sequence_ttl_ms = 1000);
    world.send_all([1, 2]);
    world.deliver_all();
    world.now = START + 999;
    world.send((1, 1), 1);
    assert_eq!(world.out(), [(3, 3, Flag::Late)], "late before the TTL");
    world.now = world.now + 1000;
    world.send((1, 2), 1);
    assert_eq!(world.out(), [(4, 4, Flag::None)]);
    assert_eq!(world.expected(), Some(2));
}

#[test]
fn line_14_a_lane_in_which_something_waits_forgets_nothing() {
    let mut world = world(|policy| policy.sequence_ttl_ms = 1000);
    world.send_all([1, 2]);
    world.start_and_deliver();
    world.now = START + 5000;
    world.send((1, 1), 1);
    assert_eq!(world.out(), [(2, 2, Flag::None), (3, 3, Flag::Late)]);
}

#[test]
fn line_14_zero_never_forgets_and_a_reset_does() {
    let mut world = world(|policy| policy.window_ms = u64::MAX);
    world.send_all([1, 2]);
    world.deliver_all();
    world.now = world.now + 1_000_000_000;
    world.send((1, 1), 1);
    assert_eq!(world.out(), [(3, 3, Flag::Late)]);
    world.must(Input::Reset { expected: Sequence(1) });
    world.send((1, 2), 1);
    assert_eq!(world.out(), [(4, 4, Flag::None)]);
}

#[test]
fn line_14_a_reset_passes_what_is_buffered_below_it_in_memory_and_on_disk() {
    for strict in [false, true] {
        let mut world = world(|policy| {
            (policy.strict, policy.gap_action, policy.buffer_events_max) = (strict, GapAction::Park, 1);
        });
        world.send_all([1]);
        world.deliver_all();
        world.send_all([3, 5, 7, 8, 11]);
        assert_eq!(world.machine.early.len(), 4);
        world.must(Input::Reset { expected: Sequence(7) });
        assert_eq!((world.expected(), world.machine.lane.buffered()), (Some(9), 1));
        assert_eq!(world.machine.lane.gap_timer(), None, "a deliverable event precedes the next gap");
        let late: Vec<u64> = world.letters.keys().map(|position| position.0).collect();
        let out: Vec<u64> = world.out().iter().map(|out| out.0).collect();
        let (letters, line): (&[u64], &[u64]) =
            if strict { (&[2, 3], &[4, 5]) } else { (&[], &[2, 3, 4, 5]) };
        assert_eq!((&late[..], &out[..]), (letters, line));
    }
}

// ---- delivering -------------------------------------------------------------------------------------------

#[test]
fn line_16_three_attempts_are_three_calls_in_all() {
    let mut world = world(|_| {});
    world.send_all([1]);
    assert_eq!(world.start_and_fail(false), []);
    assert_eq!((world.state(), world.machine.lane.attempts()), (State::Retrying, 1));
    assert!(!world.machine.lane.is_ready(world.now), "the lane waits for the backoff");
    assert_eq!(world.start_and_fail(false), []);
    assert!(matches!(world.start_and_fail(false)[..], [Action::Hold(_)]));
    assert_eq!((world.state(), world.machine.lane.attempts_total()), (State::Parked, 3));
}

#[test]
fn line_16_unlimited_attempts_never_end_but_by_a_fatal_failure() {
    let mut world = world(|policy| policy.attempts_max = None);
    world.send_all([1]);
    (0..50).for_each(|_| assert_eq!(world.start_and_fail(false), []));
    assert!(matches!(world.start_and_fail(true)[..], [Action::Hold(_)]));
}

#[test]
fn line_16_an_attempt_cut_off_by_a_crash_is_made_again_under_the_same_number() {
    let mut world = world(|_| {});
    world.send_all([1]);
    world.start_and_fail(false);
    world.now = world.now + 50;
    let before = world.start().expect("the lane is ready");
    world.crash();
    assert_eq!(world.machine.lane.attempts(), 1);
    assert_eq!(world.start(), Some(before));
}

#[test]
fn line_15_16_a_recovered_log_ends_the_event_that_was_in_flight_and_no_other() {
    let mut world = world(|policy| policy.on_failure = OnFailure::Skip);
    world.send_all([1, 2]);
    world.start_and_fail(true);
    world.start();
    world.requeue(0);
    let delivered = world.deliver().map(|entry| entry.position);
    assert_eq!(delivered, Some(Position(2)), "not the event that was requeued in the meantime");
    world.crash();
    assert_eq!(world.out(), [(1, 1, Flag::Late)]);
    world.send_all([3]);
    world.start();
    world.must(Input::Purge);
    world.send_all([4]);
    world.deliver();
    world.crash();
    assert_eq!(world.out(), [(4, 4, Flag::None)], "not the event that arrived after the purge");
}

#[test]
fn line_20_numbers_are_contiguous_from_one_and_never_reused() {
    let mut world = world(|policy| (policy.on_failure, policy.strict) = (OnFailure::Skip, true));
    world.send_all([1, 2, 4]);
    world.send((1, 1), 1);
    world.start_and_fail(true);
    world.deliver_all();
    world.must(Input::Purge);
    world.send_all([5]);
    assert_eq!(
        world.out(),
        [(5, 3, Flag::Gap)],
        "early and late events got no number, the skipped event keeps its number"
    );
}

#[test]
fn line_20_order_and_numbers_hold_while_the_front_drains_and_the_back_is_not_empty() {
    let mut world = world(|_| {});
    world.send_all(1..=300);
    world.start_and_deliver();
    world.send_all([301]);
    let numbers: Vec<u64> = world.out().iter().map(|out| out.1).collect();
    assert_eq!(numbers, (2..=301).collect::<Vec<_>>());
}

// ---- failing and replaying --------------------------------------------------------------------------------

#[test]
fn line_22_an_event_that_failed_at_its_turn_parks_its_lane() {
    let mut world = world(|_| {});
    world.send_all([1, 2]);
    world.start_and_fail(true);
    assert_eq!((world.state(), world.machine.lane.hold()), (State::Parked, Some(Hold::Failed)));
    assert_eq!(
        (world.machine.lane.depth(), world.start()),
        (2, None),
        "later events wait behind the dead letter"
    );
    assert!(world.letters.is_empty(), "the dead letter stays inside the lane");
}

#[test]
fn line_22_what_never_took_a_place_goes_out_at_the_next_turn_flagged_late() {
    let mut world = world(|policy| policy.strict = true);
    world.send_all([1, 2]);
    world.send((1, 1), 1);
    world.requeue(0);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::None), (3, 3, Flag::Late)]);
}

#[test]
fn line_22_a_replay_that_fails_again_parks_nothing() {
    let mut world = world(|policy| policy.on_failure = OnFailure::Park);
    world.send_all([1, 2]);
    world.start_and_fail(true);
    world.must(Input::Skip);
    world.requeue(0);
    let actions = world.start_and_fail(true);
    assert!(matches!(actions[..], [Action::DeadLetter { why: Why::Failed, .. }]));
    assert_eq!(world.out(), [(2, 2, Flag::Gap)]);
}

#[test]
fn line_23_skip_goes_on_flagged_and_a_replay_keeps_its_number() {
    let mut world = world(|policy| (policy.on_failure, policy.attempts_max) = (OnFailure::Skip, Some(1)));
    world.send_all([1, 2, 3]);
    assert!(matches!(world.start_and_fail(false)[..], [Action::DeadLetter { why: Why::Failed, .. }]));
    let next = world.start_and_deliver();
    assert_eq!((next.number, next.flag), (LaneNumber(2), Flag::Gap));
    world.start();
    world.requeue(0);
    assert_eq!(
        world.out(),
        [(3, 3, Flag::None), (1, 1, Flag::Late)],
        "the replay waits for the event in flight"
    );
}

#[test]
fn line_23_the_flag_waits_for_a_next_event() {
    let mut world = world(|policy| policy.on_failure = OnFailure::Skip);
    world.send_all([1]);
    world.start_and_fail(true);
    world.crash();
    world.send_all([2, 3]);
    assert_eq!(world.out(), [(2, 2, Flag::Gap), (3, 3, Flag::None)]);
}

#[test]
fn line_24_resume_tries_the_head_again_with_fresh_attempts() {
    let mut world = world(|_| {});
    world.send_all([1, 2]);
    (0..3).for_each(|_| drop(world.start_and_fail(false)));
    assert!(matches!(world.must(Input::Resume)[..], [Action::Unhold(_)]));
    assert_eq!((world.state(), world.machine.lane.attempts()), (State::Open, 0));
    (0..3).for_each(|_| drop(world.start_and_fail(false)));
    assert_eq!(
        (world.state(), world.machine.lane.attempts_total()),
        (State::Parked, 6),
        "the total includes earlier attempts"
    );
    world.must(Input::Resume);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::None)]);
}

#[test]
fn line_24_resume_lifts_a_pause_and_waits_one_more_timeout_on_a_gap() {
    let mut world = world(|policy| policy.gap_action = GapAction::Park);
    world.send_all([1, 3]);
    world.deliver_all();
    world.wait_for_gap();
    world.must(Input::Pause);
    assert_eq!(world.state(), State::Paused);
    world.now = world.now + 1000;
    world.must(Input::Resume);
    assert_eq!((world.state(), world.machine.lane.gap_timer()), (State::Gap, Some(world.now + 100)));
}

#[test]
fn line_24_pause_starts_nothing_new_and_lets_the_open_request_end() {
    let mut world = world(|_| {});
    world.send_all([1, 2]);
    world.start();
    world.must(Input::Pause);
    assert_eq!(world.state(), State::Running);
    world.deliver();
    assert_eq!((world.state(), world.start()), (State::Paused, None));
}

#[test]
fn line_24_skip_makes_a_dead_letter_of_the_head_or_a_tombstone_of_the_gap() {
    let mut world = world(|policy| policy.gap_action = GapAction::Park);
    assert_eq!(world.apply(Input::Skip), Err(Refused::NothingToSkip));
    world.send_all([1, 2, 4]);
    world.start();
    assert_eq!(world.apply(Input::Skip), Err(Refused::Running));
    world.fail(false);
    assert!(
        matches!(world.must(Input::Skip)[..], [Action::DeadLetter { .. }]),
        "skip works while the head is retrying"
    );
    assert_eq!(world.out(), [(2, 2, Flag::Gap)]);
    world.wait_for_gap();
    assert_eq!(told(&world.must(Input::Skip)).1, [(3, 3)]);
    assert_eq!(world.out(), [(3, 3, Flag::Gap)]);
}

#[test]
fn line_24_purge_drops_all_that_waits_but_what_is_in_flight() {
    let mut world = world(|policy| (policy.gap_action, policy.buffer_events_max) = (GapAction::Park, 1));
    world.send_all((1..=800).chain([802, 804, 806]));
    world.start();
    assert!(!world.machine.chunks.is_empty() && !world.machine.early.is_empty(), "some events are on disk");
    let actions = world.must(Input::Purge);
    assert_eq!(actions.iter().filter(|action| matches!(action, Action::Dropped(_))).count(), 802);
    assert_eq!(told(&actions).1, [(801, 806)], "the missing sequences are recorded as a gap");
    assert_eq!(world.out(), [(1, 1, Flag::None)]);
    world.send_all([807]);
    assert_eq!(world.out(), [(804, 801, Flag::Gap)]);
    assert!(world.send((802, 0), 1).is_some(), "a purge releases the ids");
}

#[test]
fn line_25_a_replay_in_place_gets_fresh_attempts_and_lifts_no_pause() {
    let mut world = world(|_| {});
    assert_eq!(world.apply(Input::Replay), Err(Refused::NotParked));
    world.send_all([1, 2]);
    world.start_and_fail(true);
    world.must(Input::Pause);
    world.must(Input::Replay);
    assert_eq!((world.state(), world.start()), (State::Paused, None));
    world.must(Input::Resume);
    assert_eq!(world.out(), [(1, 1, Flag::None), (2, 2, Flag::None)]);
}

#[test]
fn line_25_replays_go_in_the_lanes_order_however_they_were_asked_for() {
    let mut world = world(|policy| policy.on_failure = OnFailure::Skip);
    world.send_all([1, 2, 3, 4]);
    (0..3).for_each(|_| drop(world.start_and_fail(true)));
    world.requeue(2);
    world.requeue(0);
    world.requeue(0);
    let numbers: Vec<u64> = world.out().iter().map(|out| out.1).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
}

#[test]
fn line_25_a_replay_beside_a_parked_head_has_its_own_attempts() {
    let mut world = world(|_| {});
    world.send_all([1, 2, 3]);
    world.start_and_fail(true);
    world.must(Input::Skip);
    (0..3).for_each(|_| drop(world.start_and_fail(false)));
    assert_eq!(world.state(), State::Parked);
    world.requeue(0);
    world.start_and_fail(false);
    assert_eq!((world.state(), world.machine.lane.attempts()), (State::Retrying, 1));
    world.must(Input::Replay);
    assert_eq!(
        world.machine.lane.head().map(|(turn, _)| turn),
        Some(Turn::Aside),
        "the replayed event keeps its turn"
    );
    world.now = world.now + 50;
    assert_eq!(world.start_and_deliver().position, Position(1));
    world.start_and_fail(false);
    assert_eq!((world.machine.lane.attempts(), world.machine.lane.attempts_total()), (1, 4));
}

#[test]
fn line_28_a_drop_takes_the_oldest_that_neither_is_in_flight_nor_holds_the_lane() {
    let mut world = world(|_| {});
    world.send_all([1, 2, 3]);
    world.start();
    world.must(Input::DropOldest);
    assert_eq!(world.fates[&Position(2)], Fate::Dropped);
    world.fail(true);
    assert_eq!(world.machine.lane.droppable(), 1);
    world.must(Input::DropOldest);
    assert_eq!((world.fates[&Position(3)], world.machine.lane.droppable()), (Fate::Dropped, 0));
    assert_eq!(world.must(Input::DropOldest), []);
    world.must(Input::Resume);
    world.send_all([4]);
    assert_eq!(
        world.out(),
        [(1, 1, Flag::None), (4, 4, Flag::Gap)],
        "the flag is on the event after the hole, not on the head"
    );
}

#[test]
fn line_28_a_drop_reaches_what_is_on_disk() {
    let mut world = world(|policy| policy.sequenced = false);
    world.send_all(0..700);
    for _ in 0..699 {
        world.start();
        assert_eq!(world.must(Input::DropOldest).len(), 1);
        world.abandon();
    }
    assert_eq!(world.machine.lane.droppable(), 1);
}

#[test]
fn a_lane_that_lost_its_early_events_is_parked_at_no_gap() {
    let mut world = world(|policy| policy.gap_action = GapAction::Park);
    world.send_all([1, 3]);
    world.deliver_all();
    world.wait_for_gap();
    world.must(Input::DropOldest);
    assert_eq!((world.state(), world.machine.lane.is_idle()), (State::Open, true));
    assert_eq!(world.machine.lane.wake_at(), None::<Millis>);
}
