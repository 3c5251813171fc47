//! Makes git connect to an address that was checked, whatever the name service answers later.

use super::git_url::GitUrl;
use crate::source::Error;
use klambda_outbound::{self as outbound, Forbidden, Host, Reach, split_authority};
use std::net::{IpAddr, SocketAddr};

pub enum Pin {
    /// Nothing to pin: every address is allowed, or git calls none.
    None,
    /// A line for `http.curloptResolve`.
    Http(String),
    Ssh {
        host: String,
        address: IpAddr,
    },
}

impl Pin {
    pub async fn of(url: &GitUrl, reach: &Reach) -> Result<Pin, Error> {
        let port = match url.scheme.as_str() {
            _ if reach.is_anywhere() => return Ok(Pin::None),
            "file" => return Ok(Pin::None),
            "http" => 80,
            "https" => 443,
            "ssh" => 22,
            other => {
                let why = format!("{other}:// cannot be limited to an address: use https:// or ssh://");
                return Err(Forbidden::Url(why).into());
            }
        };
        let invalid = || Forbidden::Url(format!("{} has an invalid port", url.origin));
        let (host, port) = split_authority(&url.authority, port).ok_or_else(invalid)?;
        if host.ends_with('.') {
            // For a pinned address, this is another name than the one without the dot.
            let why = "must not end with a dot";
            return Err(Forbidden::Spelling { host: host.to_owned(), why }.into());
        }
        let found = reach.resolve(host, port).await.map_err(|error| match error {
            outbound::Error::Forbidden(forbidden) => Error::Forbidden(forbidden),
            outbound::Error::Lookup(error) => Error::Unreachable(format!("{host}: {error}")),
        })?;
        Ok(match url.scheme.as_str() {
            "ssh" => Pin::ssh(host.trim_matches(['[', ']']), &found)?,
            // An address needs no name service.
            _ if matches!(Host::parse(host), Ok(Host::Address(_))) => Pin::None,
            _ => Pin::Http(format!("{host}:{port}:{}", listed(&found))),
        })
    }

    fn ssh(host: &str, found: &[SocketAddr]) -> Result<Pin, Error> {
        let first = found.first().ok_or_else(|| Error::Unreachable(format!("{host} has no address")))?;
        Ok(Pin::Ssh { host: host.to_owned(), address: first.ip() })
    }

    /// Arguments of git.
    pub fn config(&self) -> Vec<String> {
        match self {
            Pin::Http(line) => vec!["-c".to_owned(), format!("http.curloptResolve={line}")],
            Pin::None | Pin::Ssh { .. } => Vec::new(),
        }
    }

    /// Options of ssh. The key of the host stays known under its name.
    pub fn ssh_options(&self) -> String {
        match self {
            Pin::Ssh { host, address } => format!(" -o HostName={address} -o HostKeyAlias={host}"),
            Pin::None | Pin::Http(_) => String::new(),
        }
    }
}

fn listed(found: &[SocketAddr]) -> String {
    let text = |address: &SocketAddr| match address.ip() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    found.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Whether this git knows `http.curloptResolve`, from the output of `git version`.
pub fn can_pin(version: &str) -> bool {
    let mut numbers =
        version.trim_start_matches("git version ").split('.').map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    matches!(version, (Some(major), Some(minor)) if (major, minor) >= (2, 37))
}

#[cfg(test)]
mod tests {
    use super::can_pin;

    #[test]
    fn an_older_git_cannot_pin() {
        for (version, can) in [
            ("git version 2.39.5", true),
            ("git version 2.37.0 (Apple Git-136)", true),
            ("git version 3.0.rc1", true),
            ("git version 2.36.9", false),
            ("git version 1.99.1", false),
            ("odd", false),
        ] {
            assert_eq!(can_pin(version), can, "{version}");
        }
    }
}
