//! Costs at the configured prices.

use super::text::Text;
use super::{gauge, single_amount};
use crate::config::Cost as Prices;
use crate::cost::{Cost, FunctionCost};

pub fn cost(text: &mut Text, cost: &Cost, prices: &Prices) {
    let name = "operator_cost_per_function_total";
    text.counter(name, "Cost of a function in dollars: its builds and its running time.");
    per_function(text, name, cost, FunctionCost::total);
    let name = "operator_build_cost_total";
    text.counter(name, "Cost of the builds of a function in dollars.");
    per_function(text, name, cost, |function| function.build_cost);
    single_amount(
        text,
        "operator_storage_cost_total",
        "Cost of the log and the tables in dollars.",
        cost.storage,
    );
    single_amount(
        text,
        "klambda_cost_dollars_total",
        "Cost of everything in dollars, including deleted functions and the server.",
        cost.total,
    );
    let name = "klambda_cost_budget_dollars";
    gauge(text, name, "`cost.monthlyBudget`, or 0.", prices.monthly_budget);
    let name = "klambda_cost_function_limit_dollars";
    gauge(text, name, "`cost.functionDayLimit`, or 0.", prices.function_day_limit);
}

fn per_function(text: &mut Text, name: &str, cost: &Cost, value: fn(&FunctionCost) -> f64) {
    for function in &cost.functions {
        let labels = [("function_name", function.name.as_str()), ("namespace", &function.namespace)];
        text.sample(name, &labels, value(function));
    }
}
