//! `dashboards`: the dashboards for Grafana.

use crate::args;
use crate::dashboards::all;
use crate::exit::Usage;
use crate::output::Format;
use anyhow::Context as _;
use std::io::Write;

pub fn run(out: &mut dyn Write, format: Format, args: &args::Dashboards) -> anyhow::Result<()> {
    if !matches!(format, Format::Table | Format::Json) {
        return Err(Usage("dashboards prints -o json".to_owned()).into());
    }
    let Some(folder) = &args.out else {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&all())?)?);
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for dashboard in all() {
        let file = folder.join(format!("{}.json", dashboard.uid));
        let text = serde_json::to_string_pretty(&dashboard)? + "\n";
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(out, "{}", file.display())?;
    }
    Ok(())
}
