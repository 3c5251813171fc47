//! TLS with a private authority and a client certificate, from files that change and from secrets.

use crate::client::testing::*;
use crate::client::{Client, Options, Providers};
use crate::secrets::{Opening, Secrets, Values};
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// A certificate and its key, as PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
    (params.signed_by(&key, authority).expect("a certificate").pem(), key.serialize_pem())
}

struct Server {
    url: String,
    connections: Arc<AtomicUsize>,
    /// The client certificate of each request.
    clients: Arc<Mutex<Vec<Vec<u8>>>>,
}

async fn serve(authority: &Authority) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://localhost:{}/", listener.local_addr().expect("an address").port());
    let (connections, clients) = <(Arc<AtomicUsize>, Arc<Mutex<Vec<Vec<u8>>>>)>::default();
    let server = Server { url, connections: connections.clone(), clients: clients.clone() };
    let acceptor = TlsAcceptor::from(Arc::new(server_config(authority)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            connections.fetch_add(1, Ordering::Relaxed);
            let clients = clients.clone();
            tokio::spawn(async move {
                while read_request(&mut stream).await.is_some() {
                    let certificates = stream.get_ref().1.peer_certificates().expect("a certificate");
                    clients.lock().expect("clients").push(certificates[0].to_vec());
                    let _ = stream.write_all(OK.as_bytes()).await;
                }
            });
        }
    });
    server
}

fn server_config(authority: &Authority) -> ServerConfig {
    let (certificate, key) = issue(authority, "localhost");
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.build().expect("a verifier"))
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key"),
        )
        .expect("a configuration")
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

/// The certificate inside a PEM file.
fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate").to_vec()
}

fn target(url: &str, folder: &Path) -> Value {
    let path = |name: &str| folder.join(name);
    json!({ "url": url, "tls": { "caFile": path("ca.pem"), "certFile": path("client.pem"), "keyFile": path("client.key") } })
}

#[tokio::test]
async fn an_own_authority_is_trusted_and_a_client_certificate_shown() {
    let (authority, folder) = (authority(), tempfile::tempdir().expect("a folder"));
    let folder = folder.path();
    let server = serve(&authority).await;
    let (first, key) = issue(&authority, "first");
    write(folder, "ca.pem", &authority.pem());
    write(folder, "client.pem", &first);
    write(folder, "client.key", &key);
    let client = Client::new(Options::default());
    let delivery = delivery(target(&server.url, folder));
    for _ in 0..3 {
        assert_eq!(code(&client.call(&delivery).await), 200);
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);

    let (second, key) = issue(&authority, "second");
    write(folder, "client.pem", &second);
    write(folder, "client.key", &key);
    let (first, second) = (der(&first), der(&second));
    let last = || server.clients.lock().expect("clients").last().cloned();
    while last().is_some_and(|last| last == first) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(code(&client.call(&delivery).await), 200);
    }
    assert_eq!(last(), Some(second));
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn missing_trust_and_missing_files_are_reported() {
    let (ours, theirs, folder) = (authority(), authority(), tempfile::tempdir().expect("a folder"));
    let folder = folder.path();
    let server = serve(&theirs).await;
    let client = Client::new(Options::default());
    let call = async || client.call(&delivery(target(&server.url, folder))).await;

    let outcome = call().await;
    assert!(matches!(&outcome, CallOutcome::Unusable(why) if why.contains("ca.pem")), "{outcome:?}");
    let (certificate, key) = issue(&ours, "client");
    write(folder, "ca.pem", "nothing");
    write(folder, "client.pem", &certificate);
    write(folder, "client.key", &key);
    let outcome = call().await;
    assert!(matches!(&outcome, CallOutcome::Unusable(why) if why.contains("no certificate")), "{outcome:?}");

    write(folder, "ca.pem", &ours.pem());
    let outcome = call().await;
    assert!(matches!(&outcome, CallOutcome::Broken(why) if why.contains("TLS")), "{outcome:?}");

    write(folder, "ca.pem", &theirs.pem());
    let outcome = call().await;
    assert!(matches!(&outcome, CallOutcome::Broken(_)), "the server does not trust the client: {outcome:?}");
}

/// One secret for everything.
struct Vault(Mutex<Values>);

impl Vault {
    fn put(&self, key: &str, value: &str) {
        let value = Zeroizing::new(value.as_bytes().to_vec());
        self.0.lock().expect("values").insert(key.to_owned(), value);
    }
}

impl Secrets for Vault {
    fn open<'a>(&'a self, _: &'a str, _: &'a str) -> Opening<'a> {
        let values = self.0.lock().expect("values").clone();
        Box::pin(async move { Ok(values) })
    }
}

fn call_of_endpoint(url: &str, tls: &Value) -> crate::engine::Delivery {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": { "name": "partner" },
        "spec": { "url": url, "tls": tls },
    });
    let endpoint = webhook::Document::parse(&document).expect("a document");
    deliver(&Arc::new(endpoint.subscription()), &event(b"{}"), None)
}

#[tokio::test]
async fn wrong_certificates_in_a_secret_cost_no_attempt_and_are_never_shown() {
    let authority = authority();
    let server = serve(&authority).await;
    let vault = Arc::new(Vault(Mutex::default()));
    vault.put("current", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let providers = Providers { secrets: vault.clone(), ..Providers::default() };
    let client = Client::with_providers(Options::default(), providers);
    let tls = json!({ "clientCertificate": { "secret": "s" }, "ca": { "secret": "s" } });
    let delivery = call_of_endpoint(&server.url, &tls);
    let (certificate, key) = issue(&authority, "first");
    let (_, other) = issue(&authority, "other");
    let hidden = key.lines().nth(1).expect("the key itself");
    let broken = format!("-----BEGIN {hidden}\n{key}");
    for (name, value, expected) in [
        ("ca.crt", "none", "secret s has no key tls.crt"),
        ("tls.crt", &certificate, "secret s has no key tls.key"),
        ("tls.key", "none", "key ca.crt of secret s: no certificate found"),
        ("ca.crt", &authority.pem(), "key tls.key of secret s: no private key in PEM form found"),
        ("tls.key", &broken, "key tls.key of secret s: no private key in PEM form found"),
        ("tls.key", &other, "key tls.crt of secret s: cannot be used"),
        ("tls.crt", &broken, "key tls.crt of secret s: not valid PEM"),
    ] {
        vault.put(name, value);
        let outcome = client.call(&delivery).await;
        let CallOutcome::NotReady { why, .. } = &outcome else { panic!("{outcome:?}") };
        assert!(why.starts_with(expected) && !why.contains(hidden), "{why}");
    }
    vault.put("tls.crt", &certificate);
    vault.put("tls.key", &key);
    assert_eq!(code(&client.call(&delivery).await), 200);
    assert_eq!(*server.clients.lock().expect("clients"), [der(&certificate)]);

    // Another certificate is another pool, even to the same address.
    let trusting = call_of_endpoint(&server.url, &json!({ "ca": { "secret": "s" } }));
    let outcome = client.call(&trusting).await;
    assert!(matches!(&outcome, CallOutcome::Broken(_)), "without its certificate: {outcome:?}");
    assert_eq!(server.clients.lock().expect("clients").len(), 1);
}
