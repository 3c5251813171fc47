//! Classifies addresses by the ranges that IANA reserves for special purposes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address or a port is forbidden unless the operator allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    Loopback,
    Private,
    LinkLocal,
    CarrierNat,
    Multicast,
    Broadcast,
    Unspecified,
    Reserved,
    /// Not a range: the port is not in `outbound.ports`.
    Port,
    /// Not a range: the host is written in a way that programs read differently.
    Spelling,
}

impl Rule {
    pub const ALL: [Rule; 10] = [
        Rule::Loopback,
        Rule::Private,
        Rule::LinkLocal,
        Rule::CarrierNat,
        Rule::Multicast,
        Rule::Broadcast,
        Rule::Unspecified,
        Rule::Reserved,
        Rule::Port,
        Rule::Spelling,
    ];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Loopback => "loopback",
            Rule::Private => "private",
            Rule::LinkLocal => "link-local",
            Rule::CarrierNat => "carrier-nat",
            Rule::Multicast => "multicast",
            Rule::Broadcast => "broadcast",
            Rule::Unspecified => "unspecified",
            Rule::Reserved => "reserved",
            Rule::Port => "port",
            Rule::Spelling => "spelling",
        }
    }

    /// The rule that forbids an address. `None` for a public address.
    pub fn of(address: IpAddr) -> Option<Rule> {
        match address {
            IpAddr::V4(address) => of_v4(address),
            IpAddr::V6(address) => of_v6(address),
        }
    }
}

fn of_v4(address: Ipv4Addr) -> Option<Rule> {
    match address.octets() {
        [255, 255, 255, 255] => Some(Rule::Broadcast),
        [0, ..] => Some(Rule::Unspecified),
        [127, ..] => Some(Rule::Loopback),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some(Rule::Private),
        [169, 254, ..] => Some(Rule::LinkLocal),
        [100, 64..=127, ..] => Some(Rule::CarrierNat),
        [224..=239, ..] => Some(Rule::Multicast),
        // Protocol assignments, documentation, 6to4 relays, benchmarks, and the former class E.
        [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18 | 19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [240..=255, ..] => Some(Rule::Reserved),
        _ => None,
    }
}

fn of_v6(address: Ipv6Addr) -> Option<Rule> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Rule::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Rule::Loopback),
        // IPv4-mapped addresses, and NAT64: packets go to the IPv4 address inside.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => of_v4(v4(high, low)),
        // IPv4-compatible addresses have no use any more.
        [0, 0, 0, 0, 0, 0, high, low] => Some(of_v4(v4(high, low)).unwrap_or(Rule::Reserved)),
        // 6to4, and both ends of a Teredo tunnel. The client is stored inverted.
        [0x2002, high, low, ..] => of_v4(v4(high, low)),
        [0x2001, 0, high, low, .., client_high, client_low] => {
            of_v4(v4(high, low)).or_else(|| of_v4(v4(!client_high, !client_low)))
        }
        // NAT64 inside a network, unique local, and the former site-local addresses.
        [0x64, 0xff9b, 1, ..] | [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Some(Rule::Private),
        [0xfe80..=0xfebf, ..] => Some(Rule::LinkLocal),
        [0xff00..=0xffff, ..] => Some(Rule::Multicast),
        // Protocol assignments and documentation.
        [0x2001, 0x0001..=0x01ff | 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Some(Rule::Reserved),
        // Only 2000::/3 is in use for public addresses.
        [0x2000..=0x3fff, ..] => None,
        _ => Some(Rule::Reserved),
    }
}

fn v4(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}
