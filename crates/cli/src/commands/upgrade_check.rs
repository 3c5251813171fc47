//! `upgrade-check`: whether this version can open a data folder. Changes nothing.

use crate::args::UpgradeCheck;
use crate::output::{Format, Sheet, counted, write_raw};
use anyhow::{anyhow, bail};
use klambda_dispatch::check;
use klambda_server::event_type_check;
use klambda_server::secret_check::Keys;
use klambda_store::manifest::{self, Manifest};
use klambda_store::real_disk::{Error, RealDisk};
use klambda_store::recovery;
use serde::Serialize;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Findings {
    /// The version of this program.
    version: &'static str,
    /// `None` for a folder without data.
    format: Option<u32>,
    in_use: bool,
    /// The other members are `None` while the folder is in use.
    closed_cleanly: Option<bool>,
    secrets: Option<u64>,
    has_keys: bool,
}

pub fn run(out: &mut dyn Write, format: Format, args: &UpgradeCheck) -> anyhow::Result<()> {
    let folder = &args.folder;
    let findings = look(folder, args.key_file.as_deref()).map_err(|error| {
        anyhow!("klambda {} cannot open {}: {error:#}", env!("CARGO_PKG_VERSION"), folder.display())
    })?;
    if !write_raw(out, format, &serde_json::to_value(&findings)?)? {
        sheet(&findings).write(out)?;
        writeln!(out, "{}", verdict(&findings))?;
    }
    Ok(())
}

fn look(folder: &Path, key_file: Option<&Path>) -> anyhow::Result<Findings> {
    match RealDisk::read_only(folder) {
        Ok(disk) => stopped(disk, folder, key_file),
        Err(Error::Held { .. }) => in_use(folder, key_file),
        Err(Error::Io { source, .. }) => bail!("{source}"),
        Err(error @ Error::NotAFolder(_)) => bail!("{error}"),
    }
}

/// A server uses the folder, so only files that are replaced as a whole can be read.
fn in_use(folder: &Path, key_file: Option<&Path>) -> anyhow::Result<Findings> {
    let manifest = Manifest::load(&RealDisk::unlocked(folder)?)?.ok_or(manifest::Error::Missing)?;
    let has_keys = !Keys::read(folder, key_file)?.is_empty();
    Ok(Findings { in_use: true, has_keys, ..Findings::new(Some(manifest.format)) })
}

fn stopped(disk: RealDisk, folder: &Path, key_file: Option<&Path>) -> anyhow::Result<Findings> {
    let keys = Keys::read(folder, key_file)?;
    let Some(manifest) = Manifest::load(&disk)? else {
        must_be_new(folder)?;
        return Ok(Findings { has_keys: !keys.is_empty(), ..Findings::new(None) });
    };
    let opened = check::open(Arc::new(disk));
    let (engine, recovered) = opened
        .map_err(|failure| anyhow!("{failure}; `klambda check {}` lists all damage", folder.display()))?;
    let secrets = keys.check(&engine)?;
    if let Some(first) = secrets.damaged.first().or(secrets.unreadable.first()) {
        let count = counted((secrets.damaged.len() + secrets.unreadable.len()) as u64, "secret");
        bail!("{count} cannot be used ({first}): put the key file back, or name it with --key-file");
    }
    let types = event_type_check::check(&engine)?;
    if let Some(first) = types.damaged.first() {
        bail!("{} cannot be used ({first})", counted(types.damaged.len() as u64, "event type"));
    }
    Ok(Findings {
        closed_cleanly: Some(recovered == recovery::Report::default()),
        secrets: Some(secrets.secrets),
        has_keys: !keys.is_empty(),
        ..Findings::new(Some(manifest.format))
    })
}

/// A folder without a manifest is a new one: it has nothing in it, or only a key file that was put there.
fn must_be_new(folder: &Path) -> anyhow::Result<()> {
    const ALLOWED: [&str; 3] = ["lock", "secrets.key", "lost+found"];
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !ALLOWED.iter().any(|allowed| name == *allowed) {
            bail!("it is not a data folder: it has no manifest, but it has {}", name.display());
        }
    }
    Ok(())
}

impl Findings {
    fn new(format: Option<u32>) -> Findings {
        let version = env!("CARGO_PKG_VERSION");
        Findings { version, format, in_use: false, closed_cleanly: None, secrets: None, has_keys: false }
    }
}

