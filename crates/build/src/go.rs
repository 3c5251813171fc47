//! Go: writes a main function beside or inside the package of the handler, and runs the compiler.

use crate::step::Bench;
use crate::wrappers::Wrappers;
use crate::{Error, Request, Tool, files};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub(crate) const BINARY: &str = "function";
const MAIN_FOLDER: &str = "klambda_main";
const NOT_FOUND: [&str; 11] = [
    "reading http",
    "403 Forbidden",
    "404 Not Found",
    "410 Gone",
    "unknown revision",
    "no matching versions",
    "cannot find module",
    "no required module provides",
    "repository not found",
    "invalid version",
    "not found:",
];

pub(crate) async fn build(
    request: &Request,
    tool: &Tool,
    bench: &Bench,
    wrappers: &Wrappers,
) -> Result<(), Error> {
    let handler = Handler::find(request, &bench.code())?;
    silence_telemetry(&bench.home)?;
    let unversioned =
        write_module(request, &format!("{}.{}", tool.version.major, tool.version.minor), &bench.code())?;
    let wrapper = wrappers.path("go");
    let mut replace = OsString::from("-replace=klambda=");
    replace.push(&wrapper);
    let edit = [OsStr::new("mod"), OsStr::new("edit"), OsStr::new("-require=klambda@v0.0.0"), &replace];
    if !bench.run(tool, tool.path.as_os_str(), &edit).await? {
        return Err(module_refused(bench));
    }
    for name in unversioned {
        let get = ["get", &name].map(OsStr::new);
        if !bench.run(tool, tool.path.as_os_str(), &get).await? {
            return Err(bench.installation_failed("go", &NOT_FOUND));
        }
    }
    let package = handler.write_main(&bench.code())?;
    compile(tool, bench, &package).await
}

/// What a builder of images has to do.
pub(crate) struct Prepared {
    /// The package with the main function, relative to the code.
    pub(crate) package: String,
    /// Modules to get in their newest version.
    pub(crate) unversioned: Vec<String>,
}

/// The language version of code without a `go.mod`.
const GO_MIN: &str = "1.21";

/// Writes the module and the main function, without running anything.
pub(crate) fn prepare(request: &Request, code: &Path) -> Result<Prepared, Error> {
    let handler = Handler::find(request, code)?;
    let unversioned = write_module(request, GO_MIN, code)?;
    Ok(Prepared { package: handler.write_main(code)?, unversioned })
}

/// Otherwise the tool leaves a process behind that writes into the home folder.
fn silence_telemetry(home: &Path) -> Result<(), Error> {
    let folder = home.join(".config/go/telemetry");
    std::fs::create_dir_all(&folder).map_err(|e| Error::io("could not create", &folder, &e))?;
    files::write(&folder.join("mode"), b"off")
}

fn module_refused(bench: &Bench) -> Error {
    let message = bench.line_with(&["go.mod:"]).unwrap_or_else(|| "could not read go.mod".to_owned());
    if message.contains(": require ") {
        return Error::DependencyNotFound { message, log: bench.output.lines() };
    }
    bench.syntax_error(message)
}

async fn compile(tool: &Tool, bench: &Bench, package: &str) -> Result<(), Error> {
    let binary = bench.dir.join(BINARY);
    let words =
        ["build", "-mod=mod", "-modcacherw", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o"];
    let mut args: Vec<&OsStr> = words.map(OsStr::new).to_vec();
    args.extend([binary.as_os_str(), OsStr::new(package)]);
    if bench.run(tool, tool.path.as_os_str(), &args).await? {
        return Ok(());
    }
    if bench.is_out_of_reach() || bench.line_with(&NOT_FOUND).is_some() {
        return Err(bench.installation_failed("go", &NOT_FOUND));
    }
    // The compiler prints a file, a line and a column.
    match bench.output.lines().into_iter().find(|line| line.contains(".go:")) {
        Some(line) => Err(bench.syntax_error(line)),
        None => Err(bench.failed("go could not build the source; see the build log".to_owned())),
    }
}

/// Writes a `go.mod` if the source has none, and adds the modules of the manifest. Returns the modules without a version.
fn write_module(request: &Request, version: &str, code: &Path) -> Result<Vec<String>, Error> {
    let path = code.join("go.mod");
    let text = request.dependencies.trim();
    if text.starts_with("module ") {
        files::write(&path, text.as_bytes())?;
        return Ok(Vec::new());
    }
    let (versioned, unversioned) = parse_modules(text);
    let own = files::read_if_there(&path)?.unwrap_or_else(|| format!("module handler\n\ngo {version}\n"));
    files::write(&path, format!("{own}\n{versioned}").as_bytes())?;
    Ok(unversioned)
}

/// Parses lines of `path version` or `path@version`, as in a `require` block.
fn parse_modules(text: &str) -> (String, Vec<String>) {
    let (mut versioned, mut unversioned) = (String::new(), Vec::new());
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim().trim_start_matches("require").trim();
        let line = line.replace('@', " ");
        let mut words = line.split_whitespace().filter(|word| !matches!(*word, "(" | ")"));
        match (words.next(), words.next()) {
            (Some(path), Some("latest") | None) => unversioned.push(format!("{path}@latest")),
            (Some(path), Some(version)) => versioned.push_str(&format!("require {path} {version}\n")),
            (None, _) => {}
        }
    }
    (versioned, unversioned)
}

