//! Planted bugs: mistakes that a tired person could make, each behind one line at the place where it would be made.
//!
//! They prove that the checkers of the simulator see. The feature `planted` compiles them in, one is chosen by its
//! number, and the run must fail. Without the feature `is_on` is a constant and nothing of them is left.

/// The bugs, one a line: number, name, what it does.
macro_rules! bugs {
    ($($number:literal $name:ident $what:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Bug { $(#[doc = $what] $name = $number,)* }

        /// Number, name, what it does.
        #[cfg(feature = "planted")]
        pub const ALL: &[(u32, &str, &str)] = &[$(($number, stringify!($name), $what),)*];
    };
}

bugs! {
    // What is durable.
    1 SyncLeftOut "a sync of the log reports success and does nothing"
    2 OldSegmentUnsynced "after a segment switch only the new segment is synced"
    3 NamesUnsynced "a sync covers bytes and forgets the name of a new segment"
    4 ManifestUnsynced "the manifest is renamed into place before its bytes are synced"
    5 TableUnsynced "a table's last bytes are not synced before the manifest names it"
    6 FailedSyncForgiven "a failed sync is tried again instead of stopping the log"
    7 AnswerBeforeSync "a producer is answered when its event is written, not when it is synced"
    8 DeliveryBeforeSync "an event is delivered before it is durable"
    9 DecisionUnsynced "a decision about a lane takes effect before it is durable"
    10 AckUnwritten "a lane's next delivery starts before the acknowledgement is written"
    11 StepsLostAtSwitch "steps that wait in memory are dropped when the log goes on in a new segment"
    // What recovery finds.
    12 RecoveryStopsEarly "recovery leaves out the last commit group"
    13 ChecksumIgnored "a record's checksum is not compared"
    14 RetriesReset "a lane that comes back from its row begins its attempts anew"
    15 ParkedOpens "a lane that comes back from its row has forgotten that it is parked"
    16 MarkNotRecovered "idempotency marks are not set when the log is read back"
    17 CheckpointSkipsBusy "a checkpoint leaves out lanes with an open request"
    18 AckNotStored "an acknowledgement does not count as a change of the lane's row"
    19 CheckpointForgets "rows that changed while a checkpoint was written are forgotten when it is done"
    20 MergeLosesLetters "a merge of tables drops dead letters"
    21 SingleRowKept "the row of an unordered event stays after its delivery"
    // Order.
    22 Swapped "now and then two events of a lane change places"
    23 GapIgnored "a gap of a single sequence is not waited for"
    24 LateUnflagged "a late event is delivered as if it came in time"
    25 TwoOpen "to resume a lane forgets its open request"
    26 ReplayOvertakes "a replayed dead letter does not wait for the request that is open in its lane"
    27 ReplayBackwards "a replay takes the dead letters of a key from the newest on"
    28 PreviousIdStale "an event that was given up is not named as the one before"
    29 NumberReused "the number of an event that was given up is given again"
    // What is kept and what is known.
    30 MarkBeforeWork "an event is marked as known before there is room for it"
    31 InFlightUnknown "an event that is in flight is accepted again"
    32 PurgeKeepsIds "ids of purged and dropped events are not released"
    33 SubscriptionReused "a new subscription gets the number of a deleted one, and its marks"
    34 BufferDrops "the last early event that fits the buffer is dropped"
    35 ResumeSkipsHead "to resume a paused lane drops a head that waits for its retry"
    36 RetentionForgets "retention removes a segment without copying what still waits in it"
    37 WrongBytes "a retry sends the bytes of the lane's last event"
    38 CatchUpEndsEarly "a subscription goes live without the newest event that it had put off"
    // Going on, and bounds.
    39 RetryNeverWoken "after its second failure a lane gets no timer"
    40 GapNeverWoken "a gap's timer is set and never looked at"
    41 ColdNeverWoken "a lane that left memory while it waited is not fetched when it is due"
    42 OneTooMany "a subscription may have one more request open than configured"
    43 MemoryUnbounded "lanes never leave memory"
    44 RetryAfterIgnored "a target's Retry-After is not obeyed"
    45 WindowFromAcceptance "the window of an id begins when its event is accepted, not when it is delivered"
    // Gaps, and what people do to lanes.
    46 GapsForgotten "a lane remembers 64 gaps and takes what is missing below them for a duplicate"
    47 LimitWaits "a gap that is over the buffer's limit when the lane comes to it waits for its timeout"
    48 PurgeFlags "a purge flags the next event although nothing waited"
    49 DeleteHitsTurn "to delete a dead letter that holds its lane skips whatever has the lane's turn"
    50 LateLetterSkipped "a replay passes over a late dead letter beside a parked lane"
    // Subscriptions that are behind.
    51 LagRejects "a full subscription that should fall behind turns events away"
    52 OvertakesUnread "an event takes its place at once although others are unread"
    53 ReadsWhenFull "a subscription that is behind reads on although it is full"
    54 LagNotRecovered "after a crash a subscription does not fall behind with the event that it fell behind with"
    55 MissedUncounted "retention removes unread events and says nothing"
    56 UnreadForgotten "the id of an unread event is forgotten after its window"
    // Ends, targets and answers.
    57 StopIgnored "deliveries start although the process is to end"
    58 OldTarget "a change of target does not take effect"
    59 ReplyDropped "the last event of an answer is not taken in"
    60 NotReadyCounts "a call for which nobody was there counts as an attempt"
    // The memory account.
    61 TextsUncounted "keys, ids and errors of lanes in memory are not counted"
    // Namespaces.
    62 IdsShared "an id is known in all namespaces once it is known in one"
    63 PastShared "a subscription that begins in the past takes events of other namespaces"
}

/// Whether this bug is the chosen one.
#[inline(always)]
pub fn is_on(bug: Bug) -> bool {
    chosen::number() == bug as u32
}

#[cfg(feature = "planted")]
pub use chosen::select;

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// At first what the environment says, so that any test can be run with a bug.
    static NUMBER: LazyLock<AtomicU32> = LazyLock::new(|| {
        let named = std::env::var("KLAMBDA_PLANTED").ok();
        AtomicU32::new(named.and_then(|number| number.parse().ok()).unwrap_or(0))
    });

    pub fn number() -> u32 {
        NUMBER.load(Ordering::Relaxed)
    }

    /// Chooses a bug for the whole process; zero for none.
    pub fn select(number: u32) {
        NUMBER.store(number, Ordering::Relaxed);
    }
}

#[cfg(not(feature = "planted"))]
mod chosen {
    /// No bug has this number.
    #[inline(always)]
    pub const fn number() -> u32 {
        0
    }
}

#[cfg(all(test, feature = "planted"))]
mod tests {
    use super::*;

    #[test]
    fn numbers_run_from_one_without_a_hole() {
        let numbers: Vec<u32> = ALL.iter().map(|bug| bug.0).collect();
        assert_eq!(numbers, (1..=ALL.len() as u32).collect::<Vec<_>>());
    }
}
