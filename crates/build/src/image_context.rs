//! The build context of an image: the code, the runtime and a Dockerfile that does what a build on this machine does.
//!
//! The folder has `code` (the source), `runtime` (the wrapper of the language) and `Dockerfile`. Users choose names of files
//! and functions, and they are checked before they become a part of the Dockerfile.

use crate::{Error, Language, Request, files, go, nodejs, python, wrappers};
use std::fmt::Write as _;
use std::path::Path;

/// The images that functions are built on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseImages {
    pub node: String,
    pub python: String,
    pub go: String,
    /// Image that compiled functions run in.
    pub compiled: String,
}

/// The user of a container that needs no rights.
const USER: &str = "65532:65532";

/// Writes the runtime and the Dockerfile beside `code`, which is the source of the request.
pub fn write(request: &Request, into: &Path, images: &BaseImages) -> Result<(), Error> {
    wrappers::write_of(request.language, &into.join("runtime"))?;
    let dockerfile = match request.language {
        Language::NodeJs => node(request, &images.node)?,
        Language::Python => python(request, &images.python)?,
        Language::Go => go(request, &images.go, &images.compiled)?,
    };
    files::write(&into.join("Dockerfile"), dockerfile.as_bytes())
}

fn node(request: &Request, image: &str) -> Result<String, Error> {
    let prepared = nodejs::prepare(request, &request.source)?;
    let mut text = begin(&with_version(image, &request.version));
    if let Some(verb) = prepared.install {
        let _ = writeln!(
            text,
            "RUN npm {verb} --omit=dev --ignore-scripts --no-audit --no-fund --no-update-notifier"
        );
    }
    let file = prepared.file;
    let check = format!("node --check {file}");
    match prepared.may_be_module {
        // A single file with the syntax of modules: Node loads it as a module.
        true => {
            let _ =
                writeln!(text, "RUN {check} || (printf '{{\"type\":\"module\"}}' > package.json && {check})");
        }
        false => {
            let _ = writeln!(text, "RUN {check}");
        }
    }
    end(&mut text, request, r#"["node", "/app/runtime/main.js"]"#);
    Ok(text)
}

fn python(request: &Request, image: &str) -> Result<String, Error> {
    let installs = python::prepare(request, &request.source)?;
    let mut text = begin(&with_version(image, &request.version));
    if installs {
        let wheels = if request.source_distributions { "" } else { " --only-binary :all:" };
        let _ = writeln!(
            text,
            "RUN python3 -m pip install --no-input --disable-pip-version-check --no-cache-dir{wheels} --target .packages -r {}",
            python::REQUIREMENTS
        );
    }
    let _ = writeln!(text, "RUN python3 -m compileall -q .");
    end(&mut text, request, r#"["python3", "-S", "-s", "/app/runtime/main.py"]"#);
    Ok(text)
}

fn go(request: &Request, image: &str, compiled: &str) -> Result<String, Error> {
    let prepared = go::prepare(request, &request.source)?;
    let mut text = format!("FROM {} AS build\nWORKDIR /app/code\n", with_version(image, &request.version));
    text.push_str("COPY runtime/ /app/runtime/\nCOPY code/ /app/code/\n");
    text.push_str("RUN go mod edit -require=klambda@v0.0.0 -replace=klambda=/app/runtime\n");
    for module in prepared.unversioned {
        let _ = writeln!(text, "RUN [\"go\", \"get\", {module:?}]");
    }
    let package = prepared.package;
    let _ = writeln!(
        text,
        "RUN CGO_ENABLED=0 go build -mod=mod -modcacherw -buildvcs=false -trimpath -ldflags '-s -w' -o /app/function {package}"
    );
    let _ = writeln!(text, "FROM {compiled}\nCOPY --from=build /app/function /app/function");
    let _ = writeln!(text, "USER {USER}\nENTRYPOINT [\"/app/function\"]");
    Ok(text)
}

fn begin(image: &str) -> String {
    format!("FROM {image}\nWORKDIR /app/code\nCOPY code/ /app/code/\n")
}

fn end(text: &mut String, request: &Request, command: &str) {
    let _ = writeln!(text, "COPY runtime/ /app/runtime/");
    let _ = writeln!(text, "ENV KLAMBDA_CODE=/app/code KLAMBDA_HANDLER={}", request.handler);
    let _ = writeln!(text, "USER {USER}\nENTRYPOINT {command}");
}

/// Replaces the version in the tag of an image: `node:22-slim` and `20` give `node:20-slim`.
fn with_version(image: &str, version: &str) -> String {
    let Some((name, tag)) =
        image.rsplit_once(':').filter(|(_, tag)| !version.is_empty() && !tag.contains('/'))
    else {
        return image.to_owned();
    };
    match tag.split_once('-') {
        Some((_, variant)) => format!("{name}:{version}-{variant}"),
        None => format!("{name}:{version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn images() -> BaseImages {
        BaseImages {
            node: "node:22-slim".into(),
            python: "r:5000/python:3.13".into(),
            go: "golang".into(),
            compiled: "static".into(),
        }
    }

    fn context(
        language: Language,
        version: &str,
        dependencies: &str,
        file: &str,
        code: &str,
    ) -> Result<String, Error> {
        let folder = tempfile::tempdir().expect("folder");
        let source = folder.path().join("code");
        std::fs::create_dir(&source).expect("folder");
        std::fs::write(source.join(file), code).expect("file");
        let request = Request {
            source,
            language,
            version: version.into(),
            handler: "index.handler".into(),
            dependencies: dependencies.into(),
            source_distributions: false,
            timeout: Duration::from_secs(1),
            again: String::new(),
        };
        write(&request, folder.path(), &images())?;
        let runtime = std::fs::read_dir(folder.path().join("runtime")).expect("runtime").count();
        assert!(runtime > 1, "the wrapper is there");
        Ok(std::fs::read_to_string(folder.path().join("Dockerfile")).expect("Dockerfile"))
    }

    #[test]
    fn each_language_has_its_dockerfile() {
        let node =
            context(Language::NodeJs, "20", "is-number@7", "index.js", "exports.handler = 1").expect("node");
        assert!(
            node.starts_with("FROM node:20-slim\n") && node.contains("RUN npm install --omit=dev"),
            "{node}"
        );
        assert!(
            node.contains("KLAMBDA_HANDLER=index.handler") && node.contains("USER 65532:65532"),
            "{node}"
        );
        let plain = context(Language::NodeJs, "", "", "index.js", "export const handler = 1").expect("node");
        assert!(!plain.contains("npm") && plain.contains(r#"{"type":"module"}"#), "{plain}");
        let python = context(Language::Python, "3.12", "six==1.16.0", "index.py", "def handler(e): pass")
            .expect("python");
        assert!(
            python.starts_with("FROM r:5000/python:3.12\n") && python.contains("--only-binary :all:"),
            "{python}"
        );
        let go = context(Language::Go, "", "", "index.go", "package main\nfunc Handler() {}\n").expect("go");
        assert!(go.contains("go build") && go.contains("FROM static"), "{go}");
    }

    #[test]
    fn a_missing_handler_is_reported_before_a_builder_starts() {
        assert!(matches!(
            context(Language::NodeJs, "", "", "other.js", ""),
            Err(Error::HandlerMissing { .. })
        ));
        assert!(matches!(
            context(Language::Python, "", "git+https://h/x.git", "index.py", ""),
            Err(Error::DependencyNotFound { .. })
        ));
    }
}
