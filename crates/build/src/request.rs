//! The request for a build.

use crate::{Error, Language};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Request {
    /// The source folder. It is only read.
    pub source: PathBuf,
    pub language: Language,
    /// As in the manifest: `20`, `3.11`, `1.26`. Empty means the newest installed version.
    pub version: String,
    /// `file.function`
    pub handler: String,
    /// Dependencies besides those in the source, in the format of the language. Empty means none.
    pub dependencies: String,
    /// Allow packages that exist only as source. This runs their code. Otherwise only wheels are installed.
    pub source_distributions: bool,
    pub timeout: Duration,
    /// Distinguishes requested rebuilds. Empty if known content need not be built again.
    pub again: String,
}

impl Request {
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(600);

    /// The file without its extension, and the function.
    pub(crate) fn handler_parts(&self) -> Result<(&str, &str), Error> {
        handler_parts(&self.handler).ok_or_else(|| Error::HandlerMissing {
            message: format!("the handler `{}` must be file.function, such as index.handler", self.handler),
        })
    }
}

/// The file for the code of a handler, for source that is a single text. `None` if the handler is not `file.function`.
pub fn source_file(language: Language, handler: &str) -> Option<PathBuf> {
    let (file, _) = handler_parts(handler)?;
    Some(match language {
        Language::NodeJs => format!("{file}.js").into(),
        Language::Python => format!("{}.py", file.replace('.', "/")).into(),
        Language::Go => format!("{file}.go").into(),
    })
}

fn handler_parts(handler: &str) -> Option<(&str, &str)> {
    let (file, function) = handler.rsplit_once('.')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$';
    let file_ok = file.split('/').all(|part| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| plain(c) || c == '-' || c == '.')
    });
    let function_ok = !function.is_empty() && function.chars().all(plain);
    (file_ok && function_ok).then_some((file, function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_cannot_leave_its_folder() {
        for bad in
            ["", "index", ".handler", "../x.handler", "/etc/x.handler", "a//b.handler", "a.", "a b.c", "-x.y"]
        {
            assert_eq!(source_file(Language::NodeJs, bad), None, "{bad}");
        }
        assert_eq!(source_file(Language::Go, "cmd/index.Handle"), Some("cmd/index.go".into()));
        assert_eq!(source_file(Language::Python, "app.main.handler"), Some("app/main.py".into()));
    }
}
