//! The document: the rows of the route table with their descriptions, and the schemas that they use.

use super::operation::{Answer, Body, Operation, Parameter, Shape, problem};
use super::schemas::Problem;
use crate::problem::ProblemKind;
use crate::routes::{Need, Route, routes};
use http::Method;
use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Problems of every request that reaches the resources.
const OF_ALL: [&str; 12] = [
    "bad-request",
    "foreign-origin",
    "request-timeout",
    "too-large",
    "uri-too-long",
    "foreign-host",
    "headers-too-large",
    "internal",
    "overloaded",
    "too-many-connections",
    "not-ready",
    "shutting-down",
];
const OF_TOKENS: [&str; 2] = ["unauthorized", "forbidden"];
const OF_CHANGES: [&str; 2] = ["storage-failed", "disk-full"];

const ABOUT: &str = "Event-driven functions that keep order per key.\n\n\
    `/api/v1/namespaces/{namespace}/…` is `/api/v1/…` in that namespace, the same as the parameter `namespace`. \
    A request that names none uses the only namespace of its token, or else `default`. \
    Every error is a problem document (RFC 9457). Unknown members and parameters are rejected. \
    A server that was started without tokens needs no `Authorization`.";

/// The parts that several routes share.
struct Parts {
    generator: SchemaGenerator,
    /// Answers with problems, by the names of their kinds.
    problems: BTreeMap<String, Value>,
}

/// A route with its description.
pub struct Described<'a> {
    pub route: &'a Route,
    pub operation: &'a Operation,
}

/// In the order of the route table. A test ensures that no route is left out.
pub fn described<'a>(
    routes: &'a [Route],
    operations: &'a [Operation],
) -> impl Iterator<Item = Described<'a>> {
    routes.iter().filter_map(|route| {
        let of_route = |one: &&Operation| one.path == route.path && one.method == route.method;
        Some(Described { route, operation: operations.iter().find(of_route)? })
    })
}

pub fn build(operations: &[Operation]) -> Value {
    let routes = routes();
    let mut parts = Parts { generator: generator(), problems: BTreeMap::new() };
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut tags: Vec<&str> = Vec::new();
    for one in described(&routes, operations) {
        let written = one.write(&routes, &mut parts);
        let method = one.route.method.as_str().to_lowercase();
        paths.entry(one.route.path).or_default().insert(method, written);
        if !tags.contains(&tag(one.route.path)) {
            tags.push(tag(one.route.path));
        }
    }
    let tags: Vec<Value> = tags.into_iter().map(|tag| json!({ "name": tag })).collect();
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "klambda",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": env!("CARGO_PKG_LICENSE"), "identifier": env!("CARGO_PKG_LICENSE") },
        },
        "servers": [{ "url": "/" }],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": parts.generator.take_definitions(true),
            "responses": parts.problems,
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn generator() -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.contract = Contract::Serialize;
        settings.meta_schema = None;
    });
    settings.into_generator()
}

/// The resource that a path belongs to.
pub fn tag(path: &str) -> &str {
    let words = path.strip_prefix("/api/v1/").unwrap_or_default();
    match words.strip_prefix("lambda/").unwrap_or(words).split('/').next().unwrap_or_default() {
        "dlq" => "dead-letters",
        "" | "status" | "cost" | "backup" | "openapi.json" | "docs" | "overview" | "whoami" => "server",
        word => word,
    }
}

