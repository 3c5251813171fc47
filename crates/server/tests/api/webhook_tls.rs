//! Webhook endpoints that require a client certificate or have a private authority: everything comes from secrets.

use crate::webhooks::{ENDPOINTS, create};
use crate::world::{PATIENCE, World};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

const SECRET: &str = "/api/v1/secrets/partner-tls";

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, as PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// A receiver that requires a client certificate of its authority. Notes the certificate of every call.
struct Receiver {
    url: String,
    clients: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Receiver {
    async fn start(authority: &Authority) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let acceptor = TlsAcceptor::from(Arc::new(server_config(authority)));
        let clients = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let noted = clients.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(acceptor.clone(), stream, noted.clone()));
            }
        });
        Receiver { url, clients }
    }

    fn clients(&self) -> Vec<Vec<u8>> {
        self.clients.lock().unwrap().clone()
    }

    async fn until(&self, calls: usize) {
        let called = async {
            while self.clients().len() < calls {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, called).await.unwrap_or_else(|_| panic!("{} calls", self.clients().len()));
    }
}

fn server_config(authority: &Authority) -> ServerConfig {
    let (certificate, key) = issue(authority, "localhost");
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
        )
        .unwrap()
}

/// Answers every call of a connection with 200.
async fn answer(acceptor: TlsAcceptor, stream: TcpStream, clients: Arc<Mutex<Vec<Vec<u8>>>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        while line != "\r\n" {
            line.clear();
            match stream.read_line(&mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            length =
                line.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().unwrap());
        }
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        clients.lock().unwrap().push(certificate.clone());
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    }
}

async fn store(world: &World, ca: &str, (certificate, key): &(String, String)) {
    let data = json!({"ca.crt": ca, "tls.crt": certificate, "tls.key": key});
    let stored = world.put(SECRET, &json!({"data": data})).await;
    assert!(stored.status < 300, "{stored:?}");
}

fn messages(endpoint: &Value) -> String {
    endpoint["status"]["messages"].to_string()
}

#[tokio::test]
async fn certificates_come_from_a_secret_and_are_replaced_with_it() {
    let (world, authority) = (World::new().await, authority());
    let receiver = Receiver::start(&authority).await;
    let (first, second) = (issue(&authority, "first"), issue(&authority, "second"));
    let from = json!({"secret": "partner-tls"});
    let tls = json!({"url": receiver.url, "workflowKey": "partitionkey", "tls": {"clientCertificate": from, "ca": from}});
    let created = create(&world, "partner", tls).await.json();
    for key in ["tls.crt", "tls.key", "ca.crt"] {
        let missing = format!("secret partner-tls has no key {key}; no call is made without it");
        assert!(messages(&created).contains(&missing), "{created}");
    }
    // It has the same address, but does not know the private authority.
    create(&world, "stranger", json!({"url": receiver.url})).await;

    world.send("e1", "order-1", &[]).await;
    let path = format!("{ENDPOINTS}/partner");
    world.until(&path, |shown| messages(shown).contains("secret partner-tls does not exist")).await;
    let lane = world.get("/api/v1/lanes/webhook.partner/order-1").await.json();
    assert_eq!((&lane["head"]["id"], &lane["head"]["attempts"]), (&json!("e1"), &json!(0)), "{lane}");
    world.until("/api/v1/lanes/webhook.stranger/order-1", |lane| lane["state"] == "parked").await;

    store(&world, &authority.pem(), &first).await;
    receiver.until(1).await;
    let mut shown = world.until(&path, |shown| shown["status"]["delivered"] == 1).await;
    assert_eq!(messages(&shown), "[]", "{shown}");

    store(&world, &authority.pem(), &second).await;
    let (first, second) = (der(&first.0), der(&second.0));
    let mut sent = 1;
    while receiver.clients().last() == Some(&first) {
        sent += 1;
        world.send(&format!("e{sent}"), "order-1", &[]).await;
        shown = world.until(&path, |shown| shown["status"]["delivered"] == sent).await;
    }
    // Several calls at once need new connections beside those that are idle.
    for key in 0..8 {
        world.send(&format!("last-{key}"), &format!("order-{key}"), &[]).await;
    }
    receiver.until(sent + 8).await;
    let clients = receiver.clients();
    let rotated = clients.iter().position(|client| *client == second).unwrap();
    assert!(clients[..rotated].iter().all(|client| *client == first));
    assert!(clients[rotated..].iter().all(|client| *client == second), "the old certificate was used again");
    assert!(!shown.to_string().contains("PRIVATE KEY"), "{shown}");
}
