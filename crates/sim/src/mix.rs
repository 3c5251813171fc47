//! What a seed is made of: which faults are on, how many keys, which sizes. Every seed has another mix, so that rare
//! combinations happen. The knobs of `Knobs` can only take away: that is how a failing run is made shorter.

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
}

impl Trouble {
    pub const ALL: [Trouble; 30] = [
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
    ];

    pub fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// What a run is asked for. Nothing but this decides what happens in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    pub seed: u64,
    /// New events that producers make at most.
    pub events_max: u64,
    /// Troubles taken out of the seed's mix, as bits.
    pub without: u32,
    pub keys_max: u64,
    pub subscriptions_max: u64,
}

/// Events of a seed, about.
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
    /// Events sent in a round, at most.
    pub pace: u64,
    /// A round takes this many milliseconds at most.
    pub round_ms: u64,
    /// One crash in so many rounds.
    pub crash_every: u64,
    pub operator_every: u64,
    pub memory_bytes: usize,
    pub segment_bytes: u64,
    pub concurrency: u32,
    pub data_max: u64,
    /// Ids that are kept at most.
    pub marks_max: u64,
    /// With gaps: one event in so many leaves some sequences out, for a while or for good.
    pub gap_every: u64,
}

impl Mix {
    pub fn new(knobs: Knobs, rng: &mut Rng) -> Mix {
        let mut troubles = 0;
        // Some seeds have nearly everything, some only a little.
        let share = rng.between(2, 9);
        for trouble in Trouble::ALL {
            if rng.below(10) < share {
                troubles |= trouble.bit();
            }
        }
        // One way or the other there are crashes in nearly every seed.
        if rng.below(8) > 0 {
            troubles |= rng.pick(&[Trouble::PowerCut, Trouble::Kill]).bit();
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

    /// So many gaps that nobody could see to each of them.
    pub fn has_many_gaps(&self) -> bool {
        self.has(Trouble::Gaps) && self.gap_every < 10
    }

    /// From here on nothing goes wrong any more.
    pub fn calm(&mut self) {
        self.troubles &= Trouble::SmallMemory.bit() | Trouble::Retention.bit() | Trouble::Namespaces.bit();
    }
}
