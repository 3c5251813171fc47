//! The description of one route: what it takes, what it answers, and which problems it has of its own.

use crate::problem::{KINDS, ProblemKind};
use http::Method;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

pub struct Operation {
    pub method: Method,
    pub path: &'static str,
    /// The name of the call in generated clients.
    pub id: String,
    pub summary: String,
    pub about: &'static str,
    pub parameters: Vec<Parameter>,
    pub body: Option<Body>,
    pub answers: Vec<Answer>,
    /// Beyond those that every route has.
    pub problems: Vec<&'static ProblemKind>,
}

pub struct Parameter {
    pub name: &'static str,
    /// `path`, `query` or `header`.
    pub place: &'static str,
    pub about: &'static str,
    pub schema: Value,
    pub is_required: bool,
    pub example: Option<&'static str>,
}

pub struct Body {
    pub is_required: bool,
    pub content: Vec<(&'static str, Shape)>,
    pub example: Option<Value>,
}

pub struct Answer {
    /// `None`: any other status.
    pub status: Option<u16>,
    pub about: &'static str,
    pub content: Vec<(&'static str, Shape)>,
}

/// A schema: of a type, or written by hand.
pub enum Shape {
    Of(fn(&mut SchemaGenerator) -> Value),
    Is(Value),
}

impl Shape {
    pub fn of<T: JsonSchema>() -> Shape {
        Shape::Of(|generator| generator.subschema_for::<T>().to_value())
    }

    pub fn schema(&self, generator: &mut SchemaGenerator) -> Value {
        match self {
            Shape::Of(make) => make(generator),
            Shape::Is(schema) => schema.clone(),
        }
    }
}

pub const JSON: &str = "application/json";
pub const STREAM: &str = "text/event-stream";

macro_rules! starts {
    ($($name:ident $method:ident;)+) => {$(
        pub fn $name(path: &'static str, id: impl Into<String>, summary: impl Into<String>) -> Operation {
            Operation::new(Method::$method, path, id.into(), summary.into())
        }
    )+};
}

starts! {
    get GET;
    post POST;
    put PUT;
    patch PATCH;
    delete DELETE;
}

impl Operation {
    fn new(method: Method, path: &'static str, id: String, summary: String) -> Operation {
        let parameters = path_parameters(path).map(path_parameter).collect();
        let (answers, problems) = (Vec::new(), Vec::new());
        Operation { method, path, id, summary, about: "", parameters, body: None, answers, problems }
    }

    pub fn about(self, about: &'static str) -> Operation {
        Operation { about, ..self }
    }

    /// The words that a parameter of the path can be.
    pub fn words(mut self, name: &str, words: &[&'static str]) -> Operation {
        for parameter in self.parameters.iter_mut().filter(|parameter| parameter.name == name) {
            parameter.schema = json!({ "type": "string", "enum": words });
            parameter.example = words.first().copied();
        }
        self
    }

    pub fn example(mut self, name: &str, example: &'static str) -> Operation {
        for parameter in self.parameters.iter_mut().filter(|parameter| parameter.name == name) {
            parameter.example = Some(example);
        }
        self
    }

    pub fn query(self, name: &'static str, schema: Value, about: &'static str) -> Operation {
        self.parameter(name, "query", schema, about)
    }

    pub fn required(mut self, name: &str) -> Operation {
        for parameter in self.parameters.iter_mut().filter(|parameter| parameter.name == name) {
            parameter.is_required = true;
        }
        self
    }

    pub fn flag(self, name: &'static str, about: &'static str) -> Operation {
        self.query(name, json!({ "type": "boolean" }), about)
    }

    pub fn header(self, name: &'static str, schema: Value, about: &'static str) -> Operation {
        self.parameter(name, "header", schema, about)
    }

    fn parameter(
        mut self,
        name: &'static str,
        place: &'static str,
        schema: Value,
        about: &'static str,
    ) -> Operation {
        self.parameters.push(Parameter { name, place, about, schema, is_required: false, example: None });
        self
    }

    /// The parameters of a list.
    pub fn paged(self) -> Operation {
        let limit = json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 100 });
        self.query("limit", limit, "The maximum number of items.").query(
            "cursor",
            json!({ "type": "string" }),
            "`next` of the page before.",
        )
    }

    pub fn only_new(self) -> Operation {
        let star = json!({ "type": "string", "enum": ["*"] });
        self.header("If-None-Match", star, "Only create: 412 if it exists.").problems(&["exists"])
    }

    pub fn takes<T: JsonSchema>(self, example: Value) -> Operation {
        self.body(true, vec![(JSON, Shape::of::<T>())], Some(example))
    }

    pub fn body(
        mut self,
        is_required: bool,
        content: Vec<(&'static str, Shape)>,
        example: Option<Value>,
    ) -> Operation {
        self.body = Some(Body { is_required, content, example });
        self
    }

    pub fn gives<T: JsonSchema>(self, status: u16, about: &'static str) -> Operation {
        self.answer(Some(status), about, vec![(JSON, Shape::of::<T>())])
    }

    pub fn text(self, media: &'static str, about: &'static str) -> Operation {
        self.answer(Some(200), about, vec![(media, Shape::Is(json!({ "type": "string" })))])
    }

    pub fn answer(
        mut self,
        status: Option<u16>,
        about: &'static str,
        content: Vec<(&'static str, Shape)>,
    ) -> Operation {
        self.answers.push(Answer { status, about, content });
        self
    }

    /// Problems by their slug.
    pub fn problems(mut self, slugs: &[&str]) -> Operation {
        self.problems.extend(slugs.iter().map(|slug| problem(slug)));
        self
    }
}

/// A wrong slug is a mistake in these descriptions. Every test that builds the document finds it.
pub fn problem(slug: &str) -> &'static ProblemKind {
    let found = KINDS.iter().find(|kind| kind.slug == slug);
    found.unwrap_or_else(|| panic!("{slug} is not a kind of problem"))
}

fn path_parameters(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn path_parameter(name: &'static str) -> Parameter {
    let (about, example) = match name {
        "name" => ("The name.", "orders"),
        "subscription" => ("The name of the subscription.", "orders"),
        "key" => ("The key of the lane.", "order-42"),
        "action" => ("What to do.", "pause"),
        _ => ("The id.", "e1"),
    };
    let schema = json!({ "type": "string", "minLength": 1 });
    Parameter { name, place: "path", about, schema, is_required: true, example: Some(example) }
}
