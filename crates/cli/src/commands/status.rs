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
    let [used, limit] = ["/memory/usedBytes", "/memory/limitBytes"].map(|at| size(status, at));
    sheet.line("Memory", format!("{used} of {limit}"));
    let positions = text(status, "/positions/first").zip(text(status, "/positions/last"));
    sheet.line(
        "Log",
        match positions {
            Some((first, last)) => {
                format!("{}, positions {first} to {last}", size(status, "/logBytes"))
            }
            None => format!("{}, empty", size(status, "/logBytes")),
        },
    );
    sheet.line("Subscriptions", cell(status, "/subscriptions"));
    sheet.line("Waiting", cell(status, "/waiting"));
    sheet.line("In flight", cell(status, "/inFlight"));
    sheet.line("Parked lanes", cell(status, "/parked"));
    sheet.line("Dead letters", cell(status, "/deadLetters"));
    sheet
}

/// An older server does not know every figure; a zero would be wrong.
fn size(status: &Value, at: &str) -> String {
    status.pointer(at).and_then(Value::as_u64).map_or_else(|| "unknown".to_owned(), bytes)
}

fn disk(status: &Value) -> String {
    let free = size(status, "/disk/freeBytes");
    match status.pointer("/disk/full") {
        Some(Value::Bool(true)) => format!("FULL, {free} free: no events are accepted until space is freed"),
        _ => format!("{free} free"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_figure_that_the_server_does_not_know_is_no_zero() {
        let mut out = Vec::new();
        let old = json!({"version": "0.0.9", "uptimeSeconds": 5, "waiting": 0, "logBytes": 2048});
        sheet(&old, "http://h").write(&mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        for line in [
            "Memory:         unknown of unknown",
            "Log:            2 KiB, empty",
            "Waiting:        0",
            "Dead letters:   -",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
