//! Durations, sizes and CPU quantities in the notation that users write: `1m30s`, `24h`, `16Mi`, `250m`. Formatting
//! and parsing are inverse.

const DAY_MS: u64 = 86_400_000;

/// From large to small, which is also their order within a duration.
const DURATION_UNITS: [(&str, u64); 5] =
    [("d", DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Binary units come first, because formatting prefers them.
const SIZE_UNITS: [(&str, u64); 12] = [
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// `500ms`, `30s`, `1m30s`, `24h`, `7d`, or `0`.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    let bad =
        || format!("`{}` is not a duration: write 500ms, 30s, 1m30s, 24h or 7d", crate::fault::excerpt(text));
    let (mut rest, mut total, mut last) = (text, 0u64, u64::MAX);
    while !rest.is_empty() || last == u64::MAX {
        let (number, after) = split_number(rest).ok_or_else(bad)?;
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let size = unit_size(&DURATION_UNITS, unit).filter(|size| *size < last).ok_or_else(bad)?;
        total = number.checked_mul(size).and_then(|ms| total.checked_add(ms)).ok_or_else(bad)?;
        (rest, last) = (next, size);
    }
    Ok(total)
}

pub fn format_duration_ms(ms: u64) -> String {
    let mut text = String::new();
    let mut rest = ms;
    for (unit, size) in DURATION_UNITS {
        // Less than two days is shown in hours: 24h, 36h, then 2d.
        let whole = if size == DAY_MS && rest < 2 * DAY_MS { 0 } else { rest / size };
        if whole > 0 {
            text.push_str(&format!("{whole}{unit}"));
            rest -= whole * size;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Plain bytes, binary units (`16Mi`) or decimal units (`100M`).
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bad =
        || format!("`{}` is not a size: write bytes, or 1Ki, 16Mi, 10Gi, 100M", crate::fault::excerpt(text));
    let (number, unit) = split_number(text).ok_or_else(bad)?;
    let size = match unit {
        "" => 1,
        "K" => 1000,
        unit => unit_size(&SIZE_UNITS, unit).ok_or_else(bad)?,
    };
    number.checked_mul(size).ok_or_else(bad)
}

pub fn format_bytes(bytes: u64) -> String {
    let even = |(_, size): &&(&str, u64)| bytes > 0 && bytes.is_multiple_of(*size);
    match SIZE_UNITS.iter().find(even) {
        Some((unit, size)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

/// A size for people: `512 bytes`, `1.5 KiB`, `128 MiB`.
pub fn shown_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" });
    }
    let (mut rest, mut unit) = (bytes as f64 / 1024.0, 0);
    while rest >= 1024.0 && unit + 1 < UNITS.len() {
        rest /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(rest < 10.0 && rest.fract() > 0.0);
    format!("{rest:.digits$} {}", UNITS[unit])
}

/// Thousandths of a CPU: `250m`, `0.25` or `2`.
pub fn parse_cpu(text: &str) -> Result<u64, String> {
    let bad = || "is not a CPU quantity: write 250m, 0.5 or 2".to_owned();
    if let Some(millis) = text.strip_suffix('m') {
        return millis.parse().map_err(|_| bad());
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.is_empty() || part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    let part: u64 = format!("{part:0<3}").parse().map_err(|_| bad())?;
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    whole.checked_mul(1000).and_then(|millis| millis.checked_add(part)).ok_or_else(bad)
}

pub fn format_cpu(millis: u64) -> String {
    if millis.is_multiple_of(1000) { (millis / 1000).to_string() } else { format!("{millis}m") }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..digits].parse().ok()?, &text[digits..]))
}

fn unit_size(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, size)| *size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1_536, "1.5 KiB"),
            (8 << 20, "8 MiB"),
            (241 << 10, "241 KiB"),
            (128 << 20, "128 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(shown_bytes(bytes), text);
        }
    }

    #[test]
    fn reads_what_people_write() {
        for (text, ms) in [
            ("30s", 30_000),
            ("24h", DAY_MS),
            ("1m30s", 90_000),
            ("500ms", 500),
            ("7d", 7 * DAY_MS),
            ("0", 0),
        ] {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for (text, bytes) in
            [("16Mi", 16 << 20), ("1Ki", 1024), ("100M", 100_000_000), ("17", 17), ("1k", 1000), ("1K", 1000)]
        {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        assert_eq!(format_duration_ms(DAY_MS), "24h");
        assert_eq!(format_duration_ms(7 * DAY_MS), "7d");
        assert_eq!(format_bytes(10 << 30), "10Gi");
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "",
            "5",
            "s",
            "1x",
            "1s1m",
            "1s1s",
            "-1s",
            "1.5s",
            "1 s",
            "99999999999999999999s",
            "9999999999999999d",
        ] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
        for text in ["", "Mi", "1MiB", "-1", "1.5Gi", "99Ei", "1 Ki"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_of_a_processor_read_and_print() {
        for (text, millis) in [("25m", 25), ("1", 1000), ("0.5", 500), ("1.25", 1250), ("2.001", 2001)] {
            assert_eq!(parse_cpu(text), Ok(millis), "{text}");
            assert_eq!(parse_cpu(&format_cpu(millis)), Ok(millis));
        }
        for text in ["", "m", "-1", "1.", "1.2345", "x", "1e3"] {
            assert!(parse_cpu(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn durations_and_sizes_read_back(n in any::<u64>(), shift in 0u32..64) {
            let n = n >> shift;
            prop_assert_eq!(parse_duration_ms(&format_duration_ms(n)), Ok(n));
            prop_assert_eq!(parse_bytes(&format_bytes(n)), Ok(n));
            let round = n << 20;
            prop_assert_eq!(parse_bytes(&format_bytes(round)), Ok(round));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,12}|[0-9]{0,22}[dhmsKMGi]{0,3}") {
            let _ = (parse_duration_ms(&text), parse_bytes(&text));
        }
    }
}
