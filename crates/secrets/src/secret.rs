//! A secret as it is stored.
//!
//! Layout: a byte with the format version, the length of the header (4 bytes, big endian), the header in JSON, then the
//! sealed values in the order of the header. The header has the metadata, so that lists need no encryption key.

use crate::key::{EncryptionKey, KeyRing};
use crate::reader::{Known, KnownKey};
use crate::seal::{NoRandomness, OpenError, Place, Sealed, Value, seal};
use klambda_core::time::Millis;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const KEYS_MAX: usize = 64;
/// The stored size of a secret, with the names of its keys.
pub const BYTES_MAX: usize = 1 << 20;

const FORMAT: u8 = 1;
const PREFIX: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// Rises with every change of a value. A change of the encryption key leaves it as it is.
    pub version: u64,
    pub updated_at: Millis,
    values: BTreeMap<String, Sealed>,
}

/// The changes of a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Remove all keys that are not set.
    pub replace: bool,
    pub set: BTreeMap<String, Sealed>,
    pub remove: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("a secret has at most {KEYS_MAX} keys, and this one would have {0}")]
    TooManyKeys(usize),
    #[error("a secret takes at most 1 MiB with the names of its keys, and this one would take {0} bytes")]
    TooLarge(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the document is damaged, or a newer version of klambda wrote it")]
pub struct Unreadable;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u64,
    updated_at: u64,
    values: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    key: String,
    sealed_by: String,
    bytes: usize,
}

