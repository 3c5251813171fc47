//! The JSON schemas of views, under the names that the description of the API gives them.

use super::Time;
use klambda_core::{event_type, namespace, subscription, webhook};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;

/// The `spec` of a subscription.
pub struct SubscriptionSpec;
/// The `spec` of a webhook endpoint.
pub struct EndpointSpec;
/// The `spec` of a namespace.
pub struct NamespaceSpec;
/// The `spec` of an event type.
pub struct EventTypeSpec;
/// An event in the CloudEvents JSON format.
pub struct CloudEvent;

macro_rules! named {
    ($($type:ty, $name:literal, $schema:expr;)+) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )+};
}

named! {
    SubscriptionSpec, "SubscriptionSpec", schema(subscription::spec_schema().closed());
    EndpointSpec, "WebhookEndpointSpec", schema(webhook::spec_schema().closed());
    NamespaceSpec, "NamespaceSpec", schema(namespace::spec_schema().closed());
    EventTypeSpec, "EventTypeSpec", schema(event_type::spec_schema().closed());
    CloudEvent, "CloudEvent", cloud_event();
}

fn schema(json: Value) -> Schema {
    Schema::try_from(json).expect("the schema of a spec is an object")
}

fn cloud_event() -> Schema {
    json_schema!({
        "description": "An event in the CloudEvents JSON format, with its extension attributes.",
        "type": "object",
        "required": ["specversion", "id", "source", "type"],
        "properties": {
            "specversion": { "type": "string", "const": "1.0" },
            "id": { "type": "string" },
            "source": { "type": "string" },
            "type": { "type": "string" },
            "subject": { "type": "string" },
            "time": { "type": "string" },
            "datacontenttype": { "type": "string" },
            "dataschema": { "type": "string" },
            "data": {},
            "data_base64": { "type": "string" },
        },
    })
}

impl JsonSchema for Time {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}
