//! Python: pip for the requirements, then every file compiled, which finds what does not parse and makes starts short.

use crate::step::Bench;
use crate::wrappers::Wrappers;
use crate::{Error, Request, Tool, files, source_file};
use std::ffi::OsStr;

const CHECK: &str = include_str!("check.py");
const NOT_FOUND: [&str; 3] = ["No matching distribution", "Could not find a version", "Invalid requirement"];

pub(crate) async fn build(
    request: &Request,
    tool: &Tool,
    bench: &Bench,
    wrappers: &Wrappers,
) -> Result<(), Error> {
    let (file, function) = request.handler_parts()?;
    let path = source_file(request.language, &request.handler).unwrap_or_default();
    let package = path.with_extension("").join("__init__.py");
    let path = [path, package].into_iter().find(|path| bench.code().join(path).is_file());
    let path = path.ok_or_else(|| Error::HandlerMissing {
        message: format!(
            "the handler {} needs a file {file}.py, which the source does not have",
            request.handler
        ),
    })?;
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
        None => bench.failed("python could not compile the source; the log says why".to_owned()),
    }
}

async fn install(request: &Request, tool: &Tool, bench: &Bench) -> Result<(), Error> {
    let own = files::read_if_there(&bench.code().join("requirements.txt"))?.unwrap_or_default();
    let all = format!("{own}\n{}\n", request.dependencies);
    if !all.lines().any(|line| !line.trim().is_empty() && !line.trim().starts_with('#')) {
        return Ok(());
    }
    let list = bench.home.join("requirements.txt");
    files::write(&list, all.as_bytes())?;
    let words =
        ["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"];
    let mut args: Vec<&OsStr> = words.map(OsStr::new).to_vec();
    args.extend([OsStr::new("--target"), OsStr::new(".packages"), OsStr::new("-r"), list.as_os_str()]);
    if bench.run(tool, tool.path.as_os_str(), &args).await? {
        return Ok(());
    }
    if bench.line_with(&["No module named pip"]).is_some() {
        return Err(bench.failed(format!("{} has no pip; install it", tool.path.display())));
    }
    Err(bench.installation_failed("pip", &NOT_FOUND))
}
