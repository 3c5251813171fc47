//! The interface to the schema checks of reply events. Replies are never dropped, so a check only marks them.

use klambda_core::event::Event;
use std::future::Future;
use std::pin::Pin;

pub type Marking<'a> = Pin<Box<dyn Future<Output = Vec<Event>> + Send + 'a>>;

pub trait SchemaChecks: Send + Sync {
    /// Whether the events of a namespace are checked.
    fn is_on(&self, namespace: &str) -> bool;

    /// Marks the replies whose data does not match the schema of their type. Returns all of them.
    fn mark<'a>(&'a self, namespace: &'a str, replies: Vec<Event>) -> Marking<'a>;
}

/// For a server without event types.
pub struct NoChecks;

impl SchemaChecks for NoChecks {
    fn is_on(&self, _: &str) -> bool {
        false
    }

    fn mark<'a>(&'a self, _: &'a str, replies: Vec<Event>) -> Marking<'a> {
        Box::pin(async move { replies })
    }
}
