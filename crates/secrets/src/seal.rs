//! Sealing and opening one value.

use crate::key::{EncryptionKey, KeyRing};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes that a sealed value has beside the value: nonce and tag.
pub(crate) const OVERHEAD: usize = NONCE_LEN + 16;
const DOMAIN: &[u8] = b"klambda secret 1";

/// An opened value. Its memory is cleared when it is dropped.
pub type Value = Zeroizing<Vec<u8>>;

/// Where a value belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub key: &'a str,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the key that opens it.
    pub(crate) sealed_by: String,
    /// Nonce, encrypted value, tag.
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the encryption key {0} is missing")]
    NoKey(String),
    #[error("it is damaged")]
    Damaged,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system has no randomness: {0}")]
pub struct NoRandomness(String);

pub(crate) fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
    Ok(bytes)
}

pub fn seal(key: &EncryptionKey, place: Place<'_>, value: &[u8]) -> Result<Sealed, NoRandomness> {
    let nonce: [u8; NONCE_LEN] = random()?;
    // The buffer holds the plain value until it is encrypted in place, so it must not move to a larger one.
    let mut bytes = Vec::with_capacity(OVERHEAD + value.len());
    bytes.extend_from_slice(value);
    let sealing = Nonce::assume_unique_for_key(nonce);
    cipher(key)
        .seal_in_place_append_tag(sealing, associated(place, key.id()), &mut bytes)
        .expect("a value is shorter than the limit of AES-GCM, which is 64 GiB");
    bytes.splice(0..0, nonce);
    Ok(Sealed { sealed_by: key.id().to_owned(), bytes })
}

impl Sealed {
    pub fn open(&self, keys: &KeyRing, place: Place<'_>) -> Result<Value, OpenError> {
        let key = keys.get(&self.sealed_by).ok_or_else(|| OpenError::NoKey(self.sealed_by.clone()))?;
        let (nonce, sealed) = self.bytes.split_first_chunk().ok_or(OpenError::Damaged)?;
        let mut opened = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opening = cipher(key).open_in_place(nonce, associated(place, key.id()), &mut opened);
        let length = opening.map_err(|_| OpenError::Damaged)?.len();
        opened.truncate(length);
        Ok(opened)
    }

    /// The id of the key that opens it.
    pub fn sealed_by(&self) -> &str {
        &self.sealed_by
    }

    /// The length of the value.
    pub fn value_bytes(&self) -> usize {
        self.bytes.len().saturating_sub(OVERHEAD)
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes by {})", self.value_bytes(), self.sealed_by)
    }
}

fn cipher(key: &EncryptionKey) -> LessSafeKey {
    let unbound = UnboundKey::new(&AES_256_GCM, key.bytes()).expect("a key of AES-256 has 32 bytes");
    LessSafeKey::new(unbound)
}

/// Each part with its length, so that no two places have the same bytes.
fn associated(place: Place<'_>, key_id: &str) -> Aad<Vec<u8>> {
    let mut bytes = DOMAIN.to_vec();
    for part in [place.namespace, place.name, place.key, key_id] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    Aad::from(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place<'_> = Place { namespace: "shop", name: "db", key: "password" };

    fn ring(byte: u8) -> KeyRing {
        KeyRing::default().with_first(EncryptionKey::new(Zeroizing::new([byte; 32])))
    }

    fn sealed(value: &[u8]) -> Sealed {
        seal(ring(1).first().unwrap(), PLACE, value).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_value_opens_where_it_was_sealed(value: Vec<u8>) {
            let sealed = sealed(&value);
            prop_assert_eq!(&*sealed.open(&ring(1), PLACE).unwrap(), &value);
            prop_assert_eq!(sealed.value_bytes(), value.len());
        }

        #[test]
        fn a_changed_byte_is_an_error(value: Vec<u8>, at: prop::sample::Index, flip in 1..=255u8) {
            let mut sealed = sealed(&value);
            let at = at.index(sealed.bytes.len());
            sealed.bytes[at] ^= flip;
            prop_assert_eq!(sealed.open(&ring(1), PLACE), Err(OpenError::Damaged));
        }

        #[test]
        fn a_cut_value_is_an_error(value: Vec<u8>, length: prop::sample::Index) {
            let mut sealed = sealed(&value);
            sealed.bytes.truncate(length.index(sealed.bytes.len()));
            prop_assert_eq!(sealed.open(&ring(1), PLACE), Err(OpenError::Damaged));
        }

        #[test]
        fn another_place_is_an_error(namespace in "[a-z]{0,9}", name in "[a-z]{0,9}", key in "[a-z]{0,9}") {
            let place = Place { namespace: &namespace, name: &name, key: &key };
            prop_assume!(place != PLACE);
            prop_assert_eq!(sealed(b"hush").open(&ring(1), place), Err(OpenError::Damaged));
        }
    }

    #[test]
    fn parts_of_a_place_cannot_be_shifted() {
        let sealed = sealed(b"hush");
        for place in [
            Place { namespace: "shopd", name: "b", ..PLACE },
            Place { name: "dbp", key: "assword", ..PLACE },
            Place { namespace: "sho", name: "pdb", ..PLACE },
        ] {
            assert_eq!(sealed.open(&ring(1), place), Err(OpenError::Damaged), "{place:?}");
        }
    }

    #[test]
    fn another_key_is_an_error_also_under_the_same_id() {
        let sealed = sealed(b"hush");
        assert_eq!(sealed.open(&ring(2), PLACE), Err(OpenError::NoKey(sealed.sealed_by.clone())));
        let other = ring(2).first().unwrap().id().to_owned();
        let renamed = Sealed { sealed_by: other, bytes: sealed.bytes };
        assert_eq!(renamed.open(&ring(2), PLACE), Err(OpenError::Damaged));
    }

    #[test]
    fn the_same_value_is_never_sealed_in_the_same_way() {
        let (one, two) = (sealed(b"hush"), sealed(b"hush"));
        assert!(one.bytes != two.bytes && one.bytes[..NONCE_LEN] != two.bytes[..NONCE_LEN]);
        assert!(!one.bytes.windows(4).any(|window| window == b"hush"));
        assert_eq!(format!("{one:?}"), format!("Sealed(4 bytes by {})", one.sealed_by));
    }
}
