//! Explains why a TLS connection failed, and which flag fixes it.

use rustls::{CertificateError, Error, InvalidMessage};
use std::path::Path;
use std::time::Duration;
use ureq::tls::TlsConfig;

/// How long the search for the cause of a failure may take.
const PROBE: Duration = Duration::from_secs(2);

/// The TLS error inside a transport error.
pub fn error_in(error: &ureq::Error) -> Option<&Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// `base` is the URL of the server, which begins with https.
pub fn explain(error: &Error, base: &str, ca_file: Option<&Path>) -> String {
    match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            let plain = base.replacen("https", "http", 1);
            format!("the server there speaks http, not https; use --server {plain}")
        }
        Error::InvalidCertificate(fault) => format!("its certificate {}", certificate(fault, ca_file)),
        other => format!("TLS failed: {other}"),
    }
}

fn certificate(fault: &CertificateError, ca_file: Option<&Path>) -> String {
    use CertificateError as E;
    match fault {
        E::UnknownIssuer | E::BadSignature => issuer(ca_file),
        E::Expired | E::ExpiredContext { .. } => {
            "has expired; the server needs a new one (klambda serve --tls-cert)".to_owned()
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "is not valid yet; check the clocks of this machine and of the server".to_owned()
        }
        E::NotValidForName => "is for another host name; use that name with --server".to_owned(),
        E::NotValidForNameContext { expected, presented } => wrong_name(&expected.to_str(), presented),
        E::Revoked => "has been revoked; the server needs a new one".to_owned(),
        other if is_ca(other) => "is a self-signed CA certificate, which cannot identify a server; create one \
            without the CA flag (openssl req -x509 -addext basicConstraints=critical,CA:FALSE …) and trust it with \
            --ca-file"
            .to_owned(),
        other => format!("is invalid: {other}"),
    }
}

fn issuer(ca_file: Option<&Path>) -> String {
    let problem = "is self-signed or comes from an unknown issuer";
    match ca_file {
        None => format!(
            "{problem}; trust it with --ca-file FILE (PEM): the certificate of its issuer, or the certificate itself \
             if it is self-signed"
        ),
        Some(file) => {
            format!("{problem}: no certificate in {} signed it; check --ca-file", file.display())
        }
    }
}

fn wrong_name(expected: &str, presented: &[String]) -> String {
    let names: Vec<String> = presented.iter().map(|name| plain_name(name)).collect();
    match names.is_empty() {
        true => format!("names no host, but {expected} was asked for; the server needs another certificate"),
        false => {
            format!("is for {}, not for {expected}; use one of its names with --server", names.join(", "))
        }
    }
}

/// rustls shows names as `DnsName("a")` and `IpAddress(127.0.0.1)`.
fn plain_name(shown: &str) -> String {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(shown);
    inner.trim_matches('"').to_owned()
}

/// rustls does not export the type of this error, so that only its text tells it apart.
fn is_ca(fault: &CertificateError) -> bool {
    matches!(fault, CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

/// Whether the port of an http URL speaks TLS. The request carries no token.
pub fn speaks_tls(base: &str) -> bool {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(PROBE))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .tls_config(TlsConfig::builder().disable_verification(true).build());
    config.build().new_agent().get(base.replacen("http", "https", 1)).call().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(fault: CertificateError, ca_file: Option<&str>) -> String {
        explain(&Error::InvalidCertificate(fault), "https://h", ca_file.map(Path::new))
    }

    #[test]
    fn every_fault_names_its_fix() {
        assert!(explained(CertificateError::UnknownIssuer, None).contains("--ca-file FILE"));
        assert!(
            explained(CertificateError::UnknownIssuer, Some("ca.pem")).contains("no certificate in ca.pem")
        );
        assert!(explained(CertificateError::Expired, None).contains("has expired"));
        assert!(explained(CertificateError::NotValidYet, None).contains("clocks"));
        let plain = explain(&Error::InvalidMessage(InvalidMessage::InvalidContentType), "https://h:1", None);
        assert!(plain.ends_with("use --server http://h:1"), "{plain}");
        assert_eq!(
            wrong_name("127.0.0.1", &["DnsName(\"a.example\")".to_owned(), "IpAddress(10.0.0.1)".to_owned()]),
            "is for a.example, 10.0.0.1, not for 127.0.0.1; use one of its names with --server"
        );
    }
}
