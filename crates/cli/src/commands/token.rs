//! `token create|get|delete`.

use super::{Context, delete, for_each, get};
use crate::args::{CreateToken, Token};
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::{Format, cell, write_raw};
use crate::resource::Resource;
use crate::route::Route;
use anyhow::Context as _;
use serde_json::{Value, json};

pub fn run(context: &mut Context, action: &Token) -> anyhow::Result<()> {
    match action {
        Token::Create(args) => create(context, args),
        Token::Get { name, limit } => get::simple(context, Kind::Token, name, limit.limit),
        Token::Delete { name } => for_each(name, |name| {
            let token = Resource::of(Kind::Token, name);
            delete::delete(context, &token, &token.route(), |_| "deleted")
        }),
    }
}

/// Only the token goes to stdout, so that it can be redirected to a file.
fn create(context: &mut Context, args: &CreateToken) -> anyhow::Result<()> {
    if context.format == Format::Name {
        return Err(Usage(
            "-o name does not print the token, and the token is shown only once; use -o table, json or yaml"
                .to_owned(),
        )
        .into());
    }
    let own = context.client.namespace();
    let namespaces = match args.all_namespaces {
        true => json!("*"),
        false => args.also.iter().map(String::as_str).chain([own]).collect(),
    };
    let mut body = json!({"name": args.name, "role": args.role, "namespaces": namespaces});
    if let Some(expires) = &args.expires {
        body["expires"] = Value::from(expires.as_str());
    }
    if let Some(endpoint) = &args.endpoint {
        body["endpoint"] = Value::from(endpoint.as_str());
    }
    let answer = context.client.post(&Route::new(&["tokens"]), Some(&body));
    let created = answer.with_context(|| format!("token/{}", args.name))?.body;
    if write_raw(context.out, context.format, &created)? {
        return Ok(());
    }
    writeln!(context.out, "{}", cell(&created, "/token"))?;
    context.out.flush()?;
    eprintln!("token/{} created; store it now, it is not shown again", args.name);
    Ok(())
}
