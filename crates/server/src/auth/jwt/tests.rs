//! Valid and invalid tokens of an issuer, with keys generated here.

use super::*;
use crate::auth::Access;
use crate::shutdown::Shutdown;
use ::ring::rand::SystemRandom;
use ::ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const ISSUER: &str = "https://issuer.example";

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

struct Issuer {
    kid: &'static str,
    pair: Pair,
}

impl Issuer {
    fn p256(kid: &'static str) -> Issuer {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Issuer { kid, pair: Pair::P256(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap()) }
    }

    fn ed25519(kid: &'static str) -> Issuer {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Issuer { kid, pair: Pair::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap()) }
    }

    fn jwk(&self) -> Value {
        match &self.pair {
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "use": "sig",
                       "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
            Pair::Ed25519(pair) => json!({"kty": "OKP", "crv": "Ed25519", "kid": self.kid,
                                          "x": BASE64.encode(pair.public_key().as_ref())}),
        }
    }

    fn sign(&self, claims: &Value) -> String {
        let algorithm = if matches!(self.pair, Pair::P256(_)) { "ES256" } else { "EdDSA" };
        self.sign_as(&json!({"alg": algorithm, "typ": "JWT", "kid": self.kid}), claims)
    }

    fn sign_as(&self, header: &Value, claims: &Value) -> String {
        assemble(header, claims, |message| match &self.pair {
            Pair::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        })
    }
}

fn assemble(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let encode = |value: &Value| BASE64.encode(value.to_string());
    let message = format!("{}.{}", encode(header), encode(claims));
    format!("{message}.{}", BASE64.encode(sign(message.as_bytes())))
}

fn jwks(issuers: &[&Issuer]) -> String {
    json!({"keys": issuers.iter().map(|issuer| issuer.jwk()).collect::<Vec<_>>()}).to_string()
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": ["other", "klambda"], "sub": "ada", "exp": get_current_timestamp() + 300,
           "klambda/role": "operator", "klambda/namespaces": ["shop", "billing"]})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn config() -> config::Jwt {
    config::Jwt { issuer: Some(ISSUER.into()), audience: Some("klambda".into()), ..config::Jwt::default() }
}

fn open(keys: &str) -> Jwt {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), keys).unwrap();
    Jwt::open(&config::Jwt { jwks_file: Some(file.path().into()), ..config() }).unwrap().unwrap()
}

fn refusal(jwt: &Jwt, token: &str) -> Unknown {
    assert!(!token.starts_with("eyJ") || Jwt::is_like(token.as_bytes()));
    let refused = jwt.who(token.as_bytes()).unwrap_err();
    assert_eq!(jwt.who(token.as_bytes()).unwrap_err(), refused, "a rejected token is not remembered");
    refused
}

#[test]
fn the_claims_say_who_it_is() {
    let (first, second) = (Issuer::p256("a"), Issuer::ed25519("b"));
    let jwt = open(&jwks(&[&first, &second]));
    for issuer in [&first, &second] {
        let token = issuer.sign(&claims());
        let who = jwt.who(token.as_bytes()).unwrap();
        assert_eq!(
            (&*who.name, who.grant.to_string().as_str()),
            ("jwt/ada", "operator in namespace billing, shop")
        );
        assert!(Arc::ptr_eq(&who, &jwt.who(token.as_bytes()).unwrap()), "a token is verified once");
    }
    for (namespaces, expected) in [(json!("*"), "all namespaces"), (json!("shop"), "namespace shop")] {
        let who = jwt.who(first.sign(&with("klambda/namespaces", namespaces)).as_bytes()).unwrap();
        assert_eq!(who.grant.namespaces.to_string(), expected);
    }
    let who = jwt.who(first.sign(&with("sub", json!("a\nb"))).as_bytes()).unwrap();
    assert_eq!(who.name, "jwt/ab");
    for (claim, value) in [
        ("klambda/role", Value::Null),
        ("klambda/role", json!("root")),
        ("klambda/role", json!(["admin"])),
        ("klambda/namespaces", Value::Null),
        ("klambda/namespaces", json!([])),
        ("klambda/namespaces", json!(["*"])),
        ("klambda/namespaces", json!(["Shop"])),
        ("klambda/namespaces", json!([1])),
    ] {
        assert_eq!(
            refusal(&jwt, &first.sign(&with(claim, value.clone()))),
            Unknown::NoRole,
            "{claim}: {value}"
        );
    }
}

