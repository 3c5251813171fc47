//! The rules of a server, and what calls of one namespace may reach.

use crate::address::Rule;
use crate::forbidden::Forbidden;
use crate::host::Host;
use crate::network::{Network, Ports};
use crate::resolver::{Names, System};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub allow: Vec<Allow>,
    /// Empty: all ports.
    pub ports: Vec<Ports>,
}

/// Addresses that would be forbidden without this.
#[derive(Clone, Debug, PartialEq)]
pub struct Allow {
    pub network: Network,
    /// Empty: all namespaces.
    pub namespaces: Vec<String>,
}

/// The guard of a server. Clones share their counters. The default guard is off.
#[derive(Clone, Default)]
pub struct Guard(Option<Arc<Rules>>);

struct Rules {
    /// The namespaces that the settings name.
    named: BTreeMap<String, Reach>,
    others: Reach,
    shared: Arc<Shared>,
}

/// The parts that are the same for all namespaces.
pub(crate) struct Shared {
    ports: Vec<Ports>,
    pub(crate) names: Arc<dyn Names>,
    refused: [AtomicU64; Rule::ALL.len()],
}

impl Guard {
    /// Allows every call.
    pub fn off() -> Guard {
        Guard(None)
    }

    pub fn on(settings: Settings) -> Guard {
        Guard::with_names(settings, Arc::new(System))
    }

    /// A guard with a name service of its own.
    pub fn with_names(Settings { allow, ports }: Settings, names: Arc<dyn Names>) -> Guard {
        let shared = Arc::new(Shared { ports, names, refused: Default::default() });
        let reach = |namespace: &str| Reach::new(networks_of(&allow, namespace), shared.clone());
        let namespaces = allow.iter().flat_map(|allow| &allow.namespaces);
        let named = namespaces.map(|namespace| (namespace.clone(), reach(namespace))).collect();
        // No namespace has an empty name.
        Guard(Some(Arc::new(Rules { named, others: reach(""), shared: shared.clone() })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What calls on behalf of this namespace may reach.
    pub fn reach(&self, namespace: &str) -> Reach {
        let Some(rules) = &self.0 else { return Reach::ANYWHERE };
        rules.named.get(namespace).unwrap_or(&rules.others).clone()
    }

    /// How many connections were refused by each rule.
    pub fn refused(&self) -> impl Iterator<Item = (Rule, u64)> {
        let counts = self.0.as_ref().map(|rules| &rules.shared.refused);
        Rule::ALL
            .into_iter()
            .map(move |rule| (rule, counts.map_or(0, |counts| counts[rule as usize].load(Ordering::Relaxed))))
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_on() { "Guard::on" } else { "Guard::off" })
    }
}

fn networks_of(allow: &[Allow], namespace: &str) -> Vec<Network> {
    let is_its =
        |allow: &&Allow| allow.namespaces.is_empty() || allow.namespaces.iter().any(|name| name == namespace);
    allow.iter().filter(is_its).map(|allow| allow.network).collect()
}

impl Shared {
    pub(crate) fn count(&self, forbidden: &Forbidden) {
        self.refused[forbidden.rule() as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What some calls may reach. Connections may be shared only between calls with the same reach.
#[derive(Clone)]
pub struct Reach(pub(crate) Option<Arc<Limits>>);

pub(crate) struct Limits {
    /// Allowed in addition to public addresses.
    also: Vec<Network>,
    pub(crate) shared: Arc<Shared>,
    #[cfg(feature = "client")]
    pub(crate) http: std::sync::OnceLock<reqwest::Client>,
}

impl Reach {
    fn address(&self) -> Option<*const Limits> {
        self.0.as_ref().map(Arc::as_ptr)
    }
}

/// A guard has one value for each namespace that its settings name, and one for all others.
impl PartialEq for Reach {
    fn eq(&self, other: &Reach) -> bool {
        self.address() == other.address()
    }
}

impl Eq for Reach {}

impl Hash for Reach {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl fmt::Debug for Reach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => formatter.write_str("Reach::ANYWHERE"),
            Some(limits) => formatter.debug_tuple("Reach").field(&limits.also).finish(),
        }
    }
}

impl Reach {
    /// For addresses that the server itself chose, such as those of its replicas.
    pub const ANYWHERE: Reach = Reach(None);

    fn new(also: Vec<Network>, shared: Arc<Shared>) -> Reach {
        Reach(Some(Arc::new(Limits {
            also,
            shared,
            #[cfg(feature = "client")]
            http: Default::default(),
        })))
    }

    pub fn is_anywhere(&self) -> bool {
        self.0.is_none()
    }

    /// Checks an http or https URL as far as that is possible without a lookup.
    pub fn check_url(&self, url: &str) -> Result<(), Forbidden> {
        let Some(limits) = &self.0 else { return Ok(()) };
        let (host, port) = split(url)?;
        limits.check(host, port).map(drop)
    }

    /// Checks a host and a port, as far as that is possible without a lookup.
    pub fn check(&self, host: &str, port: u16) -> Result<(), Forbidden> {
        self.0.as_ref().map_or(Ok(()), |limits| limits.check(host, port).map(drop))
    }
}

impl Limits {
    pub(crate) fn check(&self, host: &str, port: u16) -> Result<Host, Forbidden> {
        let ports = &self.shared.ports;
        if port == 0 || !ports.is_empty() && !ports.iter().any(|ports| ports.contains(port)) {
            return Err(Forbidden::Port(port));
        }
        self.check_host(host)
    }

    pub(crate) fn check_host(&self, text: &str) -> Result<Host, Forbidden> {
        let spelling = |why| Forbidden::Spelling { host: text.to_owned(), why };
        let host = Host::parse(text).map_err(spelling)?;
        match &host {
            Host::Address(address) => {
                let forbidden = |rule| Forbidden::Address { address: *address, rule };
                self.check_address(*address).map_err(forbidden)?;
            }
            Host::Name(name) if host.is_localhost() && !self.allows_loopback() => {
                return Err(Forbidden::Name { name: name.clone(), rule: Rule::Loopback });
            }
            Host::Name(_) => {}
        }
        Ok(host)
    }

    pub(crate) fn check_address(&self, address: IpAddr) -> Result<(), Rule> {
        match Rule::of(address) {
            Some(rule) if !self.also.iter().any(|network| network.contains(address)) => Err(rule),
            _ => Ok(()),
        }
    }

    fn allows_loopback(&self) -> bool {
        let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        addresses.into_iter().any(|address| self.check_address(address).is_ok())
    }
}

/// Host and port of an http or https URL. Accepts only authorities that every parser of URLs splits in the same way.
fn split(url: &str) -> Result<(&str, u16), Forbidden> {
    let wrong = |why: &str| Forbidden::Url(format!("{url:?} {why}"));
    let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("is not a URL"))?;
    let default = match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => 80,
        _ if scheme.eq_ignore_ascii_case("https") => 443,
        _ => return Err(wrong("must begin with http:// or https://")),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains(['@', '\\']) {
        return Err(wrong("must not contain a user name or a backslash in its host"));
    }
    split_authority(authority, default).ok_or_else(|| wrong("has an invalid port"))
}

/// Splits `host[:port]`. The host may be an IPv6 address in brackets.
pub fn split_authority(authority: &str, default: u16) -> Option<(&str, u16)> {
    let end = authority.rfind(']').map_or(0, |at| at + 1);
    match authority[end..].rfind(':') {
        Some(colon) => {
            let (host, port) = authority.split_at(end + colon);
            let port = &port[1..];
            let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            Some((host, port.parse().ok().filter(|_| is_number)?))
        }
        None => Some((authority, default)),
    }
}
