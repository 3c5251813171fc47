//! `secret set|list|show|delete|rekey`.
//!
//! Messages name keys and files, never a part of an argument that may be a value.

use super::{Context, delete, for_each, get};
use crate::args::{Secret, SetSecret};
use crate::confirm::confirm;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::{Format, Sheet, cell, counted, number, write_raw};
use crate::resource::Resource;
use crate::route::Route;
use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

pub fn run(context: &mut Context, action: &Secret) -> anyhow::Result<()> {
    match action {
        Secret::Set(args) => set(context, args),
        Secret::List { name, all_namespaces, limit } => {
            if *all_namespaces {
                context.client.look_everywhere();
            }
            get::simple(context, Kind::Secret, name, limit.limit)
        }
        Secret::Show { name } => for_each(name, |name| show(context, &Resource::of(Kind::Secret, name).name)),
        Secret::Delete { name, force, yes } => {
            confirm(&format!("delete secret {}", name.join(", ")), *yes)?;
            for_each(name, |name| {
                let secret = Resource::of(Kind::Secret, name);
                let route = secret.route().query_opt("force", force.then_some(true));
                delete::delete(context, &secret, &route, |_| "deleted")
            })
        }
        Secret::Rekey => rekey(context),
    }
}

fn route(name: &str) -> Route {
    Route::new(&["secrets", name])
}

fn set(context: &mut Context, args: &SetSecret) -> anyhow::Result<()> {
    let body = body(args, &mut io::stdin().lock())?;
    let title = format!("secret/{}", args.name);
    let answer = match args.replace {
        true => context.client.put(&route(&args.name), &body),
        false => context.client.patch(&route(&args.name), &body),
    };
    let answer = answer.with_context(|| title.clone())?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    match context.format {
        Format::Name => writeln!(context.out, "{title}")?,
        _ => writeln!(context.out, "{title} {}", cell(&answer.body, "/change"))?,
    }
    Ok(())
}

/// The values as the API takes them.
fn body(args: &SetSecret, stdin: &mut dyn Read) -> anyhow::Result<Value> {
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, value) in values(args, stdin)? {
        match String::from_utf8(value) {
            Ok(text) => drop(data.insert(key, text.into())),
            Err(raw) => drop(binary.insert(key, BASE64_STANDARD.encode(raw.as_bytes()).into())),
        }
    }
    for key in &args.remove {
        if data.contains_key(key) || binary.contains_key(key) {
            return Err(Usage(format!("key {key} is both set and removed")).into());
        }
        data.insert(key.clone(), Value::Null);
    }
    if data.is_empty() && binary.is_empty() && !args.replace {
        let message = "give at least one KEY=VALUE, --from-file KEY=FILE or --stdin KEY";
        return Err(Usage(message.to_owned()).into());
    }
    Ok(json!({ "data": data, "binaryData": binary }))
}

fn values(args: &SetSecret, stdin: &mut dyn Read) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut values = BTreeMap::new();
    for (index, text) in args.values.iter().chain(&args.from_literal).enumerate() {
        let not_a_pair = || Usage(format!("value {} is not of the form KEY=VALUE", index + 1));
        let (key, value) = text.split_once('=').ok_or_else(not_a_pair)?;
        add(&mut values, key, value.as_bytes().to_vec())?;
    }
    for text in &args.from_file {
        let (key, file) = key_and_file(text)?;
        let value = std::fs::read(file).map_err(|error| Usage::file(Path::new(file), &error))?;
        add(&mut values, key, value)?;
    }
    if let Some(key) = &args.stdin {
        let mut value = Vec::new();
        stdin.read_to_end(&mut value).context("cannot read stdin")?;
        if value.last() == Some(&b'\n') {
            value.pop();
        }
        if value.is_empty() {
            // Values cannot be read back, so a pipe that failed must not erase one.
            let message = format!("stdin has no value for key {key}; to store an empty value, use {key}=");
            return Err(Usage(message).into());
        }
        add(&mut values, key, value)?;
    }
    Ok(values)
}

fn add(values: &mut BTreeMap<String, Vec<u8>>, key: &str, value: Vec<u8>) -> Result<(), Usage> {
    match values.insert(key.to_owned(), value) {
        None => Ok(()),
        Some(_) => Err(Usage(format!("key {key} is given twice"))),
    }
}

