//! TLS: trusted certificates and the client certificate, from files or from secrets. Both are replaced when they change.

use super::pool::{Certificates, Files};
use super::watch::Watch;
use klambda_crash::{Guard, Lock};
use ring::digest::{Context, SHA256};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

pub struct Tls {
    server: ServerName<'static>,
    loaded: Lock<Loaded>,
    /// Incremented when the certificates change.
    generation: AtomicU64,
}

struct Loaded {
    source: Source,
    credentials: Option<Arc<Credentials>>,
}

enum Source {
    Files(Files, Watch),
    /// The caller reads the secrets and passes the result to [`Tls::adopt`].
    Secrets,
}

impl Tls {
    pub fn new(host: &str, certificates: Certificates) -> Result<Tls, String> {
        let server = ServerName::try_from(host.to_owned()).map_err(|error| format!("target.url: {error}"))?;
        let source = match certificates {
            Certificates::Files(files) => {
                let watch = Watch::new(files.paths());
                Source::Files(files, watch)
            }
            Certificates::Secrets(_) => Source::Secrets,
        };
        let loaded = Lock::new(Loaded { source, credentials: None });
        Ok(Tls { server, loaded, generation: AtomicU64::new(0) })
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

    /// Uses these credentials for new connections. Returns false if they are in use already.
    pub fn adopt(&self, credentials: &Arc<Credentials>) -> bool {
        let mut loaded = self.loaded();
        if loaded.credentials.as_ref().is_some_and(|known| known.digest == credentials.digest) {
            return false;
        }
        loaded.credentials = Some(credentials.clone());
        self.generation.fetch_add(1, Relaxed);
        true
    }

    /// Returns a connector for a new connection, based on the current certificates, and their generation.
    pub fn connector(&self) -> Result<(TlsConnector, u64), String> {
        let mut loaded = self.loaded();
        self.look_at(&mut loaded, Duration::ZERO);
        let credentials = match (&loaded.credentials, &loaded.source) {
            (Some(credentials), _) => credentials.clone(),
            (None, Source::Files(files, _)) => Arc::new(Pems::read(files)?.credentials()?),
            (None, Source::Secrets) => return Err("the secrets with the certificates were not read".into()),
        };
        loaded.credentials = Some(credentials.clone());
        Ok((credentials.config.clone().into(), self.generation()))
    }

    fn look_at(&self, loaded: &mut Loaded, look_every: Duration) {
        if let Source::Files(_, watch) = &mut loaded.source
            && watch.changed(look_every)
        {
            loaded.credentials = None;
            self.generation.fetch_add(1, Relaxed);
        }
    }

    fn loaded(&self) -> Guard<'_, Loaded> {
        self.loaded.lock()
    }
}

/// Certificates as text, before they are parsed.
#[derive(Default)]
pub struct Pems {
    /// Without it, the certificates that this machine trusts.
    pub ca: Option<Pem>,
    /// The certificate chain and its private key.
    pub client: Option<(Pem, Pem)>,
}

/// A text that may be secret.
pub struct Pem {
    /// Names the origin in errors.
    pub name: String,
    pub text: Zeroizing<Vec<u8>>,
}

/// Certificates that are ready to be used.
pub struct Credentials {
    /// Identifies the certificates without keeping the private key.
    digest: [u8; 32],
    config: Arc<ClientConfig>,
}

impl Credentials {
    /// True if these were made from the same texts.
    pub fn are_from(&self, pems: &Pems) -> bool {
        self.digest == pems.digest()
    }
}

impl Pems {
    fn read(files: &Files) -> Result<Pems, String> {
        let read = |path: &String| match std::fs::read(path) {
            Ok(text) => Ok(Pem { name: path.clone(), text: Zeroizing::new(text) }),
            Err(error) => Err(format!("{path}: {error}")),
        };
        let ca = files.ca.as_ref().map(read).transpose()?;
        let client = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
            _ => None,
        };
        Ok(Pems { ca, client })
    }

    /// Parses the certificates. An error never contains a part of them.
    pub fn credentials(&self) -> Result<Credentials, String> {
        let roots = match &self.ca {
            Some(ca) => Arc::new(ca.roots()?),
            None => native_roots()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match &self.client {
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificate.certificates()?, key.private_key()?)
                .map_err(|error| certificate.wrong(&format!("cannot be used: {error}")))?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Credentials { digest: self.digest(), config: Arc::new(config) })
    }

    fn digest(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        let (certificate, key) = self.client.as_ref().map(|(certificate, key)| (certificate, key)).unzip();
        for pem in [self.ca.as_ref(), certificate, key] {
            let text = pem.map_or(&b""[..], |pem| &pem.text);
            context.update(&(text.len() as u64).to_be_bytes());
            context.update(text);
        }
        context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

impl Pem {
    fn wrong(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.wrong(&error.to_string()))?;
        }
        Ok(roots)
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&self.text).collect();
        match found {
            Ok(certificates) if certificates.is_empty() => Err(self.wrong("no certificate found")),
            Ok(certificates) => Ok(certificates),
            Err(_) => Err(self.wrong("not valid PEM")),
        }
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|_| self.wrong("no private key in PEM form found"))
    }
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
        return Err(
            "this machine has no trusted certificates; set the certificates of the target's CA".into()
        );
    }
    Ok(roots.clone())
}
