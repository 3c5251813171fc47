//! Node.js: installs the dependencies of `package.json` and the manifest with npm, and checks the syntax of the handler.

use crate::step::Bench;
use crate::{Error, Request, Tool, files};
use serde_json::{Map, Value};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const NOT_FOUND: [&str; 5] =
    ["No matching version", "is not in this registry", "404 Not Found", "E404", "ETARGET"];
const ONLY_IN_MODULES: [&str; 3] =
    ["Unexpected token 'export'", "Cannot use import statement", "await is only valid"];

pub(crate) async fn build(request: &Request, tool: &Tool, bench: &Bench) -> Result<(), Error> {
    let code = bench.code();
    let file = handler_file(request, &code)?;
    let listed = add_dependencies(&request.dependencies, &code)?;
    if listed {
        install(request, tool, bench).await?;
    }
    check_syntax(tool, bench, &file).await?;
    look_for_function(request, &file)
}

/// What a builder of images has to do.
pub(crate) struct Prepared {
    /// The file of the handler, relative to the code.
    pub(crate) file: String,
    /// The command of npm, if there is something to install.
    pub(crate) install: Option<&'static str>,
    /// Without a `package.json`, only a check tells whether the file is a module.
    pub(crate) may_be_module: bool,
}

/// Adds the dependencies of the manifest to the code, without running anything.
pub(crate) fn prepare(request: &Request, code: &Path) -> Result<Prepared, Error> {
    let file = handler_file(request, code)?;
    look_for_function(request, &file)?;
    let has_package = code.join("package.json").is_file();
    let listed = add_dependencies(&request.dependencies, code)?;
    Ok(Prepared {
        file: file.strip_prefix(code).unwrap_or(&file).display().to_string(),
        install: listed.then(|| install_verb(request, code)),
        may_be_module: !has_package && !listed,
    })
}

/// A lock file is used only if the manifest adds no dependencies.
fn install_verb(request: &Request, code: &Path) -> &'static str {
    let locked = code.join("package-lock.json").is_file() && request.dependencies.trim().is_empty();
    if locked { "ci" } else { "install" }
}

fn handler_file(request: &Request, code: &Path) -> Result<PathBuf, Error> {
    let (file, _) = request.handler_parts()?;
    let suffixes = [".js", ".cjs", ".mjs", "/index.js", "/index.mjs"];
    let found =
        suffixes.iter().map(|suffix| code.join(format!("{file}{suffix}"))).find(|path| path.is_file());
    found.ok_or_else(|| Error::HandlerMissing {
        message: format!(
            "the handler {} needs a file {file}.js, which does not exist in the source",
            request.handler
        ),
    })
}

/// Adds the dependencies of the manifest to `package.json`. Returns whether there are any to install.
fn add_dependencies(text: &str, code: &Path) -> Result<bool, Error> {
    let path = code.join("package.json");
    let own = files::read_if_there(&path)?;
    let more = parse_dependencies(text)?;
    let mut package: Map<String, Value> = match &own {
        Some(text) => {
            serde_json::from_str(text).map_err(|e| wrong(format!("package.json is not valid JSON: {e}")))?
        }
        None => Map::new(),
    };
    let listed = package.entry("dependencies").or_insert_with(|| Map::new().into());
    let listed = listed
        .as_object_mut()
        .ok_or_else(|| wrong("dependencies in package.json must be an object".into()))?;
    let changed = !more.is_empty();
    listed.extend(more);
    let any = !listed.is_empty();
    if changed {
        files::write(&path, Value::from(package).to_string().as_bytes())?;
    }
    Ok(any)
}

/// Parses a `package.json`, its `dependencies` alone, or lines of `name@version`.
fn parse_dependencies(text: &str) -> Result<Map<String, Value>, Error> {
    let text = text.trim();
    if text.starts_with('{') {
        let mut object: Map<String, Value> = serde_json::from_str(text)
            .map_err(|e| wrong(format!("the dependencies are not valid JSON: {e}")))?;
        return match object.remove("dependencies") {
            Some(Value::Object(inner)) => Ok(inner),
            Some(_) => Err(wrong("dependencies must be an object of names and versions".into())),
            None if object.values().all(Value::is_string) && !object.contains_key("name") => Ok(object),
            None => Ok(Map::new()),
        };
    }
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(parse_line).collect())
}

fn parse_line(line: &str) -> (String, Value) {
    match line.rsplit_once('@') {
        Some((name, version)) if !name.is_empty() => (name.trim().to_owned(), version.trim().into()),
        _ => (line.to_owned(), "latest".into()),
    }
}

fn wrong(message: String) -> Error {
    Error::SyntaxError { message, log: Vec::new() }
}

async fn install(request: &Request, tool: &Tool, bench: &Bench) -> Result<(), Error> {
    let verb = install_verb(request, &bench.code());
    let words = [verb, "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"];
    let args = words.map(OsStr::new);
    let beside = tool.path.with_file_name("npm");
    let npm = if beside.is_file() { beside.into_os_string() } else { "npm".into() };
    match bench.run(tool, &npm, &args).await? {
        true => Ok(()),
        false => Err(bench.installation_failed("npm", &NOT_FOUND)),
    }
}

async fn check_syntax(tool: &Tool, bench: &Bench, file: &Path) -> Result<(), Error> {
    if passes(tool, bench, file).await? {
        return Ok(());
    }
    let package = bench.code().join("package.json");
    if bench.line_with(&ONLY_IN_MODULES).is_some() && !package.exists() {
        // A single file with module syntax: tell Node to load it as a module.
        files::write(&package, b"{\"type\":\"module\"}")?;
        if passes(tool, bench, file).await? {
            return Ok(());
        }
    }
    let message = bench.line_with(&["Error:"]).unwrap_or_else(|| "node reported an error".to_owned());
    let name = file.strip_prefix(bench.code()).unwrap_or(file).display().to_string();
    Err(bench.syntax_error(format!("{name}: {message}")))
}

async fn passes(tool: &Tool, bench: &Bench, file: &Path) -> Result<bool, Error> {
    bench.run(tool, tool.path.as_os_str(), &[OsStr::new("--check"), file.as_os_str()]).await
}

/// Detects a missing function: its name occurs nowhere, and the file re-exports nothing.
fn look_for_function(request: &Request, file: &Path) -> Result<(), Error> {
    let (_, function) = request.handler_parts()?;
    let text = files::read(file)?;
    let passes_on = ["export *", "module.exports", "export default"].iter().any(|words| text.contains(words));
    if passes_on || text.contains(function) {
        return Ok(());
    }
    let file = file.file_name().unwrap_or_default().display();
    Err(Error::HandlerMissing { message: format!("{file} exports no function {function}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_come_in_three_forms() {
        let parse = |text: &str| Value::from(parse_dependencies(text).expect("valid")).to_string();
        assert_eq!(
            parse("# c\nis-number@7.0.0\n@a/b@^1\nx\n"),
            r#"{"@a/b":"^1","is-number":"7.0.0","x":"latest"}"#
        );
        assert_eq!(parse(r#"{"is-number": "7"}"#), r#"{"is-number":"7"}"#);
        assert_eq!(parse(r#"{"name": "x", "dependencies": {"a": "1"}}"#), r#"{"a":"1"}"#);
        assert_eq!(parse(""), "{}");
        assert!(parse_dependencies("{bad").is_err());
    }
}
