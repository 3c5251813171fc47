//! The script of the demo: the function before and after the fix, and the events of three orders.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};

pub const FUNCTION: &str = "orders";
pub const SUBSCRIPTION: &str = "lambda.default.orders";
pub const ORDERS: [&str; 3] = ["order-7", "order-8", "order-9"];
pub const STEPS: [&str; 6] = ["placed", "paid", "packed", "shipped", "delivered", "rated"];
/// Sent twice.
#[cfg(test)]
pub const TWICE: Step = Step { order: 0, sequence: 2 };
/// Sent last, after its order has waited for it.
pub const MISSING: Step = Step { order: 1, sequence: 3 };
/// Its total is a text. The handler fails on it until it is fixed.
pub const POISON: Step = Step { order: 2, sequence: 3 };
/// Attempts before a lane is parked.
pub const ATTEMPTS: u64 = 2;

/// The order of arrival: order and sequence. In every order, some events arrive out of sequence.
const ARRIVALS: [(usize, u64); 18] = [
    (0, 1),
    (2, 2),
    (1, 1),
    (0, 3),
    (2, 1),
    (1, 2),
    (0, 2),
    (2, 4),
    (1, 5),
    (0, 2),
    (2, 3),
    (0, 5),
    (1, 4),
    (0, 4),
    (2, 6),
    (0, 6),
    (2, 5),
    (1, 6),
];

/// One step of one order: an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Its place in [`ORDERS`].
    pub order: usize,
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    Nodejs,
    Python,
}

/// The handler before and after the fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draft {
    First,
    Fixed,
}

pub fn arrivals() -> impl Iterator<Item = Step> {
    ARRIVALS.into_iter().map(|(order, sequence)| Step { order, sequence })
}

impl Step {
    /// All of them, by sequence.
    pub fn all() -> impl Iterator<Item = Step> {
        let of = |order| (1..=STEPS.len() as u64).map(move |sequence| Step { order, sequence });
        (0..ORDERS.len()).flat_map(of)
    }

    pub fn id(self) -> String {
        format!("{}-{}", ORDERS[self.order], self.sequence)
    }

    pub fn event(self) -> Value {
        let price = 10 * (self.order as u64 + 1) + self.sequence;
        let total = if self == POISON { json!(price.to_string()) } else { json!(price) };
        let word = usize::try_from(self.sequence - 1).ok().and_then(|at| STEPS.get(at)).unwrap_or(&"changed");
        json!({
            "specversion": "1.0", "type": format!("order.{word}"), "source": "/shop", "id": self.id(),
            "partitionkey": ORDERS[self.order], "sequence": self.sequence.to_string(),
            "datacontenttype": "application/json", "data": {"total": total},
        })
    }
}

impl Language {
    /// The first language that is installed.
    pub fn find() -> Option<Language> {
        [Language::Nodejs, Language::Python].into_iter().find(|language| language.is_there())
    }

    fn is_there(self) -> bool {
        let program = if self == Language::Python { "python3" } else { "node" };
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Nodejs => "nodejs",
        }
    }

    pub fn line(self, draft: Draft) -> &'static str {
        match (self, draft) {
            (Language::Python, Draft::First) => r#"total = round(event.data["total"] * 1.19, 2)"#,
            (Language::Python, Draft::Fixed) => r#"total = round(float(event.data["total"]) * 1.19, 2)"#,
            (Language::Nodejs, Draft::First) => "const total = event.data.total.toFixed(2);",
            (Language::Nodejs, Draft::Fixed) => "const total = Number(event.data.total).toFixed(2);",
        }
    }

    /// The handler writes each result to a file, so that the demo can check it from outside.
    fn code(self, draft: Draft) -> String {
        let text = match self {
            Language::Python => PYTHON,
            Language::Nodejs => NODEJS,
        };
        text.replace("{line}", self.line(draft))
    }
}

const PYTHON: &str = r#"import json, os, time

def note(event, outcome):
    line = {"id": event.id, "key": event.partitionkey, "sequence": int(event.sequence), "outcome": outcome}
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(json.dumps(line) + "\n")

def handler(event, context):
    time.sleep(0.15)
    try:
        {line}
    except TypeError:
        note(event, "failed")
        raise
    note(event, "handled")
    return {"total": total}
"#;

const NODEJS: &str = r#"const fs = require('node:fs');

const note = (event, outcome) => {
  const { id, partitionkey: key, sequence } = event;
  fs.appendFileSync(process.env.JOURNAL, JSON.stringify({ id, key, sequence: Number(sequence), outcome }) + '\n');
};

exports.handler = async (event) => {
  await new Promise((done) => setTimeout(done, 150));
  try {
    {line}
    note(event, 'handled');
    return { total };
  } catch (error) {
    note(event, 'failed');
    throw error;
  }
};
"#;

pub fn manifest(language: Language, draft: Draft, journal: &Path) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction",
        "metadata": {"name": FUNCTION},
        "spec": {
            "source": {"type": "inline", "inline": {"code": language.code(draft)}},
            "runtime": {"language": language.name()},
            "env": [{"name": "JOURNAL", "value": journal.to_string_lossy()}],
            "triggers": [{"filters": [{"prefix": {"type": "order."}}]}],
            "ordering": "ordered",
            "orderingPolicy": {
                "key": {"attribute": "partitionkey"},
                "sequence": {"attribute": "sequence", "start": 1},
                "gap": {"timeout": "1m", "action": "park"},
            },
            "retry": {"attempts": ATTEMPTS, "backoff": "200ms"},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_has_all_it_promises() {
        let mut arrivals: Vec<Step> = arrivals().collect();
        for order in 0..ORDERS.len() {
            let of_it: Vec<Step> = arrivals.iter().copied().filter(|step| step.order == order).collect();
            assert!(!of_it.is_sorted(), "{order} arrives as it happened");
        }
        assert_eq!(arrivals.iter().filter(|step| **step == TWICE).count(), 2);
        assert!(!arrivals.contains(&MISSING));
        arrivals.push(MISSING);
        arrivals.sort_unstable();
        arrivals.dedup();
        assert!(arrivals.into_iter().eq(Step::all()));
        assert_eq!(POISON.event()["data"]["total"], "33");
    }
}
