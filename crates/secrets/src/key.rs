//! Encryption keys: 256 bits each, written in base64. A key is known by an id that is derived from it.

use crate::seal::{NoRandomness, random};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{Context, SHA256};
use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;
const ID_BYTES: usize = 8;
const ID_DOMAIN: &[u8] = b"klambda secrets key id\0";

#[derive(Clone)]
pub struct EncryptionKey {
    id: String,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

/// The keys of a server. The first one seals, and all of them open.
#[derive(Clone, Debug, Default)]
pub struct KeyRing {
    keys: Vec<EncryptionKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("line {0} is not a key: a key is 32 bytes in base64, such as `openssl rand -base64 32` prints")]
    Line(usize),
    #[error("it holds no key: a key is 32 bytes in base64, such as `openssl rand -base64 32` prints")]
    Empty,
}

impl EncryptionKey {
    pub fn new(bytes: Zeroizing<[u8; KEY_BYTES]>) -> EncryptionKey {
        let mut context = Context::new(&SHA256);
        context.update(ID_DOMAIN);
        context.update(&*bytes);
        let digest = context.finish();
        let id = digest.as_ref().iter().take(ID_BYTES).fold(String::new(), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        });
        EncryptionKey { id, bytes }
    }

    pub fn random() -> Result<EncryptionKey, NoRandomness> {
        Ok(EncryptionKey::new(Zeroizing::new(random()?)))
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKey({})", self.id)
    }
}

impl KeyRing {
    /// Reads keys in base64, one per line. Lines that begin with `#` are comments.
    pub fn parse(text: &str) -> Result<KeyRing, Malformed> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let keys = lines.map(|(number, line)| read_key(line).ok_or(Malformed::Line(number)));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(Malformed::Empty) } else { Ok(KeyRing { keys }) }
    }

    /// The opposite of [`KeyRing::parse`].
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::from(
            "# The keys that encrypt the secrets of a klambda server. The first one is in use.\n\
             # Secrets cannot be read without them: keep a copy, apart from the backups. Old keys open old backups.\n",
        ));
        for key in &self.keys {
            // The id, by which messages name the key.
            let _ = writeln!(*text, "# key {}", key.id);
            text.push_str(&Zeroizing::new(BASE64_STANDARD.encode(key.bytes())));
            text.push('\n');
        }
        text
    }

    /// The key that seals; `None` before the first secret is stored.
    pub fn first(&self) -> Option<&EncryptionKey> {
        self.keys.first()
    }

    pub fn get(&self, id: &str) -> Option<&EncryptionKey> {
        self.keys.iter().find(|key| key.id == id)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The same keys behind a new one, which seals from now on.
    pub fn with_first(&self, key: EncryptionKey) -> KeyRing {
        KeyRing { keys: [key].into_iter().chain(self.keys.iter().cloned()).collect() }
    }

    /// These keys, and behind them those of another ring.
    pub fn joined(&self, other: &KeyRing) -> KeyRing {
        let others = other.keys.iter().filter(|key| self.get(&key.id).is_none());
        KeyRing { keys: self.keys.iter().chain(others).cloned().collect() }
    }

    /// The ids of the keys behind the first that are not among the used ones.
    pub fn unused(&self, used: &BTreeSet<String>) -> Vec<String> {
        self.keys.iter().skip(1).map(|key| key.id.clone()).filter(|id| !used.contains(id)).collect()
    }
}

fn read_key(line: &str) -> Option<EncryptionKey> {
    let decoded = Zeroizing::new(BASE64_STANDARD.decode(line).ok()?);
    let bytes: [u8; KEY_BYTES] = decoded.as_slice().try_into().ok()?;
    Some(EncryptionKey::new(Zeroizing::new(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> EncryptionKey {
        EncryptionKey::new(Zeroizing::new([byte; KEY_BYTES]))
    }

    #[test]
    fn a_ring_reads_back_in_order() {
        let ring = KeyRing::default().with_first(key(1)).with_first(key(2));
        let again = KeyRing::parse(&ring.to_text()).unwrap();
        assert_eq!((again.len(), again.first().unwrap().id()), (2, key(2).id()));
        assert_eq!(again.get(key(1).id()).unwrap().bytes(), &[1; KEY_BYTES]);
        assert!(again.get("0000000000000000").is_none());
    }

    #[test]
    fn what_is_not_a_key_is_named_by_its_line() {
        let good = BASE64_STANDARD.encode([1; KEY_BYTES]);
        for (text, expected) in [
            ("", Malformed::Empty),
            ("# only a comment\n\n", Malformed::Empty),
            ("hush-hush", Malformed::Line(1)),
            (&format!("{good}\n\n{}\n", BASE64_STANDARD.encode([1; 16])), Malformed::Line(3)),
        ] {
            let refused = KeyRing::parse(text).unwrap_err();
            assert_eq!(refused, expected, "{text}");
            assert!(!refused.to_string().contains("hush"), "{refused}");
        }
        assert_eq!(KeyRing::parse(&good).unwrap().len(), 1);
    }

    #[test]
    fn rings_are_joined_without_repeats() {
        let (one, two) = (KeyRing::default().with_first(key(1)), KeyRing::default().with_first(key(2)));
        let joined = two.joined(&one.with_first(key(2)));
        assert_eq!((joined.len(), joined.first().unwrap().id()), (2, key(2).id()));
    }

    #[test]
    fn unused_keys_are_named() {
        let ring = KeyRing::default().with_first(key(1)).with_first(key(2)).with_first(key(3));
        let used = BTreeSet::from([key(1).id().to_owned()]);
        assert_eq!(ring.unused(&used), [key(2).id()]);
    }

    #[test]
    fn keys_are_not_printed() {
        let printed = format!("{:?}", KeyRing::default().with_first(key(7)));
        assert!(printed.contains(key(7).id()) && !printed.contains("7, 7"), "{printed}");
        assert!(!printed.contains(&BASE64_STANDARD.encode([7; KEY_BYTES])[..8]), "{printed}");
    }
}
