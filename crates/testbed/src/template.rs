//! What a control plane contains before its first test: definitions, Knative's objects, and a node.
//!
//! Creating these takes most of a start. They are created once and kept in the cache as etcd's files. The hash of
//! everything that they are made of is in the name, so a changed definition leads to a new template.

use crate::binaries::{CONTROL_PLANE, cache_folder, cluster_folder};
use crate::knative;
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Templates in the cache. Each takes 130 MB.
const KEPT: usize = 4;
const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node-0"}}}"#;

pub struct Template {
    pub definitions: Vec<PathBuf>,
    pub objects: PathBuf,
    pub node: &'static str,
    folder: PathBuf,
}

impl Template {
    pub fn current() -> Result<Self> {
        let (serving, objects) = knative::manifests()?;
        let mut definitions = vec![serving];
        definitions.extend(other_definitions()?);
        let mut hash = Sha256::new();
        hash.update(NODE);
        for module in &CONTROL_PLANE {
            hash.update(module.cache()?.as_os_str().as_encoded_bytes());
        }
        for file in definitions.iter().chain([&objects]) {
            hash.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
        }
        let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            definitions,
            objects,
            node: NODE,
            folder: cache_folder()?.join(format!("template-{hash}")),
        })
    }

    pub fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    /// Keeps the files of an etcd that has ended.
    pub fn save(&self, etcd: &Path) -> Result<()> {
        let partial = self.folder.with_extension(format!("partial-{}", std::process::id()));
        copy(etcd, &partial)?;
        if fs::rename(&partial, &self.folder).is_err() {
            // Another process was faster.
            fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
        }
        remove_old()
    }

    /// Copies the template to where etcd expects its files.
    pub fn restore(&self, etcd: &Path) -> Result<()> {
        copy(&self.folder, etcd)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp")
        .args(["-r", "--sparse=always"])
        .arg(from)
        .arg(to)
        .status()
        .context("running `cp`")?;
    ensure!(status.success(), "could not copy {} to {}", from.display(), to.display());
    Ok(())
}

fn remove_old() -> Result<()> {
    let mut templates = Vec::new();
    for entry in fs::read_dir(cache_folder()?)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("template-") {
            templates.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    templates.sort();
    let old = templates.len().saturating_sub(KEPT);
    for (_, folder) in templates.iter().take(old) {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(())
}

/// Definitions of projects that do not run here. Real ones, if a folder has them, replace our reduced ones of the same
/// name. Knative Serving's come from its modules and match its controller.
fn other_definitions() -> Result<Vec<PathBuf>> {
    let mut seen: BTreeSet<String> = knative::crd_names()?.into_iter().collect();
    let mut files = Vec::new();
    let folders = [real_definitions(), Some(cluster_folder().join("crds"))];
    for folder in folders.into_iter().flatten() {
        for file in knative::yaml_files(&folder)? {
            let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            if seen.insert(name) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The folder of `KLAMBDA_CRDS`, or one beside the repository.
fn real_definitions() -> Option<PathBuf> {
    let folder = match std::env::var_os("KLAMBDA_CRDS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/crds"),
    };
    folder.is_dir().then_some(folder)
}
