//! Code inside the manifest: one file named after the handler, and the dependency file of the language.

use super::{Error, Fetch, Fetched, Inline, Language};
use std::fs;

impl Language {
    pub fn extension(self) -> &'static str {
        match self {
            Language::NodeJs => "js",
            Language::Python => "py",
            Language::Go => "go",
        }
    }

    /// The dependency file.
    pub fn dependencies_file(self) -> &'static str {
        match self {
            Language::NodeJs => "package.json",
            Language::Python => "requirements.txt",
            Language::Go => "go.mod",
        }
    }
}

pub fn write(inline: &Inline, fetch: &Fetch) -> Result<Fetched, Error> {
    let mut budget = fetch.budget();
    let name = format!("{}.{}", file_stem(&inline.handler)?, inline.language.extension());
    let dependencies = (inline.language.dependencies_file(), inline.dependencies.as_str());
    for (name, text) in [(name.as_str(), inline.code.as_str()), dependencies] {
        if text.is_empty() && name == dependencies.0 {
            continue;
        }
        budget.entry()?;
        budget.take(text.len() as u64)?;
        fs::write(fetch.into.join(name), text)?;
    }
    Ok(budget.fetched())
}

/// `file` of `file.function`.
fn file_stem(handler: &str) -> Result<&str, Error> {
    let stem = handler.rsplit_once('.').map_or("", |(file, _)| file);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if stem.is_empty() || stem.len() > 128 || !stem.bytes().all(plain) {
        let message = format!("handler {handler:?} must be file.function with letters, digits, _ or -");
        return Err(Error::BadReference(message));
    }
    Ok(stem)
}
