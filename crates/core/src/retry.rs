//! The delay before a failed delivery is retried.

/// The delay before the next attempt, after `failures` failures. It doubles from `backoff_ms` up to `max_backoff_ms`.
/// The upper half is random, so that lanes that failed together do not retry together. `random` is any number.
/// `retry_after_ms` is the delay that the target requested; it is honored up to one hour.
pub fn delay_ms(
    failures: u32,
    backoff_ms: u64,
    max_backoff_ms: u64,
    retry_after_ms: Option<u64>,
    random: u64,
) -> u64 {
    let doubled = backoff_ms.saturating_mul(1u64 << failures.saturating_sub(1).min(40));
    let full = doubled.min(max_backoff_ms);
    let jittered = full / 2 + random % (full / 2 + 1);
    jittered.max(retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MS_MAX))
}

pub const RETRY_AFTER_MS_MAX: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn grows_stays_within_its_bounds_and_obeys_the_target(
            failures in 1u32..200, backoff in 0u64..100_000, max in 0u64..1_000_000, random: u64, after in proptest::option::of(0u64..10_000_000)
        ) {
            let delay = delay_ms(failures, backoff, max, after, random);
            let full = backoff.saturating_mul(1 << (failures - 1).min(40)).min(max);
            let asked = after.unwrap_or(0).min(RETRY_AFTER_MS_MAX);
            prop_assert!(delay >= full / 2 && delay >= asked);
            prop_assert!(delay <= full.max(asked));
        }
    }

    #[test]
    fn the_upper_half_is_left_to_chance() {
        assert_eq!(delay_ms(1, 1000, 60_000, None, 0), 500);
        assert_eq!(delay_ms(1, 1000, 60_000, None, 500), 1000);
        assert_eq!(delay_ms(1, 1000, 60_000, None, 501), 500);
        assert_eq!(delay_ms(3, 1000, 60_000, None, 0), 2000);
    }
}