fn sheet(findings: &Findings) -> Sheet {
    let mut sheet = Sheet::default();
    let format = findings.format.map(|format| format!("{format} (this version uses {})", manifest::FORMAT));
    sheet.line("Format", format.unwrap_or_else(|| "none: the folder has no data yet".to_owned()));
    sheet.line("In use", if findings.in_use { "yes, by a server" } else { "no" });
    let closed = findings.closed_cleanly.map(|cleanly| match cleanly {
        true => "yes",
        false => "no: the next start reads the end of the log again",
    });
    sheet.line_opt("Closed cleanly", closed);
    sheet.line_opt("Secrets", findings.secrets);
    sheet.line("Encryption keys", if findings.has_keys { "found" } else { "none" });
    sheet
}

fn verdict(findings: &Findings) -> String {
    let version = findings.version;
    match findings.in_use {
        true => format!(
            "ok: klambda {version} supports the format; stop the server and run this again to check the content"
        ),
        false => format!("ok: klambda {version} can open it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn fixture(format: u32) -> PathBuf {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dispatch/tests/fixtures");
        fixtures.join(format!("format-{format}"))
    }

    fn copy(format: u32) -> tempfile::TempDir {
        let copy = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(fixture(format)).expect("a fixture") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
        }
        copy
    }

    fn checked(folder: &Path) -> Result<String, String> {
        let mut out = Vec::new();
        let args = UpgradeCheck { folder: folder.to_owned(), key_file: None };
        run(&mut out, Format::Table, &args).map_err(|error| {
            assert_eq!(crate::exit::code(&error), 1);
            error.to_string()
        })?;
        Ok(String::from_utf8(out).expect("text"))
    }

    fn contents(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
        let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
        let mut all: Vec<_> =
            entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("a file"))).collect();
        all.sort();
        all
    }

    #[test]
    fn a_folder_of_this_format_can_be_opened_and_stays_as_it_is() {
        let folder = copy(manifest::FORMAT);
        let before = contents(folder.path());
        let text = checked(folder.path()).expect("this version can open it");
        assert!(text.starts_with("Format:") && text.ends_with("can open it\n"), "{text}");
        assert!(text.contains("no: the next start reads the end of the log again"), "{text}");
        assert_eq!(contents(folder.path()), before);
    }

    #[test]
    fn a_named_key_file_must_exist() {
        let folder = copy(manifest::FORMAT);
        let missing = folder.path().join("no.key");
        let args = UpgradeCheck { folder: folder.path().to_owned(), key_file: Some(missing.clone()) };
        let refused = run(&mut Vec::new(), Format::Table, &args).expect_err("no key file").to_string();
        assert!(
            refused.ends_with(&format!("the key file {} does not exist", missing.display())),
            "{refused}"
        );
    }

    #[test]
    fn a_folder_in_use_is_named_so() {
        let folder = copy(manifest::FORMAT);
        let held = RealDisk::open(folder.path()).expect("free");
        let text = checked(folder.path()).expect("a supported format");
        assert!(text.contains("yes, by a server") && text.contains("stop the server"), "{text}");
        drop(held);
    }

    #[test]
    fn other_formats_are_refused_with_what_to_do() {
        for in_use in [false, true] {
            let (old, new) = (copy(2), copy(manifest::FORMAT));
            let newer = Manifest { format: 99, ..Manifest::new([0; 16]) };
            std::fs::write(new.path().join("manifest"), newer.encode().expect("JSON")).expect("written");
            let held =
                in_use.then(|| [&old, &new].map(|folder| RealDisk::open(folder.path()).expect("free")));
            let refused = checked(old.path()).expect_err("an old format");
            assert!(refused.contains("has format 2") && refused.contains("deliver all pending"), "{refused}");
            let refused = checked(new.path()).expect_err("a newer format");
            assert!(refused.ends_with("use the version that wrote it"), "{refused}");
            assert!(!refused.contains('\n'), "{refused}");
            drop(held);
        }
    }

    #[test]
    fn a_folder_without_data_and_no_folder_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(checked(folder.path()).expect("an empty folder").contains("no data yet"));
        assert_eq!(contents(folder.path()), []);
        let missing = checked(&folder.path().join("none")).expect_err("no folder");
        assert!(missing.contains("No such file or directory"), "{missing}");
    }
}
