//! Python: installs the requirements with pip, then compiles every file, which finds syntax errors and speeds up starts.

use crate::step::Bench;
use crate::wrappers::Wrappers;
use crate::{Error, Request, Tool, files, source_file};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const CHECK: &str = include_str!("check.py");
const NOT_FOUND: [&str; 3] = ["No matching distribution", "Could not find a version", "Invalid requirement"];

/// The list of packages that a builder of images installs, in the code.
pub(crate) const REQUIREMENTS: &str = ".klambda-requirements.txt";

/// Writes the list of packages, without running anything. Returns whether there are any.
pub(crate) fn prepare(request: &Request, code: &Path) -> Result<bool, Error> {
    handler_path(request, code)?;
    let Some(all) = requirements(request, code)? else { return Ok(false) };
    if !request.source_distributions
        && let Some(line) = all.lines().find(|line| names_source(line))
    {
        return Err(Error::DependencyNotFound { message: only_wheels_message(line.trim()), log: Vec::new() });
    }
    files::write(&code.join(REQUIREMENTS), all.as_bytes())?;
    Ok(true)
}

/// The file of the handler, relative to the code.
fn handler_path(request: &Request, code: &Path) -> Result<PathBuf, Error> {
    let (file, _) = request.handler_parts()?;
    let path = source_file(request.language, &request.handler).unwrap_or_default();
    let package = path.with_extension("").join("__init__.py");
    let path = [path, package].into_iter().find(|path| code.join(path).is_file());
    path.ok_or_else(|| Error::HandlerMissing {
        message: format!(
            "the handler {} needs a file {file}.py, which does not exist in the source",
            request.handler
        ),
    })
}

/// The packages of the source and of the manifest. `None` if there are none.
fn requirements(request: &Request, code: &Path) -> Result<Option<String>, Error> {
    let own = files::read_if_there(&code.join("requirements.txt"))?.unwrap_or_default();
    let all = format!("{own}\n{}\n", request.dependencies);
    let is_any = all.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
    Ok(is_any.then_some(all))
}

pub(crate) async fn build(
    request: &Request,
    tool: &Tool,
    bench: &Bench,
    wrappers: &Wrappers,
) -> Result<(), Error> {
    let (_, function) = request.handler_parts()?;
    let path = handler_path(request, &bench.code())?;
    install(request, tool, bench).await?;
    let wrapper = wrappers.path("python");
    let args: Vec<&OsStr> = ["-S", "-c", CHECK, "."].map(OsStr::new).to_vec();
    let args = [args, vec![path.as_os_str(), OsStr::new(function), wrapper.as_os_str()]].concat();
    if bench.run(tool, tool.path.as_os_str(), &args).await? {
        return Ok(());
    }
    Err(refused(bench))
}

fn refused(bench: &Bench) -> Error {
    let told = |mark: &str| {
        let line = bench.line_with(&[mark])?;
        Some(line.strip_prefix(mark)?.trim().to_owned())
    };
    if let Some(message) = told("handler:") {
        return Error::HandlerMissing { message };
    }
    match told("syntax:") {
        Some(message) => bench.syntax_error(message),
        None => bench.failed("python could not compile the source; see the build log".to_owned()),
    }
}

async fn install(request: &Request, tool: &Tool, bench: &Bench) -> Result<(), Error> {
    let Some(all) = requirements(request, &bench.code())? else { return Ok(()) };
    if !request.source_distributions
        && let Some(line) = all.lines().find(|line| names_source(line))
    {
        return Err(only_wheels(line.trim().to_owned(), bench));
    }
    let list = bench.home.join("requirements.txt");
    files::write(&list, all.as_bytes())?;
    let words =
        ["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"];
    let mut args: Vec<&OsStr> = words.map(OsStr::new).to_vec();
    if !request.source_distributions {
        args.extend(["--only-binary", ":all:"].map(OsStr::new));
    }
    args.extend([OsStr::new("--target"), OsStr::new(".packages"), OsStr::new("-r"), list.as_os_str()]);
    if bench.run(tool, tool.path.as_os_str(), &args).await? {
        return Ok(());
    }
    if bench.line_with(&["No module named pip"]).is_some() {
        return Err(bench.failed(format!("{} has no pip; install pip", tool.path.display())));
    }
    match bench.installation_failed("pip", &NOT_FOUND) {
        Error::DependencyNotFound { message, .. } if !request.source_distributions => {
            Err(only_wheels(message, bench))
        }
        other => Err(other),
    }
}

fn only_wheels(what: String, bench: &Bench) -> Error {
    Error::DependencyNotFound { message: only_wheels_message(&what), log: bench.output.lines() }
}

fn only_wheels_message(what: &str) -> String {
    format!(
        "{what} (only wheels are installed; if the package has none, set build.allowSourceDistributions: true, \
         which runs the setup.py of the package)"
    )
}

/// Whether a requirement bypasses the restriction to wheels: a path, a URL, another file, or an option that lifts the
/// restriction.
fn names_source(line: &str) -> bool {
    const OPTIONS: [&str; 5] = ["-e", "--editable", "-r", "--requirement", "--no-binary"];
    const ENDS: [&str; 4] = [".tar.gz", ".zip", ".tar.bz2", ".tgz"];
    let line = line.split(" #").next().unwrap_or_default().trim();
    if line.starts_with('#') {
        return false;
    }
    if line.starts_with('-') {
        return OPTIONS.iter().any(|option| line.starts_with(option));
    }
    // Hashes and environment markers follow the location.
    let place = line.split(['#', ';']).next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_place =
        place.contains('/') || place.starts_with('.') || ENDS.iter().any(|end| place.ends_with(end));
    is_place && !place.ends_with(".whl")
}

#[cfg(test)]
mod tests {
    use super::names_source;

    #[test]
    fn requirements_that_would_run_a_setup_are_seen() {
        for source in [
            "./mine",
            "-e .",
            "--editable=mine",
            "git+https://h/x.git",
            "x @ https://h/x.tar.gz",
            "x.zip",
            "-r more.txt",
            "--no-binary :all:",
            "/abs/x",
            "x @ git+ssh://h/x#egg=x",
            "file:///x",
        ] {
            assert!(names_source(source), "{source}");
        }
        for wheel in [
            "",
            "# git+https://h",
            "six==1.16.0",
            "requests[socks]>=2 ; python_version > '3'",
            "https://h/x-1-py3-none-any.whl",
            "x @ https://h/x-1-py3-none-any.whl#sha256=0",
            "--index-url https://h/simple",
            "six  # see https://h/x",
        ] {
            assert!(!names_source(wheel), "{wheel}");
        }
    }
}
