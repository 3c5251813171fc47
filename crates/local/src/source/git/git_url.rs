//! Checks URLs and references before git sees them, and interprets the errors of git.

use crate::source::{Error, Git, Limits};

pub struct GitUrl {
    /// `scheme://host[:port]`, the scope of a secret.
    pub origin: String,
    pub scheme: String,
    /// `host[:port]`
    pub authority: String,
}

pub fn check(git: &Git, limits: &Limits) -> Result<GitUrl, Error> {
    reference(&git.reference)?;
    let url = &git.url;
    let bad = |why: &str| Error::BadReference(format!("git url {}: {why}", shown(url)));
    if url.is_empty() || url.starts_with('-') || url.chars().any(|c| c.is_control() || c == ' ') {
        return Err(bad("must be a URL such as https://host/path"));
    }
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        // user@host:path
        None if url.contains('@') && url.contains(':') && !url.contains("::") => {
            ("ssh".to_owned(), url.as_str())
        }
        None => return Err(bad("has no scheme; use https://, ssh://, git:// or file://")),
    };
    if !limits.git_schemes.contains(&scheme) {
        let allowed = limits.git_schemes.join(", ");
        return Err(Error::Refused(format!("git url {}: only {allowed} are allowed", shown(url))));
    }
    let is_short = !url.contains("://");
    let host = rest.split(if is_short { ':' } else { '/' }).next().unwrap_or_default();
    let (user, host) = host.rsplit_once('@').unwrap_or(("", host));
    if user.contains(':') {
        return Err(bad("contains a password; store it in a secret and refer to it with secretRef"));
    }
    if host.starts_with('-') || (host.is_empty() && scheme != "file") {
        return Err(bad("has no host"));
    }
    // Parsers of URLs disagree about these, so a checked host might not be the one that git calls.
    if [user, host].iter().any(|part| part.contains(['?', '#', '\\', '@'])) {
        return Err(bad("has a host or user name with special characters"));
    }
    let (origin, authority) = (format!("{scheme}://{host}"), host.to_owned());
    Ok(GitUrl { origin, scheme, authority })
}

fn reference(reference: &str) -> Result<(), Error> {
    let odd = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\+@{}".contains(c);
    if reference.starts_with(['-', '/']) || reference.contains("..") || reference.contains(odd) {
        return Err(Error::BadReference(format!("ref {reference:?} is not a branch, tag or commit")));
    }
    if reference.len() > 255 {
        return Err(Error::BadReference("ref is longer than 255 characters".into()));
    }
    Ok(())
}

/// The URL without credentials.
fn shown(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

const NOT_FOUND: [&str; 7] = [
    "not found",
    "does not exist",
    "couldn't find remote ref",
    "not our ref",
    "does not appear to be a git repository",
    "unadvertised object",
    "no such file or directory",
];

const REFUSED: [&str; 7] = [
    "authentication failed",
    "could not read username",
    "could not read password",
    "permission denied",
    "access denied",
    // The number alone may be part of an address.
    "error: 403",
    "not allowed",
];

const MOVED: [&str; 4] = ["error: 301", "error: 302", "error: 307", "error: 308"];

/// Converts the error output of git to an error. Denied access comes first, because some hosts report both.
pub fn refused(git: &Git, stderr: &str) -> Error {
    let lower = stderr.to_lowercase();
    let place = match git.reference.as_str() {
        "" => shown(&git.url),
        reference => format!("{} at {reference}", shown(&git.url)),
    };
    let said: String = telling(stderr).chars().take(300).collect();
    if REFUSED.iter().any(|words| lower.contains(words)) {
        return Error::Refused(format!("{place}: {said}; check the secret and its permissions"));
    }
    if NOT_FOUND.iter().any(|words| lower.contains(words)) {
        return Error::NotFound(format!("{place}: {said}; check url and ref"));
    }
    if MOVED.iter().any(|words| lower.contains(words)) {
        return Error::NotFound(format!("{place}: {said}; the server redirects: use the final URL"));
    }
    Error::Unreachable(format!("{place}: {said}"))
}

/// The most useful line. After denied access over ssh, the last lines are only advice.
fn telling(stderr: &str) -> &str {
    let find = |words: &str| stderr.lines().find(|line| line.to_lowercase().contains(words));
    let last = || stderr.lines().rev().find(|line| !line.trim().is_empty());
    find("denied").or_else(|| find("fatal:")).or_else(last).unwrap_or("git failed without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_an_address_refuses_nothing() {
        let said = |stderr: &str| {
            let git = Git {
                url: "http://h:4030/r".into(),
                reference: String::new(),
                path: String::new(),
                credentials: Default::default(),
            };
            refused(&git, stderr).reason()
        };
        assert_eq!(said("fatal: repository 'http://h:4030/r/' not found"), "NotFound");
        assert_eq!(
            said("fatal: unable to access 'http://h:4030/r/': The requested URL returned error: 403"),
            "Refused"
        );
    }

    #[test]
    fn the_line_that_says_why_is_told() {
        let ssh = "Warning: added.\ngit@h: Permission denied (publickey).\nfatal: Could not read.\n\n\
                   Please make sure you have the correct access rights\nand the repository exists.\n";
        assert_eq!(telling(ssh), "git@h: Permission denied (publickey).");
        assert_eq!(
            telling("Cloning into x\nfatal: couldn't find remote ref nope\n"),
            "fatal: couldn't find remote ref nope"
        );
        assert_eq!(telling("odd\n\n"), "odd");
        assert_eq!(telling(""), "git failed without a message");
    }
}
