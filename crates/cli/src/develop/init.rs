//! `init`: writes a function with a test and a manifest into a new folder.

use super::project::{self, MANIFEST};
use crate::args::{Init, Language};
use crate::commands::manifest;
use crate::exit::Usage;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// What differs between the languages.
struct Template {
    language: &'static str,
    handler: &'static str,
    /// The command that runs its tests.
    test: &'static str,
    files: &'static [(&'static str, &'static str)],
}

macro_rules! files {
    ($folder:literal: $($name:literal),+) => {
        &[$(($name, include_str!(concat!("../../templates/", $folder, "/", $name)))),+]
    };
}

const MANIFEST_TEMPLATE: &str = include_str!("../../templates/function.yaml");
const README_TEMPLATE: &str = include_str!("../../templates/README.md");

fn template(language: Language) -> Template {
    match language {
        Language::Nodejs => Template {
            language: "nodejs",
            handler: "index.js",
            test: "node --test",
            files: files!("nodejs": "index.js", "index.test.js"),
        },
        Language::Python => Template {
            language: "python",
            handler: "index.py",
            test: "python3 -m unittest",
            files: files!("python": "index.py", "test_index.py"),
        },
        Language::Go => Template {
            language: "go",
            handler: "index.go",
            test: "go test",
            files: files!("go": "index.go", "index_test.go", "go.mod"),
        },
    }
}

pub fn run(out: &mut dyn Write, args: &Init) -> anyhow::Result<()> {
    let path = std::path::absolute(&args.folder)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&path).ok_or_else(|| Usage("the folder has no name; use --name".to_owned()))?,
    };
    let files = template(args.language).render(&name, &path)?;
    refuse_files(&path).map_err(|error| Usage::file(&args.folder, &error))?;
    fs::create_dir_all(&path).map_err(|error| Usage::file(&args.folder, &error))?;
    for (name, text) in &files {
        write(&path.join(name), text).map_err(|error| Usage::file(&args.folder.join(name), &error))?;
        writeln!(out, "{} created", args.folder.join(name).display())?;
    }
    writeln!(out, "run it with `klambda dev {}`", args.folder.display())?;
    Ok(())
}

fn name_of(path: &Path) -> Option<String> {
    // `.` and `..` at the end name the folder they lead to.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Some(path.file_name()?.to_string_lossy().into_owned())
}

fn refuse_files(path: &Path) -> io::Result<()> {
    match fs::read_dir(path).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::Error::other("the folder is not empty; name a new one")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

impl Template {
    fn render(&self, name: &str, folder: &Path) -> Result<Vec<(&'static str, String)>, Usage> {
        // JSON strings are YAML strings too, whatever is in them.
        let quoted = serde_json::Value::from(folder.to_string_lossy());
        let manifest = MANIFEST_TEMPLATE
            .replace("{{name}}", &serde_json::Value::from(name).to_string())
            .replace("{{folder}}", &quoted.to_string())
            .replace("{{language}}", self.language);
        let valid = manifest::parse(&manifest).and_then(|mut found| match found.pop() {
            Some(document) => project::check(&document).map(drop),
            None => Err("no document".to_owned()),
        });
        valid.map_err(|fault| Usage(format!("{fault}; use --name to choose another name")))?;
        let readme = README_TEMPLATE
            .replace("{{name}}", name)
            .replace("{{handler}}", self.handler)
            .replace("{{test}}", &format!("{:<39}", self.test));
        let own = self.files.iter().map(|(name, text)| (*name, (*text).to_owned()));
        Ok(own.chain([(MANIFEST, manifest), ("README.md", readme)]).collect())
    }
}
