//! Planted bugs: realistic mistakes, each behind one line of code where the mistake would happen.
//!
//! They prove that the checkers of the simulator detect bugs. The feature `planted` compiles them in. A test selects
//! one by its number, and its run must fail. Without the feature, `is_on` is always false and the compiler removes
//! the planted code.

/// The bugs, one per line: number, name, description.
macro_rules! bugs {
    ($($number:literal $name:ident $what:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Bug { $(#[doc = $what] $name = $number,)* }

        /// Number, name, description.
        #[cfg(feature = "planted")]
        pub const ALL: &[(u32, &str, &str)] = &[$(($number, stringify!($name), $what),)*];
    };
}

bugs! {
    // Durability.
    1 SyncLeftOut "a sync of the log reports success and does nothing"
    2 OldSegmentUnsynced "after a segment switch only the new segment is synced"
    3 NamesUnsynced "a sync covers the bytes but not the name of a new segment"
    4 ManifestUnsynced "the manifest is renamed into place before its bytes are synced"
    5 TableUnsynced "the manifest names a table before its last bytes are synced"
    6 FailedSyncForgiven "a failed sync is retried instead of stopping the log"
    7 AnswerBeforeSync "a producer gets its response when the event is written, before it is synced"
    8 DeliveryBeforeSync "an event is delivered before it is durable"
    9 DecisionUnsynced "a decision about a lane takes effect before it is durable"
    10 AckUnwritten "a lane's next delivery starts before the acknowledgement is written"
    11 StepsLostAtSwitch "steps buffered in memory are dropped when the log switches to a new segment"
    // Recovery.
    12 RecoveryStopsEarly "recovery leaves out the last commit group"
    13 ChecksumIgnored "a record's checksum is not compared"
    14 RetriesReset "a lane that is loaded from its row starts with zero attempts"
    15 ParkedOpens "a lane that is loaded from its row is no longer parked"
    16 MarkNotRecovered "idempotency marks are not restored from the log"
    17 CheckpointSkipsBusy "a checkpoint leaves out lanes with an open request"
    18 AckNotStored "an acknowledgement does not mark the lane's row as changed"
    19 CheckpointForgets "rows that change during a checkpoint are lost when it ends"
    20 MergeLosesLetters "merging tables drops dead letters"
    21 SingleRowKept "the row of an unordered event stays after its delivery"
    // Order.
    22 Swapped "occasionally two events of a lane are swapped"
    23 GapIgnored "a lane does not wait for a gap of one sequence"
    24 LateUnflagged "a late event is delivered without the flag"
    25 TwoOpen "resuming a lane forgets its open request"
    26 ReplayOvertakes "a replayed dead letter does not wait for the open request of its lane"
    27 ReplayBackwards "a replay delivers the dead letters of a key newest first"
    28 PreviousIdStale "an event that was given up does not appear as the previous id"
    29 NumberReused "the number of an event that was given up is reused"
    // Ids and stored events.
    30 MarkBeforeWork "an event is marked as known before it is accepted"
    31 InFlightUnknown "an event that is in flight is accepted again"
    32 PurgeKeepsIds "ids of purged and dropped events are not released"
    33 SubscriptionReused "a new subscription gets the number of a deleted one, and its marks"
    34 BufferDrops "the last early event that fits the buffer is dropped"
    35 ResumeSkipsHead "resuming a paused lane drops a head that waits for its retry"
    36 RetentionForgets "retention removes a segment without copying its pending events"
    37 WrongBytes "a retry sends the bytes of the lane's last event"
    38 CatchUpEndsEarly "a subscription that catches up omits the newest unread event"
    // Progress and limits.
    39 RetryNeverWoken "after its second failure a lane gets no timer"
    40 GapNeverWoken "a gap timer is set but never checked"
    41 ColdNeverWoken "a lane that left memory is not loaded when its timer is due"
    42 OneTooMany "a subscription may have one more request open than configured"
    43 MemoryUnbounded "lanes never leave memory"
    44 RetryAfterIgnored "the Retry-After of a target is ignored"
    45 WindowFromAcceptance "the id window starts at acceptance instead of delivery"
    // Gaps, and actions of operators.
    46 GapsForgotten "a lane remembers only 64 gaps and treats missing sequences below them as duplicates"
    47 LimitWaits "a gap that already exceeds the buffer limit still waits for its timeout"
    48 PurgeFlags "a purge of an empty lane flags the next event"
    49 DeleteHitsTurn "deleting a dead letter that parks its lane skips the event that has its turn"
    50 LateLetterSkipped "a replay ignores a late dead letter beside a parked lane"
    // Subscriptions that lag behind.
    51 LagRejects "a full subscription rejects events instead of lagging"
    52 OvertakesUnread "a new event overtakes unread events"
    53 ReadsWhenFull "a subscription that lags reads more events although it is full"
    54 LagNotRecovered "after a crash a subscription loses the first event that it did not read"
    55 MissedUncounted "retention removes unread events without counting them"
    56 UnreadForgotten "the id of an unread event is forgotten after its window"
    // Shutdown, targets and replies.
    57 StopIgnored "deliveries start during shutdown"
    58 OldTarget "a change of target does not take effect"
    59 ReplyDropped "the last event of a reply is lost"
    60 NotReadyCounts "a call without a ready replica counts as an attempt"
    // Memory accounting.
    61 TextsUncounted "keys, ids and errors of lanes in memory are not counted"
    // Namespaces.
    62 IdsShared "an id that is known in one namespace is known in all"
    63 PastShared "a subscription that starts in the past receives events of other namespaces"
    // Attempts.
    64 RetryUnlinked "a retry of an unordered event does not name the attempt before it"
    65 StatusForgotten "a retry is recorded without its status"
    // Webhook endpoints.
    66 FeedUnlinked "the feed does not name the previous event of a workflow that was loaded from its row"
    67 ReceiverAckNotStored "an acknowledgement by a receiver does not mark the lane's row as changed"
    68 AckTooFar "an acknowledgement by a receiver covers one more entry of the feed"
    69 DisabledUnlisted "the events of a disabled endpoint are not in its feed"
    70 GoneIgnored "a response with 410 does not disable the endpoint"
    71 PrefixTakesAll "the acknowledgement of a part of a batch acknowledges all of it"
    72 SkippedLeavesFeed "an event that a disabled endpoint skips leaves the feed"
    // Edits.
    73 EditForgotten "retention removes a segment without copying the edits of dead letters"
}

/// True if this bug is selected.
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

    /// Initially taken from the environment, so that any test can run with a bug.
    static NUMBER: LazyLock<AtomicU32> = LazyLock::new(|| {
        let named = std::env::var("KLAMBDA_PLANTED").ok();
        AtomicU32::new(named.and_then(|number| number.parse().ok()).unwrap_or(0))
    });

    pub fn number() -> u32 {
        NUMBER.load(Ordering::Relaxed)
    }

    /// Selects a bug for the whole process; zero selects none.
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