#[test]
fn claims_that_do_not_hold_are_refused() {
    let issuer = Issuer::p256("a");
    let jwt = open(&jwks(&[&issuer]));
    let now = get_current_timestamp();
    for (claim, value) in [
        ("aud", json!("other")),
        ("aud", json!([])),
        ("aud", Value::Null),
        ("iss", json!("https://issuer.example/")),
        ("iss", Value::Null),
        ("exp", json!(now - 120)),
        ("exp", json!("4102444800")),
        ("exp", Value::Null),
        ("nbf", json!(now + 120)),
        ("nbf", json!("0")),
    ] {
        let refused = refusal(&jwt, &issuer.sign(&with(claim, value.clone())));
        assert!(matches!(refused, Unknown::Refused(_)), "{claim}: {value}: {refused:?}");
    }
    // Clocks may differ by a minute.
    for (claim, value) in [("exp", now - 30), ("nbf", now + 30)] {
        assert!(jwt.who(issuer.sign(&with(claim, json!(value))).as_bytes()).is_ok(), "{claim}");
    }
}

#[test]
fn only_a_key_of_the_issuer_counts_and_only_for_its_own_algorithm() {
    let (issuer, other, stranger) = (Issuer::p256("a"), Issuer::ed25519("b"), Issuer::p256("a"));
    let shared = b"a secret that is published";
    let mut keys: Value = serde_json::from_str(&jwks(&[&issuer, &other])).unwrap();
    keys["keys"].as_array_mut().unwrap().push(json!({"kty": "oct", "kid": "s", "k": BASE64.encode(shared)}));
    let jwt = open(&keys.to_string());
    let good = issuer.sign(&claims());
    assert!(jwt.who(good.as_bytes()).is_ok());

    let Pair::P256(pair) = &issuer.pair else { unreachable!("this issuer has a P-256 key") };
    let public = pair.public_key().as_ref().to_vec();
    let hmac = |secret: &[u8], kid: &str| {
        let key = ::ring::hmac::Key::new(::ring::hmac::HMAC_SHA256, secret);
        let header = json!({"alg": "HS256", "kid": kid});
        assemble(&header, &claims(), |message| ::ring::hmac::sign(&key, message).as_ref().to_vec())
    };
    let unsigned =
        |algorithm: &str| assemble(&json!({"alg": algorithm, "kid": "a"}), &claims(), |_| Vec::new());
    let (head, rest) = good.split_once('.').unwrap();
    let (_, signature) = rest.split_once('.').unwrap();
    let altered = BASE64.encode(with("klambda/role", json!("admin")).to_string());
    for (what, token) in [
        ("no signature", unsigned("none")),
        ("no signature, in capitals", unsigned("NONE")),
        ("an empty signature", unsigned("ES256")),
        ("HS256 with the public key", hmac(&public, "a")),
        ("HS256 with the key set", hmac(keys.to_string().as_bytes(), "a")),
        ("HS256 with a secret of the set", hmac(shared, "s")),
        ("another key of the same id", stranger.sign(&claims())),
        ("an unknown key", Issuer::p256("c").sign(&claims())),
        ("another algorithm than the key's", issuer.sign_as(&json!({"alg": "EdDSA", "kid": "a"}), &claims())),
        ("the id of another key", issuer.sign_as(&json!({"alg": "ES256", "kid": "b"}), &claims())),
        (
            "a key that it brings itself",
            stranger.sign_as(&json!({"alg": "ES256", "kid": "a", "jwk": stranger.jwk()}), &claims()),
        ),
        ("an extension", issuer.sign_as(&json!({"alg": "ES256", "kid": "a", "crit": ["exp"]}), &claims())),
        ("other claims", format!("{head}.{altered}.{signature}")),
        ("no claims", format!("{head}..{signature}")),
        ("too much", issuer.sign(&with("x", json!("x".repeat(20_000))))),
    ] {
        let refused = refusal(&jwt, &token);
        assert!(matches!(refused, Unknown::Refused(_)), "{what}: {refused:?}");
    }
    // Without a key id, exactly one key must fit.
    assert!(jwt.who(issuer.sign_as(&json!({"alg": "ES256"}), &claims()).as_bytes()).is_ok());
    let two = open(&jwks(&[&issuer, &Issuer::p256("d")]));
    assert!(two.who(issuer.sign_as(&json!({"alg": "ES256"}), &claims()).as_bytes()).is_err());
}