impl Secret {
    /// The secret after a write. `before` is `None` if there was none.
    pub fn changed(before: Option<Secret>, change: Change, now: Millis) -> Result<Secret, Refused> {
        let version = before.as_ref().map_or(1, |before| before.version + 1);
        let mut values = before.filter(|_| !change.replace).map(|before| before.values).unwrap_or_default();
        values.retain(|key, _| !change.remove.contains(key));
        values.extend(change.set);
        if values.len() > KEYS_MAX {
            return Err(Refused::TooManyKeys(values.len()));
        }
        let secret = Secret { version, updated_at: now, values };
        match secret.encode().len() {
            0..=BYTES_MAX => Ok(secret),
            bytes => Err(Refused::TooLarge(bytes)),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let entry = |(key, sealed): (&String, &Sealed)| Entry {
            key: key.clone(),
            sealed_by: sealed.sealed_by.clone(),
            bytes: sealed.bytes.len(),
        };
        let values = self.values.iter().map(entry).collect();
        let header = Header { version: self.version, updated_at: self.updated_at.0, values };
        let header = serde_json::to_vec(&header).expect("texts and numbers are JSON");
        let length = u32::try_from(header.len()).expect("a header of 64 keys is shorter than 4 GiB");
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&header);
        self.values.values().for_each(|sealed| bytes.extend_from_slice(&sealed.bytes));
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Secret, Unreadable> {
        let (header, mut rest) = split(bytes)?;
        let mut values = BTreeMap::new();
        for Entry { key, sealed_by, bytes } in header.values {
            let (value, behind) = rest.split_at_checked(bytes).ok_or(Unreadable)?;
            values.insert(key, Sealed { sealed_by, bytes: value.to_vec() });
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(Unreadable);
        }
        Ok(Secret { version: header.version, updated_at: Millis(header.updated_at), values })
    }

    pub fn known(&self) -> Known {
        let key =
            |sealed: &Sealed| KnownKey { bytes: sealed.value_bytes(), sealed_by: sealed.sealed_by.clone() };
        let keys = self.values.iter().map(|(name, sealed)| (name.clone(), key(sealed))).collect();
        Known { version: self.version, updated_at: self.updated_at, keys }
    }

    /// Opens one value; `None` if there is no such key.
    pub fn open(&self, keys: &KeyRing, place: Place<'_>) -> Result<Option<Value>, OpenError> {
        self.values.get(place.key).map(|sealed| sealed.open(keys, place)).transpose()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Seals all values again with another key. Values that cannot be opened stay as they are. Answers whether anything
    /// changed.
    pub fn reseal(
        &mut self,
        keys: &KeyRing,
        first: &EncryptionKey,
        namespace: &str,
        name: &str,
    ) -> Result<bool, NoRandomness> {
        let mut changed = false;
        for (key, sealed) in self.values.iter_mut().filter(|(_, sealed)| sealed.sealed_by != first.id()) {
            let place = Place { namespace, name, key };
            let Ok(value) = sealed.open(keys, place) else { continue };
            *sealed = seal(first, place, &value)?;
            changed = true;
        }
        Ok(changed)
    }
}

fn split(bytes: &[u8]) -> Result<(Header, &[u8]), Unreadable> {
    let (prefix, rest) = bytes.split_first_chunk::<PREFIX>().ok_or(Unreadable)?;
    let [format, length @ ..] = *prefix;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| Unreadable)?;
    let (header, values) = rest.split_at_checked(length).ok_or(Unreadable)?;
    if format != FORMAT {
        return Err(Unreadable);
    }
    Ok((serde_json::from_slice(header).map_err(|_| Unreadable)?, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    fn ring(byte: u8) -> KeyRing {
        KeyRing::default().with_first(EncryptionKey::new(Zeroizing::new([byte; 32])))
    }

    fn place(key: &str) -> Place<'_> {
        Place { namespace: "shop", name: "db", key }
    }

    fn set(values: &[(&str, &[u8])], replace: bool) -> Change {
        let sealed = |key: &str, value: &[u8]| seal(ring(1).first().unwrap(), place(key), value).unwrap();
        let set = values.iter().map(|(key, value)| ((*key).to_owned(), sealed(key, value))).collect();
        Change { replace, set, remove: Vec::new() }
    }

    fn opened(secret: &Secret, keys: &KeyRing) -> Vec<(String, Vec<u8>)> {
        let value = |key: &str| secret.open(keys, place(key)).unwrap().unwrap().to_vec();
        secret.keys().map(|key| (key.to_owned(), value(key))).collect()
    }

    fn secret(values: &[(&str, &[u8])]) -> Secret {
        Secret::changed(None, set(values, true), Millis(7)).unwrap()
    }

    #[test]
    fn writes_replace_or_merge() {
        let first = secret(&[("a", b"1"), ("b", b"2")]);
        let merged = Secret::changed(Some(first.clone()), set(&[("b", b"3"), ("c", b"")], false), Millis(8));
        let merged = merged.unwrap();
        let values = |secret: &Secret| opened(secret, &ring(1));
        let owned = |key: &str, value: &[u8]| (key.to_owned(), value.to_vec());
        assert_eq!(values(&merged), [owned("a", b"1"), owned("b", b"3"), owned("c", b"")]);
        assert_eq!((merged.version, merged.updated_at), (2, Millis(8)));
        let less = Change { remove: vec!["a".into(), "nothing".into()], ..set(&[], false) };
        let less = Secret::changed(Some(merged.clone()), less, Millis(9)).unwrap();
        assert_eq!(values(&less), [owned("b", b"3"), owned("c", b"")]);
        let replaced = Secret::changed(Some(merged), set(&[("z", b"9")], true), Millis(9)).unwrap();
        assert_eq!((values(&replaced), replaced.version), (vec![owned("z", b"9")], 3));
    }

    #[test]
    fn limits_hold() {
        let names: Vec<String> = (0..=KEYS_MAX).map(|n| format!("k{n}")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"v"[..])).collect();
        assert!(Secret::changed(None, set(&many[..KEYS_MAX], true), Millis(1)).is_ok());
        assert_eq!(Secret::changed(None, set(&many, true), Millis(1)), Err(Refused::TooManyKeys(65)));
        let large = vec![0; BYTES_MAX - 200];
        assert!(Secret::changed(None, set(&[("k", &large)], true), Millis(1)).is_ok());
        let too_large = vec![0; BYTES_MAX];
        let refused = Secret::changed(None, set(&[("k", &too_large)], true), Millis(1)).unwrap_err();
        assert!(matches!(refused, Refused::TooLarge(bytes) if bytes > BYTES_MAX));
    }

    #[test]
    fn a_secret_is_sealed_again_without_a_new_version() {
        let mut secret = secret(&[("a", b"1"), ("b", b"2")]);
        let before = secret.clone();
        let both = ring(1).with_first(ring(2).first().unwrap().clone());
        assert_eq!(secret.reseal(&both, both.first().unwrap(), "shop", "db"), Ok(true));
        assert_eq!((secret.version, secret.updated_at), (before.version, before.updated_at));
        assert_eq!(opened(&secret, &ring(2)), opened(&before, &ring(1)));
        assert_eq!(secret.reseal(&both, both.first().unwrap(), "shop", "db"), Ok(false));
        // Without the old key nothing can be done, and nothing is lost.
        let mut lost = before.clone();
        assert_eq!(lost.reseal(&ring(2), ring(2).first().unwrap(), "shop", "db"), Ok(false));
        assert_eq!(lost, before);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_stored_reads_back(values: BTreeMap<String, Vec<u8>>, version: u64, time: u64) {
            let sealed = |value: Vec<u8>| Sealed { sealed_by: "id".into(), bytes: value };
            let values = values.into_iter().map(|(key, value)| (key, sealed(value))).collect();
            let secret = Secret { version, updated_at: Millis(time), values };
            prop_assert_eq!(Secret::decode(&secret.encode()), Ok(secret));
        }

        #[test]
        fn bytes_that_are_no_secret_are_an_error(bytes: Vec<u8>, cut: prop::sample::Index) {
            prop_assert_eq!(Secret::decode(&bytes), Err(Unreadable));
            let whole = secret(&[("a", b"1"), ("b", b"2")]).encode();
            prop_assert_eq!(Secret::decode(&whole[..cut.index(whole.len())]), Err(Unreadable));
        }
    }
}
