//! Errors of the operating system in words.

use std::io::{self, ErrorKind};

const TOO_MANY_OPEN_FILES: i32 = 24;

/// What happened, without the code, and what helps.
pub fn in_words(error: &io::Error) -> String {
    let words = without_codes(&error.to_string());
    match remedy(error) {
        Some(remedy) => format!("{words}; {remedy}"),
        None => words,
    }
}

fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("free some space there"),
        ErrorKind::PermissionDenied => Some("give the user of this process access to it"),
        ErrorKind::AddrInUse => Some("stop the process that uses it, or choose another address"),
        ErrorKind::ReadOnlyFilesystem => Some("mount the file system for writing"),
        _ if error.raw_os_error() == Some(TOO_MANY_OPEN_FILES) => {
            Some("raise the limit of open files (ulimit -n)")
        }
        _ => None,
    }
}

/// Removes ` (os error 2)` and the like: the words before it say the same.
pub fn without_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((code, rest)) if code.bytes().all(|byte| byte.is_ascii_digit()) => plain.push_str(rest),
            _ => plain.extend([" (os error ", part]),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_operating_system_are_left_out() {
        for (text, plain) in [
            ("a: No such file or directory (os error 2)", "a: No such file or directory"),
            ("x (os error 13); y (os error 5)!", "x; y!"),
            ("the name (os error x) stays", "the name (os error x) stays"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_codes(text), plain);
        }
    }

    #[test]
    fn an_error_says_what_helps() {
        let said = |code| in_words(&io::Error::from_raw_os_error(code));
        assert_eq!(said(28), "No space left on device; free some space there");
        assert_eq!(said(13), "Permission denied; give the user of this process access to it");
        assert_eq!(said(24), "Too many open files; raise the limit of open files (ulimit -n)");
        assert_eq!(said(2), "No such file or directory");
    }
}
