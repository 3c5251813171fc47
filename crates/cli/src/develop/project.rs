//! A folder with a manifest and the code of one function.

use crate::commands::manifest::{self, Manifest};
use crate::exit::Usage;
use klambda_functions::resource::{Form, Resource};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub const MANIFEST: &str = "function.yaml";

pub struct Project {
    pub folder: PathBuf,
}

impl Project {
    pub fn open(folder: &Path) -> Result<Project, Usage> {
        let folder = folder.canonicalize().map_err(|error| Usage::file(folder, &error))?;
        match folder.join(MANIFEST).is_file() {
            true => Ok(Project { folder }),
            false => Err(Usage(format!(
                "{} has no {MANIFEST}; `klambda init nodejs DIR` creates a function",
                folder.display()
            ))),
        }
    }

    /// The manifest as it is now, with this folder as its source and without a namespace.
    pub fn manifest(&self) -> Result<Manifest, Usage> {
        let path = self.folder.join(MANIFEST);
        if !path.is_file() {
            return Err(Usage(format!("{} has no {MANIFEST} any more; put it back", self.folder.display())));
        }
        let mut found = manifest::read(std::slice::from_ref(&path), None)?;
        let (Some(mut one), true) = (found.pop(), found.is_empty()) else {
            return Err(Usage::file(&path, &"must contain one document"));
        };
        if !one.kind.runs_code() {
            return Err(Usage::file(&path, &"must contain a LambdaFunction or a LambdaAgent"));
        }
        one.document["spec"]["source"] =
            self.source(&one.document).map_err(|why| Usage::file(&path, &why))?;
        if let Some(metadata) = one.document["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        one.namespace = klambda_core::namespace::DEFAULT.to_owned();
        Ok(one)
    }

    /// Code in the manifest stays. Code from elsewhere is replaced by this folder, where one works on it.
    fn source(&self, document: &Value) -> Result<Value, String> {
        let source = &document["spec"]["source"];
        match source["type"].as_str() {
            Some("inline") => Ok(source.clone()),
            Some(kind @ ("image" | "url")) => {
                Err(format!("spec.source.type is {kind}, which has no code to build; use folder"))
            }
            _ => Ok(json!({"type": "folder", "folder": {"path": self.folder.to_string_lossy()}})),
        }
    }

    /// The same, checked as a server checks it.
    pub fn resource(&self) -> Result<Resource, Usage> {
        check(&self.manifest()?.document).map_err(|faults| Usage::file(&self.folder.join(MANIFEST), &faults))
    }
}

pub fn check(document: &Value) -> Result<Resource, String> {
    Resource::parse(document, Form::Manifest).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        faults.join("; ")
    })
}