struct Handler {
    /// The folder of its package, relative to the code.
    folder: PathBuf,
    package: String,
    function: String,
}

impl Handler {
    fn find(request: &Request, code: &Path) -> Result<Handler, Error> {
        let (file, asked) = request.handler_parts()?;
        let missing = |message: String| Error::HandlerMissing { message };
        let path = PathBuf::from(format!("{file}.go"));
        let text = files::read_if_there(&code.join(&path))?.ok_or_else(|| {
            missing(format!(
                "the handler {} needs a file {file}.go, which does not exist in the source",
                request.handler
            ))
        })?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let package = package_of(&text).unwrap_or_else(|| "main".to_owned());
        let function =
            function_in(&text, asked).ok_or_else(|| missing(format!("{file}.go has no function {asked}")))?;
        if package != "main" && !function.starts_with(char::is_uppercase) {
            let message = format!(
                "package {package} must export its handler: rename it to {} or use package main",
                upper(asked)
            );
            return Err(missing(message));
        }
        Ok(Handler { folder, package, function })
    }

    /// Writes the main function and returns the package to compile.
    fn write_main(&self, code: &Path) -> Result<String, Error> {
        if self.package == "main" {
            let text = main_text("", &self.function);
            files::write(&code.join(&self.folder).join("klambda_main.go"), text.as_bytes())?;
            return Ok(format!("./{}", self.folder.display()));
        }
        let module = files::read(&code.join("go.mod"))?;
        let module = module.lines().find_map(|line| line.trim().strip_prefix("module "));
        let module =
            module.unwrap_or("handler").split("//").next().unwrap_or_default().trim().trim_matches('"');
        let import = format!("{module}/{}", self.folder.display());
        let text = main_text(import.trim_end_matches('/'), &format!("handler.{}", self.function));
        let folder = code.join(MAIN_FOLDER);
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("could not create", &folder, &e))?;
        files::write(&folder.join("main.go"), text.as_bytes())?;
        Ok(format!("./{MAIN_FOLDER}"))
    }
}

fn main_text(import: &str, function: &str) -> String {
    let import = if import.is_empty() { String::new() } else { format!("import handler {import:?}\n") };
    format!("package main\n\nimport \"klambda\"\n{import}\nfunc main() {{ klambda.Serve({function}) }}\n")
}

fn package_of(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("package "))?;
    line.split_whitespace().next().map(|name| name.trim_end_matches(';').to_owned())
}

/// The function as written in the code: Go exports names with a capital, so `handler` may mean `Handler`.
fn function_in(text: &str, asked: &str) -> Option<String> {
    let is_there = |name: &str| {
        let starts = [format!("func {name}("), format!("func {name}["), format!("var {name} ")];
        text.lines().any(|line| starts.iter().any(|start| line.starts_with(start.as_str())))
    };
    [asked.to_owned(), upper(asked)].into_iter().find(|name| is_there(name))
}

fn upper(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_and_without_versions() {
        let (versioned, unversioned) =
            parse_modules("require (\n a.b/c v1.2.3 // why\n a.b/d@v2\n)\n a.b/e\n");
        assert_eq!(versioned, "require a.b/c v1.2.3\nrequire a.b/d v2\n");
        assert_eq!(unversioned, ["a.b/e@latest"]);
    }

    #[test]
    fn the_handler_may_begin_with_a_capital() {
        assert_eq!(function_in("func Handler(e E) {}", "handler").as_deref(), Some("Handler"));
        assert_eq!(function_in("func handlers() {}", "handler"), None);
    }
}
