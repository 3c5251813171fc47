//! The event types of the platform, and the default replay strategy of each.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a replay handles dead letters of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// One at a time within a key, in the order of the lane.
    Ordered,
    /// Concurrently. In an ordered lane, this is the same as ordered.
    Parallel,
    /// Only if a user selects the dead letter by its id.
    Manual,
    /// Never delivered again: the replay removes the dead letter.
    Discard,
}

/// Each type with its default strategy and the reason for it.
pub const TABLE: &[(&str, Strategy, &str)] = &[
    (FUNCTION_CREATED, Strategy::Ordered, "all other events of a function assume that the function exists"),
    (FUNCTION_UPDATED, Strategy::Ordered, "the last update must win"),
    (FUNCTION_DELETED, Strategy::Manual, "a late replay would delete a function that was created again"),
    (BUILD_STARTED, Strategy::Ordered, "a build starts before it ends"),
    (BUILD_COMPLETED, Strategy::Ordered, "the last completed build defines the service"),
    (BUILD_FAILED, Strategy::Ordered, "an old failure must not override a later success"),
    (BUILD_TIMEOUT, Strategy::Ordered, "it ends one build and must not affect the next"),
    (BUILD_CANCELLED, Strategy::Ordered, "it ends one build and must not affect the next"),
    (BUILD_STOPPED, Strategy::Ordered, "it ends one build and must not affect the next"),
    (SERVICE_CREATED, Strategy::Ordered, "a service exists before it changes"),
    (SERVICE_UPDATED, Strategy::Ordered, "the last update must win"),
    (SERVICE_DELETED, Strategy::Manual, "a late replay would delete a service that was created again"),
    (STATUS_UPDATED, Strategy::Parallel, "each event is a complete status with its own time"),
    (HEALTH_CHECK, Strategy::Discard, "an old check says nothing about the current health"),
    (PARSER_STARTED, Strategy::Ordered, "a parser starts before it ends"),
    (PARSER_COMPLETED, Strategy::Ordered, "later steps use the latest result"),
    (PARSER_FAILED, Strategy::Ordered, "an old failure must not override a later success"),
];

/// The default strategy of an event type. Unknown types are replayed in order, which is always safe.
pub fn default_strategy(kind: &str) -> Strategy {
    TABLE.iter().find(|(name, ..)| *name == kind).map_or(Strategy::Ordered, |(_, strategy, _)| *strategy)
}

/// Declares the constants, the enum and the conversions between them from one list.
macro_rules! kinds {
    ($($constant:ident $variant:ident $name:literal,)*) => {
        $(pub const $constant: &str = $name;)*

        /// An event type of the platform.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum EventKind {
            $($variant,)*
        }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$(EventKind::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$variant => $constant,)*
                }
            }

            pub fn parse(name: &str) -> Option<EventKind> {
                match name {
                    $($constant => Some(EventKind::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    FUNCTION_CREATED FunctionCreated "lambda.function.created",
    FUNCTION_UPDATED FunctionUpdated "lambda.function.updated",
    FUNCTION_DELETED FunctionDeleted "lambda.function.deleted",
    BUILD_STARTED BuildStarted "lambda.build.started",
    BUILD_COMPLETED BuildCompleted "lambda.build.completed",
    BUILD_FAILED BuildFailed "lambda.build.failed",
    BUILD_TIMEOUT BuildTimeout "lambda.build.timeout",
    BUILD_CANCELLED BuildCancelled "lambda.build.cancelled",
    BUILD_STOPPED BuildStopped "lambda.build.stopped",
    SERVICE_CREATED ServiceCreated "lambda.service.created",
    SERVICE_UPDATED ServiceUpdated "lambda.service.updated",
    SERVICE_DELETED ServiceDeleted "lambda.service.deleted",
    STATUS_UPDATED StatusUpdated "lambda.status.updated",
    HEALTH_CHECK HealthCheck "lambda.health.check",
    PARSER_STARTED ParserStarted "lambda.parser.started",
    PARSER_COMPLETED ParserCompleted "lambda.parser.completed",
    PARSER_FAILED ParserFailed "lambda.parser.failed",
}

impl Strategy {
    pub const ALL: [Strategy; 4] =
        [Strategy::Ordered, Strategy::Parallel, Strategy::Manual, Strategy::Discard];

    pub fn name(self) -> &'static str {
        match self {
            Strategy::Ordered => "ordered",
            Strategy::Parallel => "parallel",
            Strategy::Manual => "manual",
            Strategy::Discard => "discard",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Strategy, String> {
        let names = Strategy::ALL.map(Strategy::name);
        Strategy::ALL
            .into_iter()
            .find(|s| s.name() == text)
            .ok_or_else(|| crate::fault::unknown("strategy", text, &names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_seventeen_types_has_one_row() {
        assert_eq!(EventKind::ALL.len(), 17);
        assert_eq!(
            TABLE.iter().map(|row| row.0).collect::<Vec<_>>(),
            EventKind::ALL.iter().map(|k| k.name()).collect::<Vec<_>>()
        );
        assert!(EventKind::ALL.iter().all(|kind| EventKind::parse(kind.name()) == Some(*kind)));
        assert_eq!(default_strategy("order.paid"), Strategy::Ordered);
        assert_eq!(default_strategy(HEALTH_CHECK), Strategy::Discard);
        assert_eq!("manual".parse(), Ok(Strategy::Manual));
    }
}