impl Described<'_> {
    fn write(&self, routes: &[Route], parts: &mut Parts) -> Value {
        let Described { route, operation } = self;
        let mut written = json!({
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [tag(route.path)],
            "x-klambda-needs": route.need.to_string(),
            "security": if route.need == Need::Public { json!([]) } else { json!([{ "bearer": [] }]) },
            "responses": self.responses(routes, parts),
        });
        if !operation.about.is_empty() {
            written["description"] = operation.about.into();
        }
        let parameters: Vec<Value> = self.parameters().iter().map(Parameter::write).collect();
        if !parameters.is_empty() {
            written["parameters"] = parameters.into();
        }
        if let Some(body) = &operation.body {
            written["requestBody"] = body.write(&mut parts.generator);
        }
        written
    }

    fn parameters(&self) -> Vec<Parameter> {
        let own = self.operation.parameters.iter().map(Parameter::copy);
        own.chain(self.namespace()).collect()
    }

    /// The namespace as a parameter, if the route belongs to one and its path does not name it.
    fn namespace(&self) -> Option<Parameter> {
        let about = match self.route.need {
            Need::In(_) | Need::Own(..) => "The namespace.",
            Need::List(_) => "The namespace, or `*` for all that the token can read.",
            Need::Public | Need::Known | Need::Server(_) | Need::Somewhere(_) => return None,
        };
        let is_named = self.route.path.starts_with("/api/v1/namespaces");
        let schema = json!({ "type": "string", "minLength": 1 });
        (!is_named).then_some(Parameter {
            name: "namespace",
            place: "query",
            about,
            schema,
            is_required: false,
            example: None,
        })
    }

    fn responses(&self, routes: &[Route], parts: &mut Parts) -> Value {
        let mut responses: BTreeMap<String, Value> = BTreeMap::new();
        let mut kinds: BTreeMap<u16, Vec<&ProblemKind>> = BTreeMap::new();
        for kind in self.problems(routes) {
            kinds.entry(kind.status.as_u16()).or_default().push(kind);
        }
        for (status, kinds) in kinds {
            responses.insert(status.to_string(), parts.problems_answer(&kinds));
        }
        for answer in &self.operation.answers {
            let status = answer.status.map_or("default".to_owned(), |status| status.to_string());
            responses.insert(status, answer.write(&mut parts.generator));
        }
        json!(responses)
    }

    /// Every problem of the route, each once, ordered by status.
    pub fn problems(&self, routes: &[Route]) -> Vec<&'static ProblemKind> {
        let is_health = self.route.path == "/healthz" || self.route.path == "/health";
        let mut found: Vec<&'static ProblemKind> = self.operation.problems.clone();
        let mut add = |slugs: &[&str]| found.extend(slugs.iter().map(|slug| problem(slug)));
        match is_health {
            // Answered before anything else.
            true => add(&["request-timeout", "uri-too-long", "headers-too-large", "too-many-connections"]),
            false => add(&OF_ALL),
        }
        if self.route.need != Need::Public {
            add(&OF_TOKENS);
        }
        if matches!(self.route.need, Need::In(_) | Need::Own(..) | Need::List(_)) {
            add(&["not-found"]);
        }
        if self.route.method != Method::GET {
            add(&OF_CHANGES);
        }
        if self.route.is_rate_limited() {
            add(&["rate-limited"]);
        }
        if is_shadowed(self.route, routes) {
            add(&["method-not-allowed"]);
        }
        found.sort_by_key(|kind| (kind.status.as_u16(), kind.slug));
        found.dedup();
        found
    }
}

/// True if some value of a path parameter is the fixed word of another route, which does not have this method.
fn is_shadowed(route: &Route, routes: &[Route]) -> bool {
    let is_fixed = |other: &&Route| {
        let (own, theirs) = (route.path.split('/'), other.path.split('/'));
        other.path != route.path
            && own.clone().count() == theirs.clone().count()
            && own.zip(theirs).all(|(own, theirs)| own == theirs || own.starts_with('{'))
    };
    let has_method = |path: &str| routes.iter().any(|one| one.path == path && one.method == route.method);
    routes.iter().filter(is_fixed).any(|other| !has_method(other.path))
}

impl Parts {
    /// A reference to the answer with these kinds of problems.
    fn problems_answer(&mut self, kinds: &[&ProblemKind]) -> Value {
        let slugs: Vec<&str> = kinds.iter().map(|kind| kind.slug).collect();
        let name = slugs.join(".");
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        let about: Vec<String> =
            kinds.iter().map(|kind| format!("`{}`: {}", kind.slug, kind.about)).collect();
        let schema = Shape::of::<Problem>().schema(&mut self.generator);
        let answer = json!({
            "description": about.join("\n\n"),
            "x-klambda-problems": slugs,
            "content": { "application/problem+json": { "schema": schema } },
        });
        self.problems.insert(name, answer);
        reference
    }
}

impl Parameter {
    fn copy(&self) -> Parameter {
        let &Parameter { name, place, about, is_required, example, .. } = self;
        Parameter { name, place, about, schema: self.schema.clone(), is_required, example }
    }

    fn write(&self) -> Value {
        let mut written = json!({
            "name": self.name,
            "in": self.place,
            "required": self.is_required,
            "description": self.about,
            "schema": self.schema,
        });
        if let Some(example) = self.example {
            written["example"] = example.into();
        }
        written
    }
}

impl Body {
    fn write(&self, generator: &mut SchemaGenerator) -> Value {
        let mut content = write_content(&self.content, generator);
        if let (Some(example), Some((media, _))) = (&self.example, self.content.first()) {
            content[*media]["example"] = example.clone();
        }
        json!({ "required": self.is_required, "content": content })
    }
}

impl Answer {
    fn write(&self, generator: &mut SchemaGenerator) -> Value {
        let mut written = json!({ "description": self.about });
        if !self.content.is_empty() {
            written["content"] = write_content(&self.content, generator);
        }
        written
    }
}

fn write_content(content: &[(&'static str, Shape)], generator: &mut SchemaGenerator) -> Value {
    let written = content.iter().map(|(media, shape)| {
        let schema = shape.schema(generator);
        ((*media).to_owned(), json!({ "schema": schema }))
    });
    Value::Object(written.collect())
}
