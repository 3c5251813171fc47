//! `history` and `rollback`: list the revisions of a function or agent, and serve one of them again.

use super::function::{Place, with_place};
use super::{Context, for_each, get};
use crate::args::{History, Rollback};
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::{Format, number, write_raw};
use serde_json::{Value, json};

pub fn history(context: &mut Context, args: &History) -> anyhow::Result<()> {
    for_each(&args.functions.references(), |reference| {
        with_place(context, reference, |context, place| {
            get::list(context, Kind::Revision, place.route(&[&reference.name, "revisions"]))
        })
    })
}

pub fn rollback(context: &mut Context, args: &Rollback) -> anyhow::Result<()> {
    let reference = args.name.reference()?;
    with_place(context, &reference, |context, place| roll_back(context, place, &reference.name, args.to))
}

fn roll_back(context: &mut Context, place: Place, name: &str, to: Option<u64>) -> anyhow::Result<()> {
    let revision = match to {
        Some(number) => number,
        None => one_before(&context.client.get(&place.route(&[name]))?)?,
    };
    let body = json!({ "revision": revision });
    let answer = context.client.post(&place.route(&[name, "rollback"]), Some(&body))?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    let title = place.title(name);
    match context.format {
        Format::Name => writeln!(context.out, "{title}")?,
        _ => {
            if answer.body["change"] == "unchanged" {
                writeln!(context.out, "{title} already serves revision {revision}; nothing changed")?;
                return Ok(());
            }
            let generation = number(&answer.body, "/generation");
            writeln!(context.out, "{title} rolled back to revision {revision} as generation {generation}")?;
        }
    }
    Ok(())
}

/// The revision before the current spec. If the current spec does not serve, that is the serving revision.
fn one_before(item: &Value) -> Result<u64, Usage> {
    let revisions = item["status"]["revisions"].as_array().map_or(&[][..], Vec::as_slice);
    let numbers: Vec<u64> = revisions.iter().map(|revision| number(revision, "/number")).collect();
    let (serves, wants) =
        (number(item, "/status/serviceStatus/generation"), number(item, "/metadata/generation"));
    let before = if serves == wants { numbers.iter().rev().nth(1) } else { numbers.last() };
    let none = || Usage("no earlier revision to roll back to".to_owned());
    before.copied().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_before_is_what_served_before_the_last_apply() {
        let item = |serves: u64, wants: u64, numbers: &[u64]| {
            let revisions: Vec<Value> = numbers.iter().map(|number| json!({ "number": number })).collect();
            json!({ "metadata": { "generation": wants },
                "status": { "revisions": revisions, "serviceStatus": { "generation": serves } } })
        };
        assert_eq!(one_before(&item(4, 4, &[1, 2, 3])).expect("one"), 2);
        assert_eq!(one_before(&item(3, 4, &[1, 2, 3])).expect("one"), 3);
        assert!(one_before(&item(1, 1, &[1])).is_err());
        assert!(one_before(&item(0, 1, &[])).is_err());
    }
}
