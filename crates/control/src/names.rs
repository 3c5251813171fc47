//! Which function: a name in a namespace. Functions and agents share their names, since each has one subscription of it.

use klambda_functions::resource::Resource;
use std::fmt;
use std::sync::Arc;

/// `namespace/name`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    pub fn new(namespace: &str, name: &str) -> Name {
        Name(format!("{namespace}/{name}").into())
    }

    pub(crate) fn of(resource: &Resource) -> Name {
        Name::new(&resource.metadata.namespace, &resource.metadata.name)
    }

    /// As it is written in documents and in the fleet.
    pub(crate) fn from_text(text: &str) -> Name {
        Name(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }

    pub(crate) fn subscription(&self) -> String {
        format!("lambda.{}.{}", self.namespace(), self.name())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}
