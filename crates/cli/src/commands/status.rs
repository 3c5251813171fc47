//! `status`: health and load of the server.

use super::Context;
use crate::exit::Usage;
use crate::output::{Format, Sheet, bytes, cell, number, text, write_raw};
use crate::route::Route;
use crate::time::span;
use serde_json::Value;

pub fn run(context: &mut Context) -> anyhow::Result<()> {
    if context.format == Format::Name {
        return Err(Usage("status prints -o table, json or yaml".to_owned()).into());
    }
    let status = context.client.get(&Route::new(&["status"]))?;
    if write_raw(context.out, context.format, &status)? {
        return Ok(());
    }
    sheet(&status, context.client.base()).write(context.out)?;
    Ok(())
}

fn sheet(status: &Value, server: &str) -> Sheet {
    let mut sheet = Sheet::default();
    let uptime = span(number(status, "/uptimeSeconds").saturating_mul(1_000));
    sheet.line("Server", server);
    sheet.line("Version", format!("{}, up {uptime}", cell(status, "/version")));
    sheet.line("Listening", cell(status, "/listening"));
    sheet.line("Data", cell(status, "/dataFolder"));
    sheet.line("Disk", disk(status));
    let (used, limit) = (number(status, "/memory/usedBytes"), number(status, "/memory/limitBytes"));
    sheet.line("Memory", format!("{} of {}", bytes(used), bytes(limit)));
    let positions = text(status, "/positions/first").zip(text(status, "/positions/last"));
    sheet.line(
        "Log",
        match positions {
            Some((first, last)) => {
                format!("{}, positions {first} to {last}", bytes(number(status, "/logBytes")))
            }
            None => format!("{}, empty", bytes(number(status, "/logBytes"))),
        },
    );
    sheet.line("Subscriptions", number(status, "/subscriptions"));
    sheet.line("Waiting", number(status, "/waiting"));
    sheet.line("In flight", number(status, "/inFlight"));
    sheet.line("Parked lanes", number(status, "/parked"));
    sheet.line("Dead letters", number(status, "/deadLetters"));
    sheet
}

fn disk(status: &Value) -> String {
    let free = bytes(number(status, "/disk/freeBytes"));
    match status.pointer("/disk/full") {
        Some(Value::Bool(true)) => format!("FULL, {free} free: no events are accepted until space is freed"),
        _ => format!("{free} free"),
    }
}
