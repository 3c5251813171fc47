//! The HTTP client for guarded calls, except deliveries. It uses no proxy and follows no redirects.

use crate::forbidden::Forbidden;
use crate::guard::Reach;
use crate::resolver::Error as ResolveError;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Method, RequestBuilder, Url};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    reach: Reach,
}

impl Reach {
    /// A client that connects only to what this reach allows.
    pub fn client(&self) -> Result<Client, reqwest::Error> {
        static ANYWHERE: OnceLock<reqwest::Client> = OnceLock::new();
        let kept = self.0.as_ref().map_or(&ANYWHERE, |limits| &limits.http);
        let http = match kept.get() {
            Some(http) => http.clone(),
            None => {
                let built = build(self.clone())?;
                kept.get_or_init(|| built).clone()
            }
        };
        Ok(Client { http, reach: self.clone() })
    }
}

impl Client {
    /// A request that may be sent.
    pub fn request(&self, method: Method, url: &str) -> Result<RequestBuilder, Forbidden> {
        Ok(self.http.request(method, self.check(url)?))
    }

    /// Checks a URL in the form in which the client reads it: the client connects to an address in a URL without asking
    /// the resolver.
    pub fn check(&self, url: &str) -> Result<Url, Forbidden> {
        let parsed = Url::parse(url).map_err(|error| Forbidden::Url(format!("{url:?}: {error}")))?;
        self.check_parsed(&parsed)?;
        Ok(parsed)
    }

    fn check_parsed(&self, url: &Url) -> Result<(), Forbidden> {
        let Some(limits) = &self.reach.0 else { return Ok(()) };
        let parts = url.host_str().zip(url.port_or_known_default());
        let is_http = matches!(url.scheme(), "http" | "https");
        let (host, port) = parts.filter(|_| is_http).ok_or_else(|| {
            Forbidden::Url(format!("{:?} must begin with http:// or https://", url.as_str()))
        })?;
        let checked = limits.check(host, port).map(drop);
        checked.inspect_err(|forbidden| limits.shared.count(forbidden))
    }

    /// The client inside, for a library that makes its own requests. They must pass [`Client::check`] first.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }
}

fn build(reach: Reach) -> Result<reqwest::Client, reqwest::Error> {
    // The client uses the crypto provider of the process. An error means that the same provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .dns_resolver(Arc::new(Resolver(reach)))
        .build()
}

struct Resolver(Reach);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0.clone();
        Box::pin(async move {
            // The client puts the port of the URL into the addresses. It was checked with the URL.
            let found = reach.resolve_host(name.as_str()).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The refusal that made a request fail, if that is the cause.
pub fn forbidden<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e Forbidden> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let direct = error.downcast_ref::<Forbidden>();
        let resolved = || match error.downcast_ref::<ResolveError>() {
            Some(ResolveError::Forbidden(forbidden)) => Some(forbidden),
            _ => None,
        };
        if let Some(forbidden) = direct.or_else(resolved) {
            return Some(forbidden);
        }
        cause = error.source();
    }
    None
}

/// The innermost cause of a failed request. The outer messages only repeat the URL.
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
