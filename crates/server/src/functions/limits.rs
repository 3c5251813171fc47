//! Rate limits per client: a token bucket for each kind of request.

use crate::config::{Config, RateLimit};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use klambda_core::time::Millis;
use klambda_crash::Lock;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Above this limit, the clients that were idle for longest are forgotten.
const CLIENTS_MAX: usize = 10_000;
/// For writes, reads, deletes and all requests.
const DEFAULTS: [u32; 4] = [10, 50, 5, 100];

pub struct Limiter {
    /// Rate and burst of writes, reads, deletes and all requests.
    rates: [Option<(f64, f64)>; 4],
    clients: Lock<HashMap<IpAddr, Client>>,
}

struct Client {
    left: [f64; 4],
    at: Instant,
}

/// The rate limit status of a client.
pub struct Standing {
    /// Requests per second.
    pub limit: u64,
    /// Requests that it may send now, at most `limit`.
    pub left: u64,
    /// Time until all of them are available again.
    pub full: Duration,
    /// Time until it may send a request, if it may not now.
    pub wait: Option<Duration>,
}

const TOTAL: usize = 3;

impl Limiter {
    pub fn new(config: &Config) -> Limiter {
        let set = &config.functions.rate_limits;
        let is_local = config.listen.ip().is_loopback();
        let rate = |set: RateLimit, default: u32, burst: f64| {
            let rate = match (set, is_local) {
                (RateLimit::Off, _) | (RateLimit::Auto, true) => return None,
                (RateLimit::Auto, false) => default,
                (RateLimit::PerSecond(set), _) => set,
            };
            Some((f64::from(rate), f64::from(rate) * burst))
        };
        let rates = [
            rate(set.writes, DEFAULTS[0], 1.0),
            rate(set.reads, DEFAULTS[1], 1.0),
            rate(set.deletes, DEFAULTS[2], 1.0),
            rate(set.total, DEFAULTS[TOTAL], 2.0),
        ];
        Limiter { rates, clients: Lock::default() }
    }

    /// `None` if there is no limit.
    pub fn ask(&self, client: IpAddr, method: &Method, now: Instant) -> Option<Standing> {
        let own = match *method {
            Method::GET | Method::HEAD => 1,
            Method::DELETE => 2,
            _ => 0,
        };
        if self.rates[own].is_none() && self.rates[TOTAL].is_none() {
            return None;
        }
        let mut clients = self.clients.lock();
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&client) {
            let oldest = clients.iter().min_by_key(|(_, client)| client.at).map(|(address, _)| *address);
            oldest.map(|oldest| clients.remove(&oldest));
        }
        let full = self.rates.map(|rate| rate.map_or(0.0, |(_, most)| most));
        let client = clients.entry(client).or_insert(Client { left: full, at: now });
        client.fill(&self.rates, now);
        let asked = [own, TOTAL].map(|which| self.rates[which].map(|rate| (which, rate)));
        let lacking = asked.into_iter().flatten().find(|(which, _)| client.left[*which] < 1.0);
        let (which, (rate, most)) = lacking.or(asked[0]).or(asked[1])?;
        if lacking.is_none() {
            asked.into_iter().flatten().for_each(|(which, _)| client.left[which] -= 1.0);
        }
        let left = client.left[which];
        let wait = lacking.map(|_| Duration::from_secs_f64((1.0 - left) / rate));
        let full = Duration::from_secs_f64((most - left).max(0.0) / rate);
        Some(Standing { limit: rate as u64, left: left.clamp(0.0, rate) as u64, full, wait })
    }
}

impl Client {
    fn fill(&mut self, rates: &[Option<(f64, f64)>; 4], now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        for (left, (rate, most)) in self.left.iter_mut().zip(rates.map(|rate| rate.unwrap_or_default())) {
            *left = (*left + passed * rate).min(most);
        }
        self.at = now;
    }
}

impl Standing {
    pub fn tell(&self, headers: &mut HeaderMap, now: Millis) {
        let reset = (now + self.full.as_millis() as u64).0.div_ceil(1000);
        for (name, value) in [
            ("x-ratelimit-limit", self.limit),
            ("x-ratelimit-remaining", self.left),
            ("x-ratelimit-reset", reset),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(listen: &str) -> Limiter {
        Limiter::new(&Config { listen: listen.parse().unwrap(), ..Config::default() })
    }

    #[test]
    fn each_client_has_its_own_and_it_fills_again() {
        let (limits, now) = (limiter("0.0.0.0:80"), Instant::now());
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        for left in (0..5).rev() {
            let standing = limits.ask(one, &Method::DELETE, now).unwrap();
            assert_eq!((standing.limit, standing.left, standing.wait), (5, left, None));
            assert_eq!(standing.full, Duration::from_millis((5 - left) * 200));
        }
        let refused = limits.ask(one, &Method::DELETE, now).unwrap();
        assert_eq!(refused.wait, Some(Duration::from_millis(200)));
        assert!(limits.ask(one, &Method::GET, now).unwrap().wait.is_none());
        assert!(limits.ask(other, &Method::DELETE, now).unwrap().wait.is_none());
        assert!(limits.ask(one, &Method::DELETE, now + Duration::from_millis(200)).unwrap().wait.is_none());
    }

    #[test]
    fn there_is_none_on_loopback_unless_it_is_set() {
        let local = IpAddr::from([127, 0, 0, 1]);
        assert!(limiter("127.0.0.1:80").ask(local, &Method::POST, Instant::now()).is_none());
        let mut config = Config::default();
        config.functions.rate_limits.writes = RateLimit::PerSecond(1);
        let limits = Limiter::new(&config);
        let now = Instant::now();
        assert!(limits.ask(local, &Method::PUT, now).unwrap().wait.is_none());
        assert!(limits.ask(local, &Method::PUT, now).unwrap().wait.is_some());
        assert!(limits.ask(local, &Method::GET, now).is_none());
    }

    #[test]
    fn headers_tell_the_rate_and_a_time() {
        let mut config = Config { listen: "0.0.0.0:80".parse().unwrap(), ..Config::default() };
        config.functions.rate_limits.writes = RateLimit::Off;
        let limits = Limiter::new(&config);
        let standing = limits.ask(IpAddr::from([10, 0, 0, 1]), &Method::PUT, Instant::now()).unwrap();
        let mut headers = HeaderMap::new();
        standing.tell(&mut headers, Millis(1_642_684_799_500));
        let told = |name: &str| headers[name].to_str().unwrap().to_owned();
        assert_eq!(told("x-ratelimit-limit"), "100", "the rate, not the burst of 200");
        assert_eq!(told("x-ratelimit-remaining"), "100");
        assert_eq!(told("x-ratelimit-reset"), "1642684800");
    }

    #[test]
    fn it_can_be_switched_off_where_others_connect() {
        let mut config = Config { listen: "0.0.0.0:80".parse().unwrap(), ..Config::default() };
        config.functions.rate_limits.deletes = RateLimit::Off;
        config.functions.rate_limits.total = RateLimit::Off;
        let limits = Limiter::new(&config);
        let (client, now) = (IpAddr::from([10, 0, 0, 1]), Instant::now());
        assert!((0..1000).all(|_| limits.ask(client, &Method::DELETE, now).is_none()));
        assert!(limits.ask(client, &Method::PUT, now).is_some());
    }
}
