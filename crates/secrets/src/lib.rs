//! Secrets: named sets of values that are stored encrypted.
//!
//! - `name`: the rules for names of secrets and their keys.
//! - [`EncryptionKey`] and [`KeyRing`]: the keys that encrypt values; [`KeyFile`] keeps them in a file that only its owner can read.
//! - [`Secret`]: the stored document. Its metadata is readable, and each value is sealed separately.
//! - [`Reader`]: the interface for code that uses secrets, such as the platform that starts functions.
//!
//! A value is sealed with AES-256-GCM and a random nonce. The namespace, the name of the secret, the key and the id of the
//! encryption key are the associated data, so a sealed value that is copied to another place cannot be opened there.
//!
//! **Invariant:** no type of this crate prints a value or an encryption key: their `Debug` output leaves them out, and
//! errors name places only.

mod key;
mod key_file;
mod name;
mod reader;
mod seal;
mod secret;

pub use key::{EncryptionKey, KeyRing, Malformed};
pub use key_file::{Error as KeyFileError, KeyFile};
pub use name::{KEY_RULE, NAME_RULE, RESERVED, is_key, is_name};
pub use reader::{Known, KnownKey, Reader, Stored};
pub use seal::{NoRandomness, OpenError, Place, Sealed, Value, seal};
pub use secret::{BYTES_MAX, Change, KEYS_MAX, Refused, Secret, Unreadable};
