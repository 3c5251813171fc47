//! The host of a URL: an address or a name. Spellings that programs read differently are errors.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Address(IpAddr),
    /// In lower case, without a dot at the end.
    Name(String),
}

const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

impl Host {
    /// Reads a host as `getaddrinfo` and browsers do: 127.1, 0x7f.1, 0177.0.0.1 and 2130706433 are all 127.0.0.1. An IPv6
    /// address may be in brackets. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Host, &'static str> {
        if let Some(inside) = text.strip_prefix('[') {
            return v6(inside.strip_suffix(']').ok_or("has no closing bracket")?);
        }
        if text.contains(':') {
            return v6(text);
        }
        if !text.is_ascii() {
            return Err("contains characters outside ASCII; write an international name in its xn-- form");
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !text.bytes().all(is_plain) {
            return Err("contains a character other than letters, digits, -, _ and .");
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.len() > NAME_BYTES_MAX
            || !name.split('.').all(|label| (1..=LABEL_BYTES_MAX).contains(&label.len()))
        {
            return Err("is empty, too long, or has an empty part");
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) || number(last).is_some() {
            let address = v4(name).ok_or("ends in a number, but is not an IPv4 address")?;
            return Ok(Host::Address(address.into()));
        }
        Ok(Host::Name(name.to_ascii_lowercase()))
    }

    /// Whether this name means the machine itself, whatever the resolver says.
    pub fn is_localhost(&self) -> bool {
        match self {
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Address(_) => false,
        }
    }
}

fn v6(text: &str) -> Result<Host, &'static str> {
    if text.contains('%') {
        return Err("has a zone; only link-local addresses have one");
    }
    let address = text.parse::<Ipv6Addr>().map_err(|_| "is not an IPv6 address")?;
    Ok(Host::Address(IpAddr::V6(address).to_canonical()))
}

/// One to four numbers. The last one fills all remaining bytes, as `inet_aton` reads it.
fn v4(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u32> = text.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) {
        return None;
    }
    let bits_left = 32 - 8 * first.len() as u32;
    if u64::from(*last) >= 1 << bits_left {
        return None;
    }
    let high = first.iter().enumerate().fold(0, |sum, (index, part)| sum | part << (24 - 8 * index));
    Some(Ipv4Addr::from(high | last))
}

/// Decimal, hexadecimal after `0x`, octal after `0`.
fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    match digits {
        "" if radix == 16 => Some(0),
        _ if digits.starts_with('+') => None,
        _ => u32::from_str_radix(digits, radix).ok(),
    }
}