#[test]
fn a_token_for_requests_and_one_for_a_session_are_never_mixed_up() {
    let issuer = Issuer::p256("a");
    let jwt = open(&jwks(&[&issuer])).with_client(Some("page".into()));
    let id_claims = |nonce: &str| {
        let mut claims = with("aud", json!("page"));
        claims["nonce"] = json!(nonce);
        claims
    };
    let id_token = issuer.sign(&id_claims("n"));
    let signed_in = jwt.sign_in(id_token.as_bytes(), "n").unwrap();
    assert_eq!(signed_in.identity.name, "jwt/ada");
    assert!(signed_in.valid_for <= Duration::from_secs(3600) && !signed_in.valid_for.is_zero());
    // In both orders, because verified tokens are remembered.
    assert!(jwt.who_of_session(id_token.as_bytes()).is_ok());
    refusal(&jwt, &id_token);
    let token = issuer.sign(&claims());
    assert!(jwt.who(token.as_bytes()).is_ok());
    assert!(jwt.who_of_session(token.as_bytes()).is_err());

    for (what, nonce, claims) in [
        ("another nonce", "other", id_claims("n")),
        ("no nonce", "n", with("aud", json!("page"))),
        ("the audience of the API", "n", with("nonce", json!("n"))),
        ("another client among the audiences", "n", {
            let mut claims = id_claims("n");
            claims["aud"] = json!(["page", "other"]);
            claims
        }),
        ("issued to another client", "n", {
            let mut claims = id_claims("n");
            claims["azp"] = json!("other");
            claims
        }),
        // Clocks may differ, but a session cannot begin after its end.
        ("just expired", "n", {
            let mut claims = id_claims("n");
            claims["exp"] = json!(get_current_timestamp() - 1);
            claims
        }),
    ] {
        let refused = jwt.sign_in(issuer.sign(&claims).as_bytes(), nonce).unwrap_err();
        assert!(matches!(refused, Unknown::Refused(_)), "{what}: {refused:?}");
    }
    let mut several = id_claims("n");
    several["aud"] = json!(["page", "other"]);
    several["azp"] = json!("page");
    assert!(jwt.sign_in(issuer.sign(&several).as_bytes(), "n").is_ok());
    let mut nobody = id_claims("n");
    nobody["klambda/role"] = Value::Null;
    assert_eq!(jwt.sign_in(issuer.sign(&nobody).as_bytes(), "n").unwrap_err(), Unknown::NoRole);
    let without_page = open(&jwks(&[&issuer]));
    assert!(
        without_page.sign_in(id_token.as_bytes(), "n").is_err()
            && without_page.who_of_session(id_token.as_bytes()).is_err()
    );
}

/// The example of RFC 7515, A.2.
#[test]
fn rsa() {
    provider::install();
    let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZ\
             S-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2C\
             apHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb5\
             4h4FRWyuXpoQ";
    let message = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19y\
                   b290Ijp0cnVlfQ";
    let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9u\
                     JdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_e\
                     SN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5\
                     AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let jwk = json!({"kty": "RSA", "n": n, "e": "AQAB"});
    let keys = Keys::parse(json!({"keys": [jwk]}).to_string().as_bytes()).unwrap();
    let header = decode_header(format!("{message}.{signature}")).unwrap();
    let key = keys.find(&header).unwrap();
    let verify =
        |message: &str| jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key.key, header.alg);
    assert!(verify(message).unwrap());
    assert!(!verify(&message.replace("e30", "e31").replace("Qog", "Qoh")).unwrap());
    assert!(
        jsonwebtoken::crypto::verify(signature, message.as_bytes(), &key.key, jsonwebtoken::Algorithm::HS256)
            .is_err()
    );
}