fn key_and_file(text: &str) -> Result<(&str, &str), Usage> {
    if let Some(pair) = text.split_once('=') {
        return Ok(pair);
    }
    let name = Path::new(text).file_name().and_then(|name| name.to_str());
    name.map(|name| (name, text)).ok_or_else(|| Usage(format!("{text} does not name a file")))
}

pub fn show(context: &mut Context, name: &str) -> anyhow::Result<()> {
    let secret = context.client.get(&route(name)).with_context(|| format!("secret/{name}"))?;
    if write_raw(context.out, context.format, &secret)? {
        return Ok(());
    }
    if context.format == Format::Name {
        writeln!(context.out, "secret/{name}")?;
        return Ok(());
    }
    let mut sheet = Sheet::default();
    sheet.line("Name", cell(&secret, "/name"));
    sheet.line("Namespace", cell(&secret, "/namespace"));
    sheet.line("Version", cell(&secret, "/version"));
    sheet.line("Updated", cell(&secret, "/updatedAt"));
    sheet.line("Used by", list(&secret["usedBy"]));
    let unreadable = secret["unreadable"].as_array().map(|_| list(&secret["unreadable"]));
    sheet.line_opt(
        "Unreadable",
        unreadable.map(|keys| format!("{keys} (encryption key missing: set them again)")),
    );
    for key in secret["keys"].as_array().into_iter().flatten() {
        sheet.line("Key", format!("{}, {}", cell(key, "/name"), counted(number(key, "/bytes"), "byte")));
    }
    sheet.write(context.out)?;
    Ok(())
}

fn list(names: &Value) -> String {
    let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

fn rekey(context: &mut Context) -> anyhow::Result<()> {
    // It concerns all namespaces.
    let route = Route::new(&["secrets", "rekey"]).within("default");
    let report = context.client.post(&route, None)?.body;
    if write_raw(context.out, context.format, &report)? {
        return Ok(());
    }
    let secrets = counted(number(&report, "/resealed"), "secret");
    writeln!(context.out, "{secrets} encrypted with the new key {}", cell(&report, "/key"))?;
    let unused: Vec<&str> =
        report["unusedKeys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !unused.is_empty() {
        let keys = if unused.len() == 1 { "key" } else { "keys" };
        writeln!(
            context.out,
            "kept for old backups: {keys} {}; to remove a key, delete its line from the key file and restart the server",
            unused.join(", ")
        )?;
    }
    for name in report["unreadable"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        context.out.flush()?;
        eprintln!("warning: {name} cannot be read, because its encryption key is missing: set it again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(values: &[&str]) -> SetSecret {
        SetSecret {
            name: "db".into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            from_literal: Vec::new(),
            from_file: Vec::new(),
            stdin: None,
            remove: Vec::new(),
            replace: false,
        }
    }

    #[test]
    fn values_come_from_words_files_and_stdin() {
        let home = tempfile::tempdir().expect("a folder");
        let (raw, text) = (home.path().join("raw.bin"), home.path().join("text"));
        std::fs::write(&raw, [0xff, 0]).expect("written");
        std::fs::write(&text, "two\n").expect("written");
        let from_file = vec![raw.display().to_string(), format!("b={}", text.display())];
        let given = SetSecret {
            from_literal: vec!["c=x=y".into()],
            from_file,
            stdin: Some("d".into()),
            remove: vec!["e".into()],
            ..args(&["a=1"])
        };
        let body = body(&given, &mut &b"three\n"[..]).expect("a body");
        let data = json!({"a": "1", "b": "two\n", "c": "x=y", "d": "three", "e": null});
        assert_eq!(body, json!({"data": data, "binaryData": {"raw.bin": "/wA="}}));
    }

    #[test]
    fn a_slip_is_told_without_the_value() {
        for (given, told) in [
            (args(&["hush-hush"]), "value 1 is not of the form KEY=VALUE"),
            (args(&["a=1", "a=hush"]), "key a is given twice"),
            (args(&[]), "give at least one KEY=VALUE, --from-file KEY=FILE or --stdin KEY"),
            (SetSecret { remove: vec!["a".into()], ..args(&["a=hush"]) }, "key a is both set and removed"),
        ] {
            assert_eq!(body(&given, &mut io::empty()).expect_err("a slip").to_string(), told);
        }
        let nothing = SetSecret { replace: true, ..args(&[]) };
        assert!(body(&nothing, &mut io::empty()).is_ok(), "a secret may be empty");
    }
}
