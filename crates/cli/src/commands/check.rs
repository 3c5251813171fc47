//! `check`: verifies the data folder of a stopped server or of a backup.

use crate::args::Check;
use crate::exit::Usage;
use crate::output::{Format, Sheet, bytes, counted, one_line, write_raw};
use crate::progress;
use anyhow::{Context as _, anyhow, bail};
use indicatif::ProgressBar;
use klambda_dispatch::check::{self, ProblemKind, Progress, Report, Stage};
use klambda_server::event_type_check;
use klambda_server::secret_check::Keys;
use klambda_store::real_disk::{Error, RealDisk};
use std::io::Write;
use std::sync::Arc;

pub fn run(out: &mut dyn Write, format: Format, args: &Check) -> anyhow::Result<()> {
    if args.folder.is_file() {
        let file = args.folder.display();
        let fix = format!("if it is a backup, unpack it first: mkdir DIR && tar -xf {file} -C DIR");
        return Err(Usage(format!("{file} is a file, but check needs a folder; {fix}")).into());
    }
    let disk = match RealDisk::read_only(&args.folder) {
        Err(error @ Error::Held { .. }) => {
            bail!("{error}; stop the server, or check a copy made with klambda backup")
        }
        // As text, because the error's own text repeats its cause.
        other => other.map_err(|error| anyhow!("{error}"))?,
    };
    let bar = progress::reading();
    let disk: Arc<RealDisk> = Arc::new(disk);
    let keys = Keys::read(&args.folder, args.key_file.as_deref())?;
    let checked = check::check(disk.clone(), &mut |progress| show(&bar, progress));
    drop(bar);
    let mut report = checked.with_context(|| args.folder.display().to_string())?;
    // A folder that a server cannot open is a problem of the report already.
    let engine = check::open(disk).ok().map(|(engine, _)| engine);
    let secrets = engine.as_ref().map(|engine| keys.check(engine)).transpose()?.unwrap_or_default();
    let types = engine.as_ref().map(event_type_check::check).transpose()?.unwrap_or_default();
    let unreadable = secrets.unreadable.iter().filter(|_| !keys.is_empty());
    for text in secrets.damaged.iter().chain(unreadable) {
        report.problems.add(ProblemKind::Secret, text.clone());
    }
    for text in &types.damaged {
        report.problems.add(ProblemKind::EventType, text.clone());
    }
    let mut json = serde_json::to_value(&report)?;
    json["secrets"] = secrets.secrets.into();
    json["eventTypes"] = types.types.into();
    if !write_raw(out, format, &json)? {
        let unchecked = if keys.is_empty() && secrets.secrets > 0 { ", not opened: no key file" } else { "" };
        let more = [
            ("Secrets", format!("{}{unchecked}", secrets.secrets)),
            ("Event types", types.types.to_string()),
        ];
        print(out, &report, &more)?;
    }
    match report.problems.count {
        0 => Ok(()),
        count => bail!("{}: {}", args.folder.display(), problems(count)),
    }
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_message(match progress.stage {
        Stage::Tables => "tables",
        Stage::Log => "log",
        Stage::State => "state",
    });
    if progress.total > 0 {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    }
}

fn print(out: &mut dyn Write, report: &Report, more: &[(&str, String)]) -> anyhow::Result<()> {
    sheet(report, more).write(out)?;
    for problem in &report.problems.listed {
        writeln!(out, "{}", one_line(&problem.text))?;
    }
    let count = report.problems.count;
    let unlisted = count - report.problems.listed.len() as u64;
    if unlisted > 0 {
        writeln!(out, "and {unlisted} more")?;
    }
    let verdict = if count == 0 { "ok".to_owned() } else { problems(count) };
    writeln!(out, "{verdict}")?;
    Ok(())
}

fn problems(count: u64) -> String {
    counted(count, "problem")
}

/// `more`: what is stored besides subscriptions.
fn sheet(report: &Report, more: &[(&str, String)]) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.line("Segments", format!("{}, {}", report.segments, bytes(report.bytes)));
    sheet.line("Tables", format!("{}, {}", report.tables, bytes(report.table_bytes)));
    sheet.line("Frames", report.frames);
    sheet.line("Records", report.records);
    sheet.line("Events", report.events);
    sheet.line("Subscriptions", report.subscriptions);
    for (title, count) in more {
        sheet.line(title, count);
    }
    sheet.line("Lanes touched", report.lanes);
    sheet.line("Delivered", report.delivered);
    sheet.line("Waiting", report.waiting);
    sheet.line("Dead letters", report.dead_letters);
    sheet.line("Purged or dropped", report.purged);
    sheet.line("Late", report.late);
    sheet.line("Gaps", report.gaps);
    sheet.line_opt("Before the log", Some(report.before_log).filter(|count| *count > 0));
    sheet.line("Duplicate acknowledgements", report.duplicate_acknowledgements);
    sheet.line("Order violations", report.order_violations);
    sheet.line("Lost", report.lost);
    sheet.line("Unsynced tail", tail(report));
    sheet
}

/// Writes that a crash interrupted before a sync. Nobody got an answer for them, and the next start removes them.
fn tail(report: &Report) -> String {
    match &report.cut {
        None => "none".to_owned(),
        Some(cut) => {
            format!(
                "{} bytes in {} at offset {}; the next start removes them",
                cut.bytes, cut.file, cut.offset
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::time::Millis;
    use klambda_dispatch::{Config, Engine};
    use klambda_store::log::Options;

    fn checked(folder: &std::path::Path, format: Format) -> (String, anyhow::Result<()>) {
        let mut out = Vec::new();
        let result = run(&mut out, format, &Check { folder: folder.to_owned(), key_file: None });
        (String::from_utf8(out).expect("text"), result)
    }

    #[test]
    fn the_verdict_is_the_last_line_and_the_exit_code() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (_, empty) = checked(folder.path(), Format::Table);
        assert!(empty.expect_err("no data").to_string().contains(&folder.path().display().to_string()));

        let disk = Arc::new(RealDisk::open(folder.path()).expect("free"));
        let log = Options { segment_bytes: 64 << 10, reserve_bytes: 4 << 10, tail_bytes: 4 << 10 };
        let opened = Engine::open(disk, Config { log, ..Config::default() }, Millis(1), [1; 16]);
        drop(opened.expect("a new folder"));
        let (text, good) = checked(folder.path(), Format::Table);
        good.expect("nothing wrong");
        assert!(text.starts_with("Segments:") && text.ends_with("\nok\n"), "{text}");

        let key_file = Some(folder.path().join("no.key"));
        let args = Check { folder: folder.path().to_owned(), key_file };
        let no_key = run(&mut Vec::new(), Format::Table, &args).expect_err("no key file").to_string();
        assert!(no_key.ends_with("no.key does not exist"), "{no_key}");

        let (_, packed) = checked(&folder.path().join("manifest"), Format::Table);
        let packed = packed.expect_err("a file");
        assert_eq!(crate::exit::code(&packed), 2);
        assert!(packed.to_string().contains("unpack it first"), "{packed}");

        std::fs::write(folder.path().join("manifest"), "00000000\n{}").expect("written");
        let (text, bad) = checked(folder.path(), Format::Table);
        assert_eq!(crate::exit::code(&bad.expect_err("damage")), 1);
        assert!(
            text.ends_with("the manifest is damaged: the checksum does not match\n1 problem\n"),
            "{text}"
        );
        let (json, _) = checked(folder.path(), Format::Json);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["problems"]["count"], 1);
        assert_eq!(json["problems"]["listed"][0]["kind"], "damage");
    }
}