#[test]
fn sets_without_a_usable_key_are_refused() {
    for (keys, part) in [
        ("", "not a valid JWKS"),
        ("{}", "not a valid JWKS"),
        (r#"{"keys": []}"#, "no key"),
        (r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "new"}]}"#, "no key"),
    ] {
        let refused = Keys::parse(keys.as_bytes()).err().unwrap();
        assert!(refused.contains(part), "{keys}: {refused}");
    }
    let mut encrypts = Issuer::p256("a").jwk();
    encrypts["use"] = json!("enc");
    assert!(Keys::parse(json!({"keys": [encrypts]}).to_string().as_bytes()).is_err());
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waited)
        .await
        .unwrap_or_else(|_| panic!("timed out: {what}"));
}

fn follow(jwt: Jwt) -> (Arc<Access>, Shutdown) {
    let access = Arc::new(Access::open(None, Some(jwt)).unwrap());
    let shutdown = Shutdown::new();
    tokio::spawn(keep(Arc::clone(&access), shutdown.clone()));
    (access, shutdown)
}

fn knows(access: &Access, token: &str) -> Result<(), Unknown> {
    access.who(Some(format!("Bearer {token}").as_bytes())).map(drop)
}

fn replace(path: &Path, text: &str) {
    std::fs::write(path.with_extension("new"), text).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
}

#[tokio::test]
async fn keys_of_a_file_are_rotated_and_a_broken_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    let (old, new) = (Issuer::p256("old"), Issuer::p256("new"));
    std::fs::write(&file, jwks(&[&old])).unwrap();
    let jwt = Jwt::open(&config::Jwt { jwks_file: Some(file.clone()), ..config() }).unwrap().unwrap();
    let (access, shutdown) = follow(jwt);
    let (by_old, by_new) = (old.sign(&claims()), new.sign(&claims()));
    assert!(knows(&access, &by_old).is_ok() && knows(&access, &by_new).is_err());
    assert_eq!(access.who(None).unwrap_err(), Unknown::NoToken);
    replace(&file, &jwks(&[&new]));
    eventually("the new key is known", || knows(&access, &by_new).is_ok()).await;
    assert!(knows(&access, &by_old).is_err(), "tokens of the old key are forgotten");
    replace(&file, "{");
    source::read_again(access.jwt().unwrap(), &file);
    assert!(knows(&access, &by_new).is_ok());
    shutdown.request();
}

#[tokio::test]
async fn keys_of_a_url_are_fetched_and_stay_if_that_fails() {
    let (old, new) = (Issuer::p256("old"), Issuer::p256("new"));
    let answers = Arc::new(RwLock::new((200, jwks(&[&old]))));
    let (listener, answering) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Arc::clone(&answers));
    let asked_for = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&asked_for);
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let (status, body) = answering.read().unwrap().clone();
            asked.fetch_add(1, Ordering::Relaxed);
            let head =
                format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    let config = config::Jwt { jwks_url: Some(url), refresh: Duration::from_secs(3600), ..config() };
    let mut jwt = Jwt::open(&config).unwrap().unwrap();
    let Source::Url(source) = &mut jwt.source else { panic!("not a URL") };
    source.pause = Duration::from_millis(20);
    let (by_old, by_new) = (old.sign(&claims()), new.sign(&claims()));
    assert_eq!(jwt.who(by_old.as_bytes()).unwrap_err(), Unknown::NoKeys, "the keys are not fetched yet");
    let (access, shutdown) = follow(jwt);
    eventually("the keys are fetched", || knows(&access, &by_old).is_ok()).await;

    *answers.write().unwrap() = (500, String::new());
    let before = asked_for.load(Ordering::Relaxed);
    let is_asked_again = || {
        let _ = knows(&access, &by_new);
        asked_for.load(Ordering::Relaxed) > before + 1
    };
    eventually("the keys are fetched again", is_asked_again).await;
    assert!(knows(&access, &by_old).is_ok(), "the old keys stay valid");

    // A token with an unknown key triggers a fetch.
    *answers.write().unwrap() = (200, jwks(&[&new]));
    eventually("the new key is known", || knows(&access, &by_new).is_ok()).await;
    assert!(knows(&access, &by_old).is_err());
    shutdown.request();
}
