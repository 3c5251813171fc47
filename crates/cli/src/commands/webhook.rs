//! `webhook create|get|describe|enable|disable|rotate|test|delete|events|deliveries|resend|recover|link`.

mod deliveries;

use super::{Context, delete, describe, for_each, get, is_unreachable};
use crate::args::{CreateWebhook, POLL, Webhook, WebhookEvents};
use crate::confirm::confirm;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::{Format, cell, number, one_line, shorten, text, write_raw};
use crate::resource::Resource;
use crate::route::Route;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use std::time::Duration;

const PAGE: usize = 100;
const RECONNECT: Duration = Duration::from_secs(1);
const DATA_CHARS_MAX: usize = 80;

pub fn run(context: &mut Context, action: &Webhook) -> anyhow::Result<()> {
    match action {
        Webhook::Create(args) => create(context, args),
        Webhook::Get { name, all_namespaces, limit } => {
            if *all_namespaces {
                context.client.look_everywhere();
            }
            get::simple(context, Kind::Webhook, name, limit.limit)
        }
        Webhook::Describe { name } => for_each(name, |name| describe::webhook(context, &resource(name))),
        Webhook::Enable { name, from } => {
            let body = from.as_ref().map(|from| json!({"from": from.0}));
            for_each(name, |name| act(context, name, "enable", body.as_ref(), "enabled"))
        }
        Webhook::Disable { name } => for_each(name, |name| act(context, name, "disable", None, "disabled")),
        Webhook::Rotate { name, overlap } => rotate(context, name, overlap.as_deref()),
        Webhook::Test { name } => test(context, name),
        Webhook::Delete { name, drain, discard, yes } => {
            let pending = if *discard { " and drop pending events" } else { "" };
            confirm(&format!("delete webhook {}{pending}", name.join(", ")), *yes)?;
            for_each(name, |name| {
                let resource = resource(name);
                delete::drain(context, &resource, resource.route(), *drain, *discard)
            })
        }
        Webhook::Events(args) => events(context, args),
        Webhook::Deliveries(args) => deliveries::list(context, args),
        Webhook::Resend { name, event } => deliveries::resend(context, name, event),
        Webhook::Recover(args) => deliveries::recover(context, args),
        Webhook::Link { name, expires } => deliveries::link(context, name, expires.as_deref()),
    }
}

fn resource(name: &str) -> Resource {
    Resource::of(Kind::Webhook, name)
}

fn create(context: &mut Context, args: &CreateWebhook) -> anyhow::Result<()> {
    let body = body(args)?;
    let answer = context.client.post(&Kind::Webhook.route(), Some(&body));
    let created = answer.with_context(|| format!("webhook/{}", one_line(&args.name)))?.body;
    if write_raw(context.out, context.format, &created)? {
        return Ok(());
    }
    writeln!(context.out, "{} created", resource(&args.name))?;
    if context.format != Format::Name {
        print_once(context, &created)?;
    }
    Ok(())
}

fn body(args: &CreateWebhook) -> Result<Value, Usage> {
    let mut body = json!({"name": args.name, "url": args.url, "types": args.types});
    if let Some(key) = &args.workflow_key {
        body["workflowKey"] = key.as_str().into();
    }
    if args.unordered {
        body["ordering"] = "unordered".into();
    }
    if args.ed25519 {
        body["signature"] = "ed25519".into();
    }
    let headers: Result<Map<String, Value>, Usage> = args.headers.iter().map(|text| header(text)).collect();
    let headers = headers?;
    if !headers.is_empty() {
        body["headers"] = headers.into();
    }
    if let Some(events) = args.batch {
        body["batch"]["maxEvents"] = events.into();
    }
    if let Some(size) = &args.batch_bytes {
        body["batch"]["maxBytes"] = size.as_str().into();
    }
    if let Some(secret) = &args.client_certificate {
        body["tls"]["clientCertificate"]["secret"] = secret.as_str().into();
    }
    if let Some(from) = &args.ca {
        body["tls"]["ca"] = ca(from);
    }
    Ok(body)
}

/// The server has a default for the key.
fn ca(from: &str) -> Value {
    match from.split_once('/') {
        Some((secret, key)) => json!({"secret": secret, "key": key}),
        None => json!({"secret": from}),
    }
}

fn header(text: &str) -> Result<(String, Value), Usage> {
    let parts = text.split_once('=').and_then(|(name, from)| Some((name, from.split_once('/')?)));
    let wrong = || Usage(format!("--header {text}: use NAME=SECRET/KEY, such as x-api-key=partner/api-key"));
    let (name, (secret, key)) = parts.ok_or_else(wrong)?;
    Ok((name.to_owned(), json!({"secret": secret, "key": key})))
}

/// Prints what the server shows only now.
pub fn print_once(context: &mut Context, answer: &Value) -> anyhow::Result<()> {
    let shown =
        [("/secret", "signing secret"), ("/publicKey", "public key"), ("/token", "token for the feed")];
    let mut count = 0;
    for (pointer, title) in shown {
        if let Some(value) = text(answer, pointer) {
            writeln!(context.out, "{title}: {value}")?;
            count += 1;
        }
    }
    if count > 0 {
        context.out.flush()?;
        let it = if count == 1 { "it now; it is" } else { "these now; they are" };
        eprintln!("store {it} not shown again");
    }
    Ok(())
}

