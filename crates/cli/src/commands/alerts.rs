//! `alerts`: the alerting rules for Prometheus.

use crate::alerts::Rules;
use crate::args;
use crate::exit::Usage;
use crate::output::Format;
use serde::Serialize;
use std::io::Write;

pub fn run(out: &mut dyn Write, format: Format, args: &args::Alerts) -> anyhow::Result<()> {
    let rules = Rules::new(args.scale, &args.runbooks);
    match args.kubernetes {
        true => print(out, format, &rules.resource()),
        false => print(out, format, &rules),
    }
}

fn print(out: &mut dyn Write, format: Format, document: &impl Serialize) -> anyhow::Result<()> {
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(document)?)?,
        Format::Table | Format::Yaml => write!(out, "{}", serde_saphyr::to_string(document)?)?,
        Format::Wide | Format::Name | Format::Extract(_) => {
            return Err(Usage("alerts prints -o yaml or -o json".to_owned()).into());
        }
    }
    Ok(())
}
