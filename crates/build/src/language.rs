//! The languages of handlers.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Language {
    NodeJs,
    Python,
    Go,
}

impl Language {
    pub const ALL: [Language; 3] = [Language::NodeJs, Language::Python, Language::Go];

    /// The name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Language::NodeJs => "nodejs",
            Language::Python => "python",
            Language::Go => "go",
        }
    }

    pub fn parse(name: &str) -> Option<Language> {
        Language::ALL.into_iter().find(|language| language.name() == name)
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
