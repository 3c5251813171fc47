//! `fetch`: brings the source of a function, its runtime and a Dockerfile into a folder, for a builder of images.

use crate::args::Fetch;
use crate::exit::{FetchFailedForGood, Usage};
use anyhow::Context;
use klambda_build::BaseImages;
use klambda_functions::failure::Failure;
use klambda_functions::resource::{Form, Resource};
use klambda_local::platform::{Options, image_context};
use serde_json::{Value, json};
use std::path::Path;

pub fn run(args: &Fetch) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| Usage(format!("could not read {}: {error}", args.file.display())))?;
    let document: Value = serde_saphyr::from_str(&text).map_err(|error| Usage(error.to_string()))?;
    let resource = Resource::parse(&document, Form::Manifest);
    let resource = resource.map_err(|faults| {
        let told: Vec<String> =
            faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect();
        Usage(told.join("; "))
    })?;
    let images = BaseImages {
        node: args.images.node_image.clone(),
        python: args.images.python_image.clone(),
        go: args.images.go_image.clone(),
        compiled: args.images.static_image.clone(),
    };
    let mut options = Options::new(args.into.clone(), Vec::new());
    options.secrets = args.secrets.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fetched = runtime.block_on(image_context(&resource, &options, &args.into, &images));
    match fetched {
        Ok(commit) => report(args.result.as_deref(), &json!({ "commit": commit })),
        Err(failure) => failed(&failure, args.result.as_deref()),
    }
}

fn failed(failure: &Failure, result: Option<&Path>) -> anyhow::Result<()> {
    failure.last_lines().iter().for_each(|line| eprintln!("{line}"));
    report(result, &json!({ "reason": failure.reason.name(), "detail": failure.detail }))?;
    match failure.reason.may_pass() {
        true => Err(anyhow::Error::msg(failure.message())),
        false => Err(FetchFailedForGood(failure.message()).into()),
    }
}

fn report(into: Option<&Path>, result: &Value) -> anyhow::Result<()> {
    let Some(path) = into else { return Ok(()) };
    std::fs::write(path, result.to_string()).with_context(|| format!("could not write {}", path.display()))
}