fn act(
    context: &mut Context,
    name: &str,
    action: &str,
    body: Option<&Value>,
    done: &str,
) -> anyhow::Result<()> {
    let resource = resource(name);
    let answer = context.client.post(&resource.route().below(action), body);
    let answer = answer.with_context(|| resource.to_string())?;
    if !write_raw(context.out, context.format, &answer.body)? {
        writeln!(context.out, "{resource} {done}")?;
    }
    Ok(())
}

fn rotate(context: &mut Context, name: &str, overlap: Option<&str>) -> anyhow::Result<()> {
    let resource = resource(name);
    let route = resource.route().below("rotate").query_opt("overlap", overlap);
    let rotated = context.client.post(&route, None).with_context(|| resource.to_string())?.body;
    if write_raw(context.out, context.format, &rotated)? {
        return Ok(());
    }
    match text(&rotated, "/previousUntil") {
        Some(until) => {
            writeln!(context.out, "{resource} rotated; the previous secret signs too until {until}")?
        }
        None => writeln!(context.out, "{resource} rotated")?,
    }
    print_once(context, &rotated)
}

fn test(context: &mut Context, name: &str) -> anyhow::Result<()> {
    let resource = resource(name);
    let tried = context.client.post(&resource.route().below("test"), None);
    let tried = tried.with_context(|| resource.to_string())?.body;
    let succeeded = tried["succeeded"] == true;
    if !write_raw(context.out, context.format, &tried)? {
        let after = format!("after {} ms", number(&tried, "/durationMs"));
        let answered = match text(&tried, "/error") {
            Some(error) => format!("failed {after}: {}", one_line(&error)),
            None => format!("answered {} {after}", cell(&tried, "/status")),
        };
        writeln!(context.out, "{resource} {answered}")?;
        if let Some(body) = text(&tried, "/body").filter(|body| !body.is_empty()) {
            writeln!(context.out, "{}", one_line(&body))?;
        }
    }
    context.out.flush()?;
    match succeeded {
        true => Ok(()),
        false => bail!("the test call of {resource} failed"),
    }
}

// ---- the feed -------------------------------------------------------------------------------------------------

fn events(context: &mut Context, args: &WebhookEvents) -> anyhow::Result<()> {
    let mut since = args.since.clone();
    let mut left = args.limit.unwrap_or(usize::MAX);
    print_header(context)?;
    while left > 0 {
        let page = match context.client.get(&page_route(args, since.as_deref(), left.min(PAGE))) {
            Ok(page) => page,
            Err(error) => {
                let error = error.into();
                if !args.follow || since.is_none() || !is_unreachable(&error) {
                    return Err(error);
                }
                std::thread::sleep(RECONNECT);
                continue;
            }
        };
        let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
        items.iter().try_for_each(|item| print_event(context, item))?;
        context.out.flush()?;
        left = left.saturating_sub(items.len());
        let next = text(&page, "/next");
        // A page of one workflow can be empty before the end.
        if items.is_empty() && next == since && !args.follow {
            return Ok(());
        }
        since = next;
    }
    Ok(())
}

fn page_route(args: &WebhookEvents, since: Option<&str>, limit: usize) -> Route {
    let name = args.name.as_deref().map(|name| resource(name).name);
    let route = Route::new(&["webhooks", "events"]).query_opt("endpoint", name);
    let route = route.query_opt("workflowId", args.workflow.as_deref()).query_opt("since", since);
    let timeout = args.follow.then(|| format!("{}s", POLL.as_secs()));
    route.query("limit", limit).query_opt("timeout", timeout)
}

fn print_header(context: &mut Context) -> anyhow::Result<()> {
    if matches!(context.format, Format::Table | Format::Wide) {
        line(context, &["EVENT-ID", "WORKFLOW", "SEQUENCE", "TYPE", "DATA"].map(str::to_owned))?;
        context.out.flush()?;
    }
    Ok(())
}

/// One event, in the standard form or as a CloudEvent.
fn print_event(context: &mut Context, item: &Value) -> anyhow::Result<()> {
    if context.format == Format::Json {
        return Ok(writeln!(context.out, "{item}")?);
    }
    if write_raw(context.out, context.format, item)? {
        return Ok(());
    }
    let either = |one: &str, other: &str| text(item, one).unwrap_or_else(|| cell(item, other));
    let id = either("/eventId", "/eventid");
    if context.format == Format::Name {
        return Ok(writeln!(context.out, "{id}")?);
    }
    let data = match &item["data"] {
        Value::Null => "-".to_owned(),
        data => shorten(&data.to_string(), DATA_CHARS_MAX),
    };
    let workflow = either("/workflowId", "/workflowid");
    let number = either("/sequenceNumber", "/sequencenumber");
    line(context, &[id, workflow, number, cell(item, "/type"), data])
}

fn line(context: &mut Context, cells: &[String; 5]) -> anyhow::Result<()> {
    let [id, workflow, number, kind, data] = cells.each_ref().map(|cell| one_line(cell));
    writeln!(context.out, "{id:<36}   {workflow:<16}   {number:<8}   {kind:<20}   {data}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_certificates_is_optional() {
        assert_eq!(ca("partner-ca"), json!({"secret": "partner-ca"}));
        assert_eq!(ca("partner-ca/root.pem"), json!({"secret": "partner-ca", "key": "root.pem"}));
    }

    #[test]
    fn a_header_names_a_secret_and_a_key() {
        let expected = ("x-api-key".to_owned(), json!({"secret": "partner", "key": "api-key"}));
        assert_eq!(header("x-api-key=partner/api-key").ok(), Some(expected));
        for wrong in ["x-api-key", "x-api-key=partner", "partner/key"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
