//! Seeds that found something, and what. They are run with every set of seeds. A seed is another run once the product
//! or the simulator changes, so the bugs have tests of their own too; these are where such things were met.

/// A seed and the bug it found.
pub const FOUND: &[(u64, &str)] = &[
    (1, "a replay's report left out what it had selected before a crash"),
    (3, "an event made room for one that another subscription then turned away"),
    (7, "ids of events that waited were forgotten when there were too many"),
    (14, "an unordered dead letter took another event's number after its subscription became ordered"),
    (18, "damage to one event stopped the whole engine"),
    (19, "a dead letter that failed again named another event as the one before it"),
    (27, "a dead letter from before a change of key went back to a lane that the rules no longer have"),
    (28, "a step that met a read error was half done, and the engine went on"),
    (30, "a lane named an event before it whose only copy was gone"),
    (35, "a replay never ended: what it waited for was purged from the part of its lane on disk"),
    (36, "a subscription that still read the log was deleted with events it had accepted"),
    (38, "the check did not know a dead letter that was routed from before the log"),
    (46, "a lane that came in from disk for a duplicate lost its gap timer"),
    (49, "a backlog whose limit was lowered made room by recursion, until the stack overflowed"),
    (56, "a replay counted what it passed over once more at every restart"),
    (80, "the record of a drop did not name the event, and the check guessed wrong"),
    (85, "ready lanes that were to leave memory and could stay were not queued again"),
    (88, "a subscription that read the log took an event that it had known when it was accepted"),
    (109, "an accepted event was skipped by the watermark when its subscription came to it"),
    (149, "an event that was accepted and not yet read from the log was forgotten after a day"),
    (164, "the check took dead letters for purged when the log no longer told all that had waited"),
    (31000000203, "a queue named a lane that was gone, and started another that has its place in memory"),
    (910000000034, "a merge left out rows of a subscription whose removal was in the log alone"),
    (
        27108837946244,
        "copies of what waits that a crash had left were copied for ever, and the log never became shorter",
    ),
    (72000536, "the check took events for overtaken by one that was late, by a sequence from before the log"),
    (1280, "a frame ended beyond its segment, where nothing reads it"),
    (9_000_000_000_370, "lanes with long queues that waited for a slot took more memory than they may"),
];
