//! JWT cryptography with ring, which also does TLS here. It verifies and never signs, and supports no algorithm with a
//! shared secret.

use ::ring::signature::{self as ring, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use signature::{Error, Verifier};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs it for the whole process. A second call has no effect.
pub fn install() {
    let _ = PROVIDER.install_default();
}

fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(ErrorKind::InvalidAlgorithm.into())
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if algorithm.family() != key.family() || algorithm.family() == AlgorithmFamily::Hmac {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(ByRing { algorithm: *algorithm, key: key.clone() }))
}

struct ByRing {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for ByRing {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for ByRing {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let by = |algorithm: &'static dyn ring::VerificationAlgorithm| match self.key.kind() {
            DecodingKeyKind::SecretOrDer(key) => {
                UnparsedPublicKey::new(algorithm, key).verify(message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::RsaModulusExponent { .. } => Err(Error::new()),
        };
        let rsa = |parameters: &'static RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let key = RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) };
                key.verify(parameters, message, signature).map_err(|_| Error::new())
            }
            DecodingKeyKind::SecretOrDer(_) => Err(Error::new()),
        };
        match self.algorithm {
            Algorithm::RS256 => rsa(&ring::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&ring::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&ring::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&ring::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&ring::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&ring::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => by(&ring::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => by(&ring::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => by(&ring::ED25519),
            _ => Err(Error::new()),
        }
    }
}

/// Some issuers write numbers with leading zeros, which ring rejects.
fn without_zeros(number: &[u8]) -> &[u8] {
    let start = number.iter().position(|byte| *byte != 0).unwrap_or(number.len());
    &number[start..]
}
