//! `invoke` and `rebuild`, and the addresses of functions and agents.

use super::compose::{content_of, random_id};
use super::{Context, for_each};
use crate::args::{Invoke, Rebuild, Reference, Runs};
use crate::client::{Body, Error, Problem};
use crate::kind::Kind;
use crate::output::{Format, print_answer, write_raw};
use crate::route::Route;
use anyhow::Context as _;

/// The functions, or the agents, of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    kind: Kind,
    namespace: &'a str,
}

impl<'a> Place<'a> {
    pub fn new(kind: Kind, namespace: &'a str) -> Place<'a> {
        Place { kind, namespace }
    }

    fn of(reference: &Reference, namespace: &'a str) -> Place<'a> {
        let kind = match reference.kind {
            None | Some(Runs::Function) => Kind::Function,
            Some(Runs::Agent) => Kind::Agent,
        };
        Place { kind, namespace }
    }

    /// The address of the list, or of something below it.
    pub fn route(&self, below: &[&str]) -> Route {
        let noun = if self.kind == Kind::Agent { "agents" } else { "functions" };
        Route::new(&[&["lambda", noun], below].concat()).within(self.namespace)
    }

    /// The subscription that the server creates for the triggers.
    pub fn subscription(&self, name: &str) -> String {
        format!("lambda.{}.{name}", self.namespace)
    }

    /// The name in messages.
    pub fn title(&self, name: &str) -> String {
        format!("{}/{name}", self.kind.word())
    }
}

/// Acts on a function, or on the agent of that name if there is no such function.
pub fn with_place<T>(
    context: &mut Context,
    reference: &Reference,
    mut act: impl FnMut(&mut Context, Place) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let namespace = context.client.namespace().to_owned();
    let place = Place::of(reference, &namespace);
    let title = |place: Place| place.title(&reference.name);
    let done = act(context, place).with_context(|| title(place));
    let Err(error) = done else { return done };
    let agent = Place { kind: Kind::Agent, namespace: &namespace };
    let may_be_agent = reference.kind.is_none() && is_not_found(&error);
    if may_be_agent && context.client.get(&agent.route(&[&reference.name])).is_ok() {
        return act(context, agent).with_context(|| title(agent));
    }
    Err(error)
}

fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Problem(Problem { status: 404, .. })))
}

pub fn invoke(context: &mut Context, args: &Invoke) -> anyhow::Result<()> {
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
    let reference = args.name.reference()?;
    let answer = with_place(context, &reference, |context, place| {
        let route = place.route(&[&reference.name, "invoke"]);
        Ok(context.client.post_raw(&route, body.clone())?)
    })?;
    print_answer(context.out, context.format, &answer)
}

pub fn rebuild(context: &mut Context, args: &Rebuild) -> anyhow::Result<()> {
    for_each(&args.functions.references(), |reference| {
        let (title, answer) = with_place(context, reference, |context, place| {
            let route = place.route(&[&reference.name, "rebuild"]);
            Ok((place.title(&reference.name), context.client.post(&route, None)?))
        })?;
        if write_raw(context.out, context.format, &answer.body)? {
            return Ok(());
        }
        match context.format {
            Format::Name => writeln!(context.out, "{title}")?,
            _ => writeln!(context.out, "{title}: rebuild started")?,
        }
        Ok(())
    })
}
