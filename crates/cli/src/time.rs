//! Times for people: `2h` is two hours ago, `3m12s` is an age.

use klambda_core::quantity::parse_duration_ms;
use klambda_core::time::Millis;
use std::time::{Duration, SystemTime};

/// A moment given on the command line, as RFC 3339.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment(pub String);

pub fn now() -> Millis {
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
}

/// RFC 3339, or a duration before now.
pub fn parse_moment(text: &str) -> Result<Moment, String> {
    moment_at(text, now())
}

fn moment_at(text: &str, now: Millis) -> Result<Moment, String> {
    if let Some(at) = Millis::parse_rfc3339(text) {
        return Ok(Moment(at.rfc3339()));
    }
    let ago_ms = parse_duration_ms(text).map_err(|_| {
        "expected a time like 2026-01-31T12:00:00Z or a duration before now like 2h".to_owned()
    })?;
    Ok(Moment((now - ago_ms).rfc3339()))
}

/// A duration above zero.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration_ms(text)? {
        0 => Err("must be more than 0".to_owned()),
        ms => Ok(Duration::from_millis(ms)),
    }
}

/// The time since `at` (RFC 3339), or `-` without a time.
pub fn age_of(at: Option<&str>, now: Millis) -> String {
    match at.and_then(Millis::parse_rfc3339) {
        Some(at) => span(now.since(at)),
        None => "-".to_owned(),
    }
}

/// `in 12s`, `now` or `3m12s ago`.
pub fn relative(at: &str, now: Millis) -> String {
    match Millis::parse_rfc3339(at) {
        None => at.to_owned(),
        Some(at) if at.since(now) >= 1_000 => format!("in {}", span(at.since(now))),
        Some(at) if now.since(at) >= 1_000 => format!("{} ago", span(now.since(at))),
        Some(_) => "now".to_owned(),
    }
}

/// A time with milliseconds always, so that the cells of a column have the same width.
pub fn fixed(at: &str) -> String {
    match Millis::parse_rfc3339(at) {
        None => at.to_owned(),
        Some(time) => {
            let text = time.rfc3339();
            let seconds = text.split(['.', 'Z']).next().unwrap_or_default();
            format!("{seconds}.{:03}Z", time.0 % 1_000)
        }
    }
}

/// A duration as kubectl prints ages: two units for small numbers, one for large ones.
pub fn span(ms: u64) -> String {
    let s = ms / 1_000;
    let (m, h, d) = (s / 60, s / 3_600, s / 86_400);
    match s {
        0..120 => format!("{s}s"),
        120..600 => two(m, "m", s % 60, "s"),
        600..10_800 => format!("{m}m"),
        10_800..28_800 => two(h, "h", m % 60, "m"),
        28_800..172_800 => format!("{h}h"),
        172_800..691_200 => two(d, "d", h % 24, "h"),
        691_200..63_072_000 => format!("{d}d"),
        _ => two(d / 365, "y", d % 365, "d"),
    }
}

fn two(big: u64, big_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{big}{big_unit}"),
        _ => format!("{big}{big_unit}{small}{small_unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts() {
        assert_eq!(parse_timeout("1h30m"), Ok(Duration::from_secs(5_400)));
        for wrong in ["", "0", "0s", "5", "soon"] {
            assert!(parse_timeout(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn moments() {
        let now = Millis::parse_rfc3339("2026-03-01T12:00:00Z").expect("a time");
        let moment = |text| moment_at(text, now).map(|moment| moment.0);
        assert_eq!(moment("2h").as_deref(), Ok("2026-03-01T10:00:00Z"));
        assert_eq!(moment("2026-02-01T02:00:00+02:00").as_deref(), Ok("2026-02-01T00:00:00Z"));
        assert!(moment("tomorrow").is_err());
    }

    #[test]
    fn times_in_tables_have_one_width() {
        for (at, shown) in [
            ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00.000Z"),
            ("2026-03-01T12:00:00.4Z", "2026-03-01T12:00:00.400Z"),
            ("2026-03-01T12:00:00.039Z", "2026-03-01T12:00:00.039Z"),
            ("-", "-"),
        ] {
            assert_eq!(fixed(at), shown);
        }
    }

    #[test]
    fn ages_read_like_kubectl() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (192, "3m12s"),
            (300, "5m"),
            (7_200, "120m"),
            (4 * 3_600 + 60, "4h1m"),
            (47 * 3_600, "47h"),
            (3 * 86_400 + 7_200, "3d2h"),
            (9 * 86_400, "9d"),
            (800 * 86_400, "2y70d"),
        ] {
            assert_eq!(span(seconds * 1_000), text);
        }
    }
}
