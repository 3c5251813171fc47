//! `invoke` and `rebuild`: what one does to a function or agent that is there, and where they are.

use super::compose::{content_of, random_id};
use super::{Context, for_each};
use crate::args::{Invoke, Rebuild, Reference, Runs};
use crate::client::Body;
use crate::kind::Kind;
use crate::output::{Format, cell, write_raw};
use crate::route::Route;
use anyhow::Context as _;
use serde_json::Value;

/// The functions or agents of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    kind: Kind,
    namespace: &'a str,
}

impl<'a> Place<'a> {
    pub fn new(kind: Kind, namespace: &'a str) -> Place<'a> {
        Place { kind, namespace }
    }

    pub fn of(reference: &Reference, namespace: &'a str) -> Place<'a> {
        let kind = match reference.kind {
            Runs::Function => Kind::Function,
            Runs::Agent => Kind::Agent,
        };
        Place { kind, namespace }
    }

    /// The list, or what lies below it.
    pub fn route(&self, below: &[&str]) -> Route {
        self.address(below).query("namespace", self.namespace)
    }

    /// The list of all namespaces.
    pub fn everywhere(&self) -> Route {
        self.address(&[])
    }

    fn address(&self, below: &[&str]) -> Route {
        let noun = if self.kind == Kind::Agent { "agents" } else { "functions" };
        Route::new(&[&["lambda", noun], below].concat())
    }

    /// The subscription that its triggers are.
    pub fn subscription(&self, name: &str) -> String {
        format!("lambda.{}.{name}", self.namespace)
    }

    /// What messages call one.
    pub fn title(&self, name: &str) -> String {
        format!("{}/{name}", self.kind.word())
    }
}

pub fn invoke(context: &mut Context, args: &Invoke) -> anyhow::Result<()> {
    let place = Place::of(&args.name, &args.namespace.namespace);
    let (bytes, content_type) = match &args.data {
        Some(data) => content_of(data, args.content_type.as_deref())?,
        None => (Vec::new(), "application/json".to_owned()),
    };
    let mut body = Body::new(bytes, &content_type);
    if let Some(event_type) = &args.event_type {
        let id = random_id()?;
        let attributes =
            [("ce-specversion", "1.0"), ("ce-type", event_type), ("ce-source", "/klambda"), ("ce-id", &id)];
        body = attributes.into_iter().fold(body, |body, (name, value)| body.header(name, value));
    }
    let route = place.route(&[&args.name.name, "invoke"]);
    let title = || place.title(&args.name.name);
    let answer = context.client.post_raw(&route, body).with_context(title)?;
    print_answer(context, &answer)
}

/// What came back as it came; where JSON or YAML is asked for, laid out as that.
fn print_answer(context: &mut Context, answer: &[u8]) -> anyhow::Result<()> {
    let parsed: Option<Value> = serde_json::from_slice(answer).ok();
    if let Some(value) = parsed
        && write_raw(context.out, context.format, &value)?
    {
        return Ok(());
    }
    context.out.write_all(answer)?;
    if !answer.is_empty() && !answer.ends_with(b"\n") {
        writeln!(context.out)?;
    }
    Ok(())
}

pub fn rebuild(context: &mut Context, args: &Rebuild) -> anyhow::Result<()> {
    for_each(&args.name, |reference| {
        let place = Place::of(reference, &args.namespace.namespace);
        let title = place.title(&reference.name);
        let route = place.route(&[&reference.name, "rebuild"]);
        let answer = context.client.post(&route, None).with_context(|| title.clone())?;
        if write_raw(context.out, context.format, &answer.body)? {
            return Ok(());
        }
        match context.format {
            Format::Name => writeln!(context.out, "{title}")?,
            _ => writeln!(context.out, "{title} is built again, now {}", cell(&answer.body, "/status"))?,
        }
        Ok(())
    })
}
