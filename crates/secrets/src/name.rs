//! Names of secrets and of their keys. Both are also names of files, and none of them leads out of a folder.

pub const NAME_RULE: &str =
    "has 1 to 253 characters of a-z, 0-9, - and ., and begins and ends each part with a letter or digit";
pub const KEY_RULE: &str = "has 1 to 253 letters, digits, -, _ and ., and does not begin with ..";

/// The API has an action of this name at the place of a secret.
pub const RESERVED: &str = "rekey";

const LENGTH_MAX: usize = 253;
const PART_MAX: usize = 63;

/// Whether this is a DNS subdomain, the form that Kubernetes requires for names of secrets.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LENGTH_MAX && name.split('.').all(is_part)
}

fn is_part(part: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    part.len() <= PART_MAX
        && part.bytes().all(is_fine)
        && is_edge(part.bytes().next())
        && is_edge(part.bytes().next_back())
}

pub fn is_key(key: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_sized = !key.is_empty() && key.len() <= LENGTH_MAX;
    is_sized && key.bytes().all(is_fine) && key != "." && !key.starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_never_lead_out_of_a_folder() {
        for name in ["db", "a-1", "team.db", "0"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "A", "a_b", "-a", "a-", "a..b", ".a", "a\0", &"a".repeat(64)] {
            assert!(!is_name(name), "{name}");
        }
        for key in ["password", "tls.crt", "A_B-c", ".netrc", "0"] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", ".", "..", "..a", "a/b", "a b", "ä", "a\0", &"a".repeat(254)] {
            assert!(!is_key(key), "{key}");
        }
    }
}
