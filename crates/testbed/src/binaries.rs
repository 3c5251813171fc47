//! The programs of the control plane, built from Go modules at pinned versions and kept in a cache outside the repository.
//!
//! `testbed/cluster/modules` has one Go module per project, because their dependencies differ. A module's folder in the
//! cache is named after a hash of the module's files. Nothing is built again until one of these files changes.

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A Go module of `testbed/cluster/modules` and the programs that are built from it.
#[derive(Debug)]
pub struct Module {
    pub name: &'static str,
    /// The name of each program and its Go package.
    programs: &'static [(&'static str, &'static str)],
}

pub const ETCD: Module = Module { name: "etcd", programs: &[("etcd", "go.etcd.io/etcd/server/v3")] };
pub const KUBERNETES: Module = Module {
    name: "kubernetes",
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    ],
};
pub const KNATIVE: Module = Module {
    name: "knative",
    programs: &[
        ("webhook", "knative.dev/serving/cmd/webhook"),
        ("controller", "knative.dev/serving/cmd/controller"),
    ],
};
pub const KWOK: Module = Module { name: "kwok", programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")] };

/// The modules of the control plane, in the order in which they are built.
pub const CONTROL_PLANE: [Module; 4] = [ETCD, KUBERNETES, KNATIVE, KWOK];

impl Module {
    /// The module's folder in the repository.
    pub fn source(&self) -> PathBuf {
        cluster_folder().join("modules").join(self.name)
    }

    /// The module's folder in the cache.
    pub fn cache(&self) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in
            fs::read_dir(self.source()).with_context(|| format!("reading {}", self.source().display()))?
        {
            files.push(entry?.path());
        }
        files.sort();
        for file in &files {
            hash.update(fs::read(file).with_context(|| format!("reading {}", file.display()))?);
        }
        let hash: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(cache_folder()?.join(format!("{}-{hash}", self.name)))
    }

    /// The path of a program in the cache, which may not be built yet.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        Ok(self.cache()?.join("bin").join(name))
    }

    /// The version of a required Go module, as `go.mod` has it.
    pub fn version(&self, required: &str) -> Result<String> {
        let file = self.source().join("go.mod");
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut words =
            text.lines().map(|line| line.trim().trim_start_matches("require ").split_whitespace());
        words
            .find_map(|mut line| {
                (line.next() == Some(required)).then(|| line.next().map(str::to_owned)).flatten()
            })
            .with_context(|| format!("{} does not require {required}", file.display()))
    }

    /// The folder of a required Go module with its sources. Go downloads it if it is missing.
    pub fn folder_of(&self, required: &str) -> Result<PathBuf> {
        let output = self.go().args(["mod", "download", "-json", required]).output().context(NO_GO)?;
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("go mod download: {}", String::from_utf8_lossy(&output.stderr)))?;
        let folder = answer["Dir"]
            .as_str()
            .with_context(|| format!("{required} could not be downloaded: {answer}"))?;
        Ok(PathBuf::from(folder))
    }

    fn built(&self) -> Result<bool> {
        let folder = self.cache()?.join("bin");
        Ok(self.programs.iter().all(|(name, _)| folder.join(name).is_file()))
    }

    fn build(&self) -> Result<()> {
        let folder = self.cache()?.join("bin");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let flags = format!("-s -w {}", self.version_flags()?);
        for (name, package) in self.programs {
            let program = folder.join(name);
            if program.is_file() {
                continue;
            }
            // Go writes large programs for seconds. Only a complete one gets its name.
            let partial = folder.join(format!("{name}.partial"));
            eprintln!("building {name} from {package}");
            let started = Instant::now();
            let mut go = self.go();
            go.args(["build", "-trimpath", "-ldflags", &flags, "-o"]).arg(&partial).arg(package);
            let status = go.status().context(NO_GO)?;
            ensure!(status.success(), "go build of {package} failed; its messages are above");
            fs::rename(&partial, &program).with_context(|| format!("renaming {}", partial.display()))?;
            eprintln!("built {name} in {} s", started.elapsed().as_secs());
        }
        Ok(())
    }

    /// Kubernetes reports the version that the linker writes into it.
    fn version_flags(&self) -> Result<String> {
        if self.name != KUBERNETES.name {
            return Ok(String::new());
        }
        let version = self.version("k8s.io/kubernetes")?;
        let mut parts = version.trim_start_matches('v').split('.');
        let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
            bail!("unexpected version {version}")
        };
        let package = "k8s.io/component-base/version";
        Ok(format!(
            "-X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        ))
    }

    fn go(&self) -> Command {
        let mut command = Command::new("go");
        command
            .current_dir(self.source())
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly -buildvcs=false");
        command
    }
}

const NO_GO: &str = "running `go`; install Go 1.26 or newer and put it into PATH";

/// Builds what the cache lacks. One build at a time, also across processes.
pub fn build(modules: &[Module]) -> Result<()> {
    let folder = cache_folder()?;
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let lock = File::create(folder.join("build.lock")).context("creating the lock of the cache")?;
    lock.lock().context("locking the cache")?;
    modules.iter().try_for_each(Module::build)
}

/// Whether all programs of the modules are in the cache.
pub fn built(modules: &[Module]) -> Result<bool> {
    for module in modules {
        if !module.built()? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `testbed/cluster` in the repository.
pub fn cluster_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testbed/cluster")
}

/// Where programs are kept. Deleting the folder is safe; it is built again.
pub fn cache_folder() -> Result<PathBuf> {
    let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set; set one to choose where programs are kept"),
    };
    Ok(base.join("klambda-testbed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        assert!(KUBERNETES.version("k8s.io/kubernetes").expect("a version").starts_with("v1."));
        assert!(KUBERNETES.version_flags().expect("flags").contains("gitMajor=1"));
        assert!(ETCD.version("example.com/missing").is_err());
    }

    #[test]
    fn modules_have_folders_of_their_own() {
        let folders: Vec<PathBuf> =
            CONTROL_PLANE.iter().map(|module| module.cache().expect("a folder")).collect();
        assert!(folders.iter().all(|folder| folders.iter().filter(|other| *other == folder).count() == 1));
    }
}
