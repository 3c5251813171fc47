//! Signatures of the Standard Webhooks specification. The signed text is `id.timestamp.body`.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use klambda_core::webhook::Signature;
use ring::hmac;
use ring::signature::Ed25519KeyPair;

const SYMMETRIC: &str = "whsec_";
const ASYMMETRIC: &str = "whsk_";

pub enum SigningKey {
    Hmac(hmac::Key),
    Ed25519(Box<Ed25519KeyPair>),
}

impl SigningKey {
    /// Parses `whsec_…` or `whsk_…`. The error never contains the key.
    pub fn parse(secret: &[u8], kind: Signature) -> Result<SigningKey, String> {
        let (prefix, what) = match kind {
            Signature::Hmac => (SYMMETRIC, "a signing secret must begin with whsec_, followed by base64"),
            Signature::Ed25519 => (ASYMMETRIC, "a private key must begin with whsk_, followed by base64"),
        };
        let text = std::str::from_utf8(secret).map_err(|_| what)?;
        let encoded = text.trim().strip_prefix(prefix).ok_or(what)?;
        let bytes = BASE64.decode(encoded).map_err(|_| what)?;
        match kind {
            Signature::Hmac => Ok(SigningKey::Hmac(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
            Signature::Ed25519 => Ed25519KeyPair::from_seed_unchecked(&bytes)
                .map(|pair| SigningKey::Ed25519(Box::new(pair)))
                .map_err(|_| "a private key must have 32 bytes".into()),
        }
    }

    /// The signature with its version, as in the header.
    pub fn sign(&self, id: &str, seconds: &str, body: &[u8]) -> String {
        let parts = [id.as_bytes(), b".", seconds.as_bytes(), b".", body];
        match self {
            SigningKey::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                parts.iter().for_each(|part| context.update(part));
                encoded("v1,", context.sign())
            }
            SigningKey::Ed25519(pair) => encoded("v1a,", pair.sign(&parts.concat())),
        }
    }
}

fn encoded(version: &str, signature: impl AsRef<[u8]>) -> String {
    let mut text = String::with_capacity(version.len() + signature.as_ref().len().div_ceil(3) * 4);
    text.push_str(version);
    BASE64.encode_string(signature, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification and of its libraries.
    #[test]
    fn the_vector_of_the_specification_is_signed_as_published() {
        let key =
            SigningKey::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", Signature::Hmac).expect("a key");
        let signed = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_wrong_key_is_an_error_that_does_not_show_it() {
        for (secret, kind) in [
            (&b"whsec_###"[..], Signature::Hmac),
            (b"plain", Signature::Hmac),
            (b"whsk_c2hvcnQ=", Signature::Ed25519),
            (b"\xff", Signature::Ed25519),
        ] {
            let error = SigningKey::parse(secret, kind).err().expect("refused");
            assert!(error.contains("must"), "{error}");
        }
    }
}
