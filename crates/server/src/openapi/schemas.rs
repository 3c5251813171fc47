//! Schemas of bodies and answers that have no Rust type of their own, each written beside the resource that uses it.

use klambda_dispatch::views::EndpointSpec;
use klambda_functions::schema as functions;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};
use std::borrow::Cow;

/// Gives names to schemas that are written by hand: `Type "Name" |generator| json;`.
macro_rules! by_hand {
    ($($(#[$about:meta])* $type:ident $name:literal |$generator:ident| $schema:expr;)+) => {$(
        $(#[$about])*
        pub struct $type;

        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let _ = &$generator;
                schemars::Schema::try_from($schema).expect("a schema is an object")
            }
        }
    )+};
}
pub(super) use by_hand;

/// A reference to the schema of a type.
pub fn at<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

by_hand! {
    /// A problem document.
    Problem "Problem" |generator| json!({
        "description": "A problem document (RFC 9457). Some problems have further members.",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": { "type": "string", "format": "uri" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "faults": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["path", "message"],
                    "properties": { "path": { "type": "string" }, "message": { "type": "string" } },
                },
            },
        },
    });
    /// The `spec` of a function or agent.
    FunctionSpec "FunctionSpec" |generator| functions::closed_spec();
    FunctionStatus "FunctionStatus" |generator| functions::status_schema();
    FunctionMetadata "FunctionMetadata" |generator| functions::metadata_schema();
    /// A function or agent as the server shows it.
    Function "Function" |generator| json!({
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec", "status"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string", "enum": ["LambdaFunction", "LambdaAgent"] },
            "metadata": at::<FunctionMetadata>(generator),
            "spec": at::<FunctionSpec>(generator),
            "status": at::<FunctionStatus>(generator),
        },
    });
    /// A function or agent in a request.
    FunctionDocument "FunctionDocument" |generator| document(json!({}), at::<FunctionSpec>(generator), &["spec"]);
    /// A part of a function that is merged into it.
    FunctionPatch "FunctionPatch" |generator| json!({
        "description": "A partial document, merged as of RFC 7386: `null` removes a member.",
        "type": "object",
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": { "type": "object" },
            "status": {},
        },
        "additionalProperties": false,
    });
    /// A webhook endpoint as a flat body.
    NewEndpoint "NewWebhookEndpoint" |generator| flat(EndpointSpec::json_schema(generator).to_value());
}

/// A document in a request. Fields that the URL contains may be left out.
pub fn document(metadata: Value, spec: Value, required: &[&str]) -> Value {
    let mut members = json!({
        "name": { "type": "string" },
        "namespace": { "type": "string" },
    });
    for (name, schema) in metadata.as_object().into_iter().flatten() {
        members[name] = schema.clone();
    }
    json!({
        "type": "object",
        "required": required,
        "properties": {
            "apiVersion": { "type": "string", "enum": [klambda_core::schema::API_VERSION] },
            "kind": { "type": "string" },
            "metadata": { "type": "object", "properties": members },
            "spec": spec,
            "status": { "description": "Ignored, so that an answer can be sent back." },
        },
        "additionalProperties": false,
    })
}

/// The members of the spec beside the name.
fn flat(mut spec: Value) -> Value {
    let key = spec["properties"]["workflowKey"].take();
    let text = json!({ "type": "string", "description": "An attribute, or a JSON pointer into the data." });
    spec["properties"]["workflowKey"] = json!({ "anyOf": [text, key] });
    spec["properties"]["name"] = json!({ "type": "string", "description": "The name of the endpoint." });
    spec["required"] = json!(["name", "url"]);
    spec
}

/// The answer to a dry run, with the document after the change.
pub struct DryRun<T>(std::marker::PhantomData<T>);

impl<T: JsonSchema> JsonSchema for DryRun<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}DryRun", T::schema_name()).into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "type": "object",
            "required": ["dryRun", "change", "document"],
            "properties": {
                "dryRun": { "type": "boolean", "const": true },
                "change": { "type": "string", "enum": ["created", "configured", "unchanged", "deleted"] },
                "document": { "type": "object", "description": "The document after the change." },
            },
        })
    }
}

/// One of two forms.
pub fn either(one: Value, other: Value) -> Value {
    json!({ "anyOf": [one, other] })
}
