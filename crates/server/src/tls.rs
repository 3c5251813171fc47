//! TLS for the listener, from a certificate chain and a key in PEM files.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read the TLS {what} {path}: {source}")]
    Unreadable { what: &'static str, path: PathBuf, source: pem::Error },
    #[error("the TLS certificate file {path} contains no certificate")]
    NoCertificate { path: PathBuf },
    #[error("the TLS certificate and key cannot be used: {}", in_words(.0))]
    Unusable(#[from] rustls::Error),
}

fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => "the key does not belong to the certificate".to_owned(),
        other => other.to_string(),
    }
}

pub fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let chain = certificates(cert)?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|source| Error::Unreadable {
        what: "key",
        path: key.to_owned(),
        source,
    })?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let unreadable = |source| Error::Unreadable { what: "certificate", path: path.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(path)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
        .map_err(unreadable)?;
    if chain.is_empty() {
        return Err(Error::NoCertificate { path: path.to_owned() });
    }
    Ok(chain)
}
