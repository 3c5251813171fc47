//! TLS: trusted certificates and the client certificate. Files are reloaded when they change.

use super::pool::Files;
use super::watch::Watch;
use klambda_crash::{Guard, Lock};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_rustls::TlsConnector;

pub struct Tls {
    files: Files,
    server: ServerName<'static>,
    loaded: Lock<Loaded>,
    /// Incremented when the files change.
    generation: AtomicU64,
}

struct Loaded {
    watch: Watch,
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    pub fn new(host: &str, files: Files) -> Result<Tls, String> {
        let server = ServerName::try_from(host.to_owned()).map_err(|error| format!("target.url: {error}"))?;
        let watch = Watch::new(files.paths());
        let loaded = Lock::new(Loaded { watch, config: None });
        Ok(Tls { files, server, loaded, generation: AtomicU64::new(0) })
    }

    pub fn server(&self) -> ServerName<'static> {
        self.server.clone()
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    pub fn look(&self, look_every: Duration) {
        self.look_at(&mut self.loaded(), look_every);
    }

    /// Returns a connector for a new connection, based on the current files, and their generation.
    pub fn connector(&self) -> Result<(TlsConnector, u64), String> {
        let mut loaded = self.loaded();
        self.look_at(&mut loaded, Duration::ZERO);
        let config = match &loaded.config {
            Some(config) => config.clone(),
            None => Arc::new(load(&self.files)?),
        };
        loaded.config = Some(config.clone());
        Ok((config.into(), self.generation()))
    }

    fn look_at(&self, loaded: &mut Loaded, look_every: Duration) {
        if loaded.watch.changed(look_every) {
            loaded.config = None;
            self.generation.fetch_add(1, Relaxed);
        }
    }

    fn loaded(&self) -> Guard<'_, Loaded> {
        self.loaded.lock()
    }
}

fn load(files: &Files) -> Result<ClientConfig, String> {
    let roots = match &files.ca {
        Some(path) => Arc::new(roots_of(path)?),
        None => native_roots()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| format!("client certificate {certificate}: {error}"))?,
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn roots_of(path: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(roots)
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match found {
        Ok(certificates) if certificates.is_empty() => Err(format!("{path}: no certificate found")),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

fn private_key(path: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| format!("{path}: {error}"))
}

/// The certificates that this machine trusts, read once.
fn native_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        return Err("this machine has no trusted certificates; set target.tls.caFile".into());
    }
    Ok(roots.clone())
}
