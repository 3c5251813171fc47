//! `cost`: costs since the start of the server, by function and namespace.

use super::Context;
use crate::exit::Usage;
use crate::output::{Format, Sheet, Table, bytes, cell, number, write_raw};
use crate::route::Route;
use crate::time::span;
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub fn run(context: &mut Context) -> anyhow::Result<()> {
    if context.format == Format::Name {
        return Err(Usage("cost prints -o table, json or yaml".to_owned()).into());
    }
    let cost = context.client.get(&Route::new(&["cost"]))?;
    if write_raw(context.out, context.format, &cost)? {
        return Ok(());
    }
    let mut functions = cost["functions"].as_array().cloned().unwrap_or_default();
    functions.extend(deleted(&cost, &functions));
    by_function(&functions).write(context.out, "")?;
    writeln!(context.out)?;
    by_namespace(&functions).write(context.out, "")?;
    writeln!(context.out)?;
    sheet(&cost).write(context.out)?;
    Ok(())
}

/// The total includes functions that were deleted. Only the sum of their costs is known.
fn deleted(cost: &Value, functions: &[Value]) -> Option<Value> {
    let listed: f64 = functions.iter().map(total).sum();
    let rest = amount(cost, "/total") - amount(cost, "/server") - amount(cost, "/storage") - listed;
    // Less than the last digit that is shown.
    (rest >= 0.000_000_5).then(|| json!({"name": "(deleted functions)", "deletedCost": rest}))
}

fn by_function(functions: &[Value]) -> Table {
    let mut table = Table::new(&["NAMESPACE", "FUNCTION", "BUILDS", "BUILD-COST", "RUNNING-COST", "TOTAL"]);
    for function in functions {
        let part =
            |at: &str| function.pointer(at).and_then(Value::as_f64).map_or_else(|| "-".to_owned(), dollars);
        table.row(vec![
            cell(function, "/namespace"),
            cell(function, "/name"),
            cell(function, "/builds"),
            part("/buildCost"),
            part("/runningCost"),
            dollars(total(function)),
        ]);
    }
    table
}

fn by_namespace(functions: &[Value]) -> Table {
    let mut totals: BTreeMap<String, f64> = BTreeMap::new();
    for function in functions {
        *totals.entry(cell(function, "/namespace")).or_default() += total(function);
    }
    let mut table = Table::new(&["NAMESPACE", "TOTAL"]);
    totals.into_iter().for_each(|(namespace, total)| table.row(vec![namespace, dollars(total)]));
    table
}

fn sheet(cost: &Value) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.line("Since", format!("{} ago", span(number(cost, "/uptimeSeconds").saturating_mul(1_000))));
    let stored = bytes(number(cost, "/storageBytes"));
    sheet.line("Storage", format!("{} for {stored}", dollars(amount(cost, "/storage"))));
    sheet.line("Server", dollars(amount(cost, "/server")));
    sheet.line("Total", dollars(amount(cost, "/total")));
    let budget = Some(amount(cost, "/monthlyBudget")).filter(|budget| *budget > 0.0);
    sheet.line_opt("Monthly budget", budget.map(dollars));
    sheet
}

fn total(function: &Value) -> f64 {
    ["/buildCost", "/runningCost", "/deletedCost"].iter().map(|at| amount(function, at)).sum()
}

fn amount(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0)
}

/// Small amounts need more digits.
fn dollars(amount: f64) -> String {
    if amount >= 1.0 { format!("${amount:.2}") } else { format!("${amount:.6}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_add_up_to_the_total() {
        let cost = json!({"total": 1.0, "server": 0.25, "storage": 0.25,
            "functions": [{"namespace": "default", "name": "f", "buildCost": 0.125, "runningCost": 0.125}]});
        let functions = cost["functions"].as_array().cloned().unwrap_or_default();
        let rest = deleted(&cost, &functions).expect("a row");
        assert_eq!((total(&rest), rest["name"].as_str()), (0.25, Some("(deleted functions)")));
        let exact = json!({"total": 0.75, "server": 0.25, "storage": 0.25});
        assert_eq!(deleted(&exact, &functions), None);
    }
}
