//! `context add|use|list|show|delete`: servers that have a name. Nothing here prints a token.

use super::for_each;
use crate::args::{AddContext, ContextCommand, Global};
use crate::client;
use crate::contexts::{Contexts, Entry, Folder, check_name};
use crate::exit::Usage;
use crate::output::{Format, Sheet, Table, list_of, write_raw};
use serde_json::{Value, json};
use std::io::Write;

pub fn run(out: &mut dyn Write, global: &Global, action: &ContextCommand) -> anyhow::Result<()> {
    let folder = Folder::of_user().ok_or_else(Folder::missing)?;
    let changes = !matches!(action, ContextCommand::List | ContextCommand::Show { .. });
    let _lock = changes.then(|| folder.lock()).transpose()?;
    let contexts = folder.read()?;
    match action {
        ContextCommand::Add(args) => add(out, &folder, contexts, global, args),
        ContextCommand::Use { name } => select(out, &folder, contexts, name),
        ContextCommand::List => list(out, &folder, &contexts, global.output),
        ContextCommand::Show { name } => show(out, &folder, &contexts, global, name.as_deref()),
        ContextCommand::Delete { name } => delete(out, &folder, contexts, name),
    }
}

fn add(
    out: &mut dyn Write,
    folder: &Folder,
    mut contexts: Contexts,
    global: &Global,
    args: &AddContext,
) -> anyhow::Result<()> {
    let name = &args.name;
    check_name(name)?;
    if contexts.contexts.contains_key(name) && !args.replace {
        return Err(Usage(format!("context {name} exists; --replace overwrites it")).into());
    }
    let entry = entry(global)?;
    match token(global, args)? {
        Some(token) => folder.write_token(name, &token)?,
        None => folder.delete_token(name)?,
    }
    contexts.contexts.insert(name.clone(), entry);
    let is_first = contexts.current.is_none();
    contexts.current.get_or_insert_with(|| name.clone());
    folder.write(&contexts)?;
    let note = if is_first { "; it is the current context now" } else { "" };
    writeln!(out, "context/{name} added{note}")?;
    Ok(())
}

fn entry(global: &Global) -> anyhow::Result<Entry> {
    let Some(server) = &global.server else {
        return Err(Usage("--server URL is required".to_owned()).into());
    };
    let absolute = |file: &std::path::PathBuf| {
        client::read_certificates(file)?;
        anyhow::Ok(std::path::absolute(file)?)
    };
    let ca_file = global.ca_file.as_ref().map(absolute).transpose()?;
    Ok(Entry { server: client::base_url(server)?, ca_file, namespace: global.namespace.clone() })
}

fn token(global: &Global, args: &AddContext) -> anyhow::Result<Option<String>> {
    if args.token_stdin {
        let text = std::io::read_to_string(std::io::stdin())?;
        let token = client::first_token(&text).ok_or_else(|| Usage("no token on stdin".to_owned()))?;
        return Ok(Some(token.to_owned()));
    }
    global.token_file.as_deref().map(client::read_token).transpose()
}

fn select(out: &mut dyn Write, folder: &Folder, mut contexts: Contexts, name: &str) -> anyhow::Result<()> {
    let server = contexts.entry(name)?.server.clone();
    contexts.current = Some(name.to_owned());
    folder.write(&contexts)?;
    writeln!(out, "context/{name} is the current context: {server}")?;
    Ok(())
}

fn list(out: &mut dyn Write, folder: &Folder, contexts: &Contexts, format: Format) -> anyhow::Result<()> {
    let names = contexts.contexts.keys();
    if format == Format::Name {
        names.into_iter().try_for_each(|name| writeln!(out, "context/{name}"))?;
        return Ok(());
    }
    let items: Vec<Value> = names.filter_map(|name| described(folder, contexts, name)).collect();
    if write_raw(out, format, &list_of(items.clone()))? {
        return Ok(());
    }
    if items.is_empty() {
        eprintln!("no contexts found; add one with `klambda context add NAME --server URL`");
        return Ok(());
    }
    let mut table = Table::new(&["CURRENT", "NAME", "SERVER", "NAMESPACE", "TOKEN"]);
    for item in &items {
        let cell = |name: &str| crate::output::cell(item, &format!("/{name}"));
        let current = if item["current"] == true { "*" } else { "" };
        table.row(vec![current.to_owned(), cell("name"), cell("server"), cell("namespace"), has_token(item)]);
    }
    table.write(out, "")?;
    Ok(())
}

/// A context without its token.
fn described(folder: &Folder, contexts: &Contexts, name: &str) -> Option<Value> {
    let entry = contexts.contexts.get(name)?;
    Some(json!({
        "name": name, "current": contexts.current.as_deref() == Some(name), "server": entry.server,
        "namespace": entry.namespace, "caFile": entry.ca_file, "tokenFile": folder.token(name),
    }))
}

fn has_token(item: &Value) -> String {
    if item["tokenFile"].is_null() { "no" } else { "yes" }.to_owned()
}

fn show(
    out: &mut dyn Write,
    folder: &Folder,
    contexts: &Contexts,
    global: &Global,
    name: Option<&str>,
) -> anyhow::Result<()> {
    let name = name.or(global.context.as_deref()).or(contexts.current.as_deref());
    let name = name
        .ok_or_else(|| Usage("no current context; choose one with `klambda context use NAME`".to_owned()))?;
    contexts.entry(name)?;
    let item = described(folder, contexts, name).unwrap_or_default();
    if write_raw(out, global.output, &item)? {
        return Ok(());
    }
    if global.output == Format::Name {
        writeln!(out, "context/{name}")?;
        return Ok(());
    }
    let text = |member: &str| crate::output::text(&item, &format!("/{member}"));
    let mut sheet = Sheet::default();
    sheet.line("Name", name);
    sheet.line("Current", if item["current"] == true { "yes" } else { "no" });
    sheet.line_opt("Server", text("server"));
    sheet.line_opt("Namespace", text("namespace"));
    sheet.line_opt("CA file", text("caFile"));
    sheet.line("Token", text("tokenFile").map_or_else(|| "none".to_owned(), |file| format!("in {file}")));
    sheet.write(out)?;
    Ok(())
}

fn delete(
    out: &mut dyn Write,
    folder: &Folder,
    mut contexts: Contexts,
    names: &[String],
) -> anyhow::Result<()> {
    for_each(names, |name| {
        contexts.entry(name)?;
        folder.delete_token(name)?;
        contexts.contexts.remove(name);
        let was_current = contexts.current.take_if(|current| current == name).is_some();
        folder.write(&contexts)?;
        let note = if was_current { "; no context is current now" } else { "" };
        writeln!(out, "context/{name} deleted{note}")?;
        Ok(())
    })
}
