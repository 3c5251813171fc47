//! The refusal of a call, with the rule and the setting that would allow it.

use crate::address::Rule;
use std::fmt;
use std::net::IpAddr;

/// A call that the guard does not allow. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// The host is written as an address.
    Address {
        address: IpAddr,
        rule: Rule,
    },
    /// None of the addresses of this name is allowed. The error does not contain the addresses: users who choose a
    /// target must not learn the names and addresses of an internal network.
    Name {
        name: String,
        rule: Rule,
    },
    Port(u16),
    /// The host can be read in several ways, or in none.
    Spelling {
        host: String,
        why: &'static str,
    },
    /// The URL has no host, or a scheme other than http and https.
    Url(String),
}

impl Forbidden {
    pub fn rule(&self) -> Rule {
        match self {
            Forbidden::Address { rule, .. } | Forbidden::Name { rule, .. } => *rule,
            Forbidden::Port(_) => Rule::Port,
            Forbidden::Spelling { .. } | Forbidden::Url(_) => Rule::Spelling,
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Forbidden::Address { address, rule } => write!(
                formatter,
                "{address} is {}, which this server does not call; an operator can allow it in outbound.allow",
                described(*rule)
            ),
            Forbidden::Name { name, rule } => write!(
                formatter,
                "{name} resolves to {}, which this server does not call; an operator can allow it in outbound.allow",
                described(*rule)
            ),
            Forbidden::Port(port) => {
                write!(formatter, "port {port} is not one of the ports that outbound.ports allows")
            }
            Forbidden::Spelling { host, why } => write!(formatter, "host {host:?} {why}"),
            Forbidden::Url(why) => formatter.write_str(why),
        }
    }
}

impl std::error::Error for Forbidden {}

fn described(rule: Rule) -> &'static str {
    match rule {
        Rule::Loopback => "a loopback address",
        Rule::Private => "a private address",
        Rule::LinkLocal => "a link-local address",
        Rule::CarrierNat => "an address behind a carrier NAT",
        Rule::Multicast => "a multicast address",
        Rule::Broadcast => "the broadcast address",
        Rule::Unspecified => "an unspecified address",
        Rule::Reserved | Rule::Port | Rule::Spelling => "a reserved address",
    }
}
