//! The contents of a seed: the active troubles, the number of keys, and sizes. Every seed has a different mix, so
//! that rare combinations occur. `Knobs` can only reduce a run, which is how a failing run is shrunk.

use crate::rng::Rng;

/// A kind of trouble. Each seed has some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Trouble {
    PowerCut,
    Kill,
    CrashInRecovery,
    DiskError,
    FullDisk,
    ClockJump,
    Failures,
    Outages,
    Hangs,
    LostAnswers,
    Poison,
    Duplicates,
    Shuffle,
    Gaps,
    LaneActions,
    PolicyChanges,
    Deletions,
    Pauses,
    Replays,
    LetterDeletions,
    SmallMemory,
    Retention,
    SlowJobs,
    TightLimits,
    ShortWindows,
    Stops,
    Retargets,
    Replies,
    NotReady,
    /// Two namespaces, with subscriptions and events of the same names.
    Namespaces,
    /// Webhook endpoints, their receivers and their operators.
    Endpoints,
    /// Operators edit dead letters.
    Edits,
}

impl Trouble {
    pub const ALL: [Trouble; 32] = [
        Trouble::PowerCut,
        Trouble::Kill,
        Trouble::CrashInRecovery,
        Trouble::DiskError,
        Trouble::FullDisk,
        Trouble::ClockJump,
        Trouble::Failures,
        Trouble::Outages,
        Trouble::Hangs,
        Trouble::LostAnswers,
        Trouble::Poison,
        Trouble::Duplicates,
        Trouble::Shuffle,
        Trouble::Gaps,
        Trouble::LaneActions,
        Trouble::PolicyChanges,
        Trouble::Deletions,
        Trouble::Pauses,
        Trouble::Replays,
        Trouble::LetterDeletions,
        Trouble::SmallMemory,
        Trouble::Retention,
        Trouble::SlowJobs,
        Trouble::TightLimits,
        Trouble::ShortWindows,
        Trouble::Stops,
        Trouble::Retargets,
        Trouble::Replies,
        Trouble::NotReady,
        Trouble::Namespaces,
        Trouble::Endpoints,
        Trouble::Edits,
    ];

    /// True if the trouble has random numbers of its own. A seed without it is the same run as before it existed.
    fn is_apart(self) -> bool {
        matches!(self, Trouble::Endpoints | Trouble::Edits)
    }

    pub fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// The parameters of a run. They determine everything that happens in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    pub seed: u64,
    /// Maximum number of new events.
    pub events_max: u64,
    /// Troubles that are removed from the mix of the seed, as bits.
    pub without: u32,
    pub keys_max: u64,
    pub subscriptions_max: u64,
}

/// The approximate number of events per seed.
pub const EVENTS: u64 = 5200;

impl Knobs {
    pub fn of_seed(seed: u64) -> Knobs {
        Knobs { seed, events_max: EVENTS, without: 0, keys_max: u64::MAX, subscriptions_max: u64::MAX }
    }
}

#[derive(Clone, Debug)]
pub struct Mix {
    troubles: u32,
    pub events: u64,
    pub keys: u64,
    pub subscriptions: u64,
    pub hosts: u64,
    /// Maximum number of events sent per round.
    pub pace: u64,
    /// Maximum duration of a round in milliseconds.
    pub round_ms: u64,
    /// A crash happens in about one of this many rounds.
    pub crash_every: u64,
    pub operator_every: u64,
    pub memory_bytes: usize,
    pub segment_bytes: u64,
    pub concurrency: u32,
    pub data_max: u64,
    /// Maximum number of ids to keep.
    pub marks_max: u64,
    /// With gaps: about one event in this many omits some sequences, temporarily or permanently.
    pub gap_every: u64,
}

impl Mix {
    pub fn new(knobs: Knobs, rng: &mut Rng) -> Mix {
        let mut troubles = 0;
        // Some seeds have almost all troubles, some only a few.
        let share = rng.between(2, 9);
        for trouble in Trouble::ALL.into_iter().filter(|trouble| !trouble.is_apart()) {
            if rng.below(10) < share {
                troubles |= trouble.bit();
            }
        }
        // Nearly every seed has some kind of crash.
        if rng.below(8) > 0 {
            troubles |= rng.pick(&[Trouble::PowerCut, Trouble::Kill]).bit();
        }
        let mut apart = Rng::new(!knobs.seed);
        for trouble in Trouble::ALL.into_iter().filter(|trouble| trouble.is_apart()) {
            if apart.one_in(4) {
                troubles |= trouble.bit();
            }
        }
        troubles &= !knobs.without;
        let small = troubles & Trouble::SmallMemory.bit() != 0;
        let keys = *rng.pick(&[1, 2, 5, 12, 40, 200, 600]);
        let subscriptions = rng.between(1, 5);
        let pace = *rng.pick(&[4, 8, 16, 30]);
        Mix {
            troubles,
            events: knobs.events_max,
            keys: keys.min(knobs.keys_max),
            subscriptions: subscriptions.min(knobs.subscriptions_max),
            hosts: rng.between(1, 3),
            pace,
            round_ms: *rng.pick(&[5, 20, 60]),
            crash_every: rng.between(20, 120) * 8 / pace.min(8),
            operator_every: rng.between(3, 40),
            memory_bytes: if small { 160 << 10 } else { 1 << 20 },
            segment_bytes: if small { 64 << 10 } else { 256 << 10 },
            concurrency: *rng.pick(&[2, 8, 64, 4096]),
            data_max: *rng.pick(&[0, 40, 400]),
            marks_max: if troubles & Trouble::ShortWindows.bit() != 0 {
                *rng.pick(&[1000, u64::MAX])
            } else {
                u64::MAX
            },
            gap_every: *rng.pick(&[2, 8, 25, 25]),
        }
    }

    pub fn has(&self, trouble: Trouble) -> bool {
        self.troubles & trouble.bit() != 0
    }

    /// True if there are too many gaps for operators to handle each one.
    pub fn has_many_gaps(&self) -> bool {
        self.has(Trouble::Gaps) && self.gap_every < 10
    }

    /// Ends the troubles.
    pub fn calm(&mut self) {
        self.troubles &= Trouble::SmallMemory.bit() | Trouble::Retention.bit() | Trouble::Namespaces.bit();
    }
}
