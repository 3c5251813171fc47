//! Regression seeds, each with the bug that it found. Every set of seeds includes them. A seed gives a different run
//! once the product or the simulator changes, so the bugs also have their own tests.

/// A seed and the bug it found.
pub const FOUND: &[(u64, &str)] = &[
    (1, "the report of a replay omitted what it had selected before a crash"),
    (3, "an event was dropped for one that another subscription then rejected"),
    (7, "ids of pending events were forgotten when there were too many"),
    (14, "an unordered dead letter got the number of another event after its subscription became ordered"),
    (18, "damage to one event stopped the whole engine"),
    (19, "a dead letter that failed again had the wrong previousid"),
    (27, "a dead letter from before a change of key returned to a lane that no longer exists"),
    (28, "a read error left a step half done, and the engine continued"),
    (30, "a lane had a previousid whose only copy was removed"),
    (35, "a replay never ended: the event it waited for was purged from disk"),
    (36, "a subscription that still read the log was deleted together with accepted events"),
    (38, "the check did not know a dead letter from before the start of the log"),
    (46, "a lane that was loaded from disk for a duplicate lost its gap timer"),
    (49, "lowering a backlog limit dropped events recursively until the stack overflowed"),
    (56, "a replay counted its skipped events again at every restart"),
    (80, "the record of a drop did not identify the event, and the check guessed wrong"),
    (85, "ready lanes that could stay in memory after all were not queued again"),
    (88, "a subscription that read the log accepted an event that it already knew"),
    (109, "an accepted event was skipped by the watermark when its subscription read it"),
    (149, "an event that was accepted and not yet read from the log was forgotten after a day"),
    (164, "the check reported dead letters as purged when the log no longer contained all pending events"),
    (31000000203, "a queue referred to a removed lane and started the lane that reused its slot in memory"),
    (910000000034, "a merge omitted rows of a subscription whose removal was only in the log"),
    (
        27108837946244,
        "copies of pending events that a crash left were copied forever, and the log never shrank",
    ),
    (
        72000536,
        "the check reported events as overtaken by a late one, because of a sequence from before the log",
    ),
    (1280, "a frame ended beyond its segment and was never read"),
    (31_416_431, "calls whose replies waited for room held all slots, and nobody could make the room"),
    (51_416_386, "marks of pending events were rewritten faster than checkpoints took them from memory"),
    (
        31_415_926_776,
        "the model did not count resent events whose ids may be forgotten towards the buffer limit of their lane",
    ),
    (
        77_000_000_095,
        "an acknowledgement did not cover a pending event that retention had removed from the feed",
    ),
    (228_802_920_212_260, "an edited dead letter that failed again lost the id of its event"),
    (555_000_000_116, "the model was sure that a purge removed an event that a limit may have dropped"),
    (9_000_000_000_370, "lanes with long queues that waited for a slot exceeded the memory limit"),
];
