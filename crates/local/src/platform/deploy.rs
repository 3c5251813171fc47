//! Turns an artifact into a version of the fleet.

use super::function::Deployed;
use super::{Machine, Options, built_artifact, secrets};
use crate::container;
use crate::fleet::{self, Run, Version};
use crate::process::{Command, Limits};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::name::Name;
use klambda_functions::resource::{EnvVar, Image, Resource, Resources, Scaling, SecretFiles};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The content of a version, stored under its name: after a restart the serving version may differ from the desired one.
/// It names secrets but does not contain them.
#[derive(Serialize, Deserialize)]
pub struct Recipe {
    pub artifact: String,
    image: Option<Box<Image>>,
    url: Option<String>,
    env: Vec<EnvVar>,
    resources: Resources,
    #[serde(default)]
    secret_files: Vec<SecretFiles>,
}

impl Recipe {
    pub(super) fn new(resource: &Resource, artifact: String) -> Recipe {
        let source = resource.spec.source.as_ref();
        Recipe {
            artifact,
            image: source.and_then(|source| source.image.clone()),
            url: resource.spec.url().map(str::to_owned),
            env: resource.spec.env.clone(),
            resources: resource.spec.resources,
            secret_files: resource.spec.secret_files.clone(),
        }
    }

    fn limits(&self) -> Limits {
        let limits = self.resources.limits;
        Limits {
            memory_bytes: limits.memory.map(|size| size.bytes),
            cpu_millis: limits.cpu.map(|cpu| u32::try_from(cpu.millis).unwrap_or(u32::MAX)),
        }
    }
}

impl Machine {
    pub(super) fn deploy(
        &self,
        name: &Name,
        resource: &Resource,
        version: String,
        artifact: String,
        generation: u64,
    ) {
        let recipe = Recipe::new(resource, artifact);
        let run = self.run_of(name, resource, &recipe);
        if run.is_ok()
            && let Err(error) = self.keep(&version, &recipe)
        {
            tracing::warn!(%error, function = %name, "Could not save how to start a version; the next restart will build it again");
        }
        let away = match &run {
            Ok(Run::Remote(url)) => Some(url.clone()),
            _ => None,
        };
        let deployed = Deployed {
            version: version.into(),
            content: self.content(&recipe.artifact),
            artifact: recipe.artifact.into(),
            generation,
            spec_generation: generation,
            scaling: resource.spec.scaling,
            since: (self.now)(),
            run,
            asking: away.is_some(),
        };
        let mut functions = self.lock();
        let function = functions.entry(name.clone()).or_default();
        if function.retiring || function.deployed.iter().any(|known| known.version == deployed.version) {
            return;
        }
        match away {
            Some(url) => drop(tokio::spawn(self.clone().ask(name.clone(), deployed.version.clone(), url))),
            None => self.tell_fleet(name, &deployed),
        }
        function.deployed.push(deployed);
        drop(functions);
        self.changed(name);
    }

    pub(super) fn scale(&self, name: &Name, version: &str, scaling: Scaling) {
        let mut functions = self.lock();
        let Some(function) = functions.get_mut(name) else { return };
        let newest = function.deployed.iter().rposition(Deployed::is_told);
        let position = function.deployed.iter().position(|known| *known.version == *version);
        let Some(index) = position else { return };
        function.deployed[index].scaling = scaling;
        if newest == Some(index) {
            self.tell_fleet(name, &function.deployed[index]);
        }
        drop(functions);
        self.changed(name);
    }

    pub(super) fn retire(&self, name: &Name, resource: &Resource, version: &str) {
        let mut functions = self.lock();
        let Some(function) = functions.get_mut(name) else { return };
        if resource.is_deleting() {
            if !std::mem::replace(&mut function.retiring, true) {
                tokio::spawn(self.clone().end(name.clone()));
            }
            return;
        }
        function.deployed.retain(|known| *known.version != *version);
        // When the serving version is deployed again, the fleet drops a successor that never responded. Older versions it stops itself.
        if let Some(kept) = function.deployed.iter().rev().find(|known| known.is_told()) {
            self.tell_fleet(name, kept);
        }
        drop(functions);
        self.changed(name);
    }

    async fn end(self, name: Name) {
        self.fleet.remove(name.as_str(), self.options.drain).await;
        if let Some(function) = self.lock().get_mut(&name) {
            function.deployed.clear();
        }
        self.changed(&name);
    }

    pub(super) fn recipe(&self, version: &str) -> Option<Recipe> {
        let text = std::fs::read(self.recipe_path(version)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn recipe_path(&self, version: &str) -> PathBuf {
        self.options.folder.join("versions").join(format!("{version}.json"))
    }

    fn keep(&self, version: &str, recipe: &Recipe) -> std::io::Result<()> {
        let path = self.recipe_path(version);
        if path.exists() { Ok(()) } else { built_artifact::write(&path, recipe) }
    }

    /// The content hash of an artifact. If nothing was built, its own hash.
    pub(super) fn content(&self, artifact: &str) -> Arc<str> {
        self.built(artifact).map_or_else(|| artifact.into(), |built| built.content.as_str().into())
    }

    pub(super) fn tell_fleet(&self, name: &Name, deployed: &Deployed) {
        let Ok(run) = &deployed.run else { return };
        let version = Version {
            id: deployed.version.clone(),
            artifact: deployed.content.clone(),
            generation: deployed.spec_generation,
            run: run.clone(),
            scaling: scaling(deployed.scaling, &self.options),
        };
        if let Err(error) = self.fleet.deploy(name.as_str(), version) {
            tracing::warn!(%error, function = %name, "Could not deploy a version");
        }
    }

    /// Builds also run code: the code of packages, and tools that read the source.
    pub(super) fn may_run_code(&self) -> Result<(), Failure> {
        match self.options.isolation_required {
            false => Ok(()),
            true => Err(Failure::new(
                Reason::IsolationRequired,
                "functions.isolation is set to required, but this server cannot isolate functions from itself",
            )),
        }
    }

    pub(super) fn run_of(&self, name: &Name, resource: &Resource, recipe: &Recipe) -> Result<Run, Failure> {
        if let Some(url) = &recipe.url {
            return Ok(Run::Remote(url.as_str().into()));
        }
        if recipe.image.is_none() {
            self.may_run_code()?;
        }
        let mut environment =
            secrets::environment(&recipe.env, name.namespace(), &self.options).map_err(|failure| *failure)?;
        environment.extend(own_environment(name, resource));
        let files = secrets::files(&recipe.secret_files, name.namespace(), &self.options);
        let files = files.map_err(|failure| *failure)?.map(Arc::new);
        if let Some(image) = &recipe.image {
            return Ok(Run::Image(Arc::new(container::Image {
                reference: image.uri.clone(),
                port: image.port,
                arguments: Vec::new(),
                environment,
                limits: recipe.limits(),
                files,
                mounts: Vec::new(),
                digest: Arc::default(),
            })));
        }
        let gone = || Failure::new(Reason::PlatformError, "The artifact no longer exists");
        let built = self.built(&recipe.artifact).ok_or_else(gone)?;
        let folder = self.work_folder(name);
        std::fs::create_dir_all(&folder).map_err(|error| {
            Failure::new(
                Reason::PlatformError,
                format!("Could not create the folder of the function: {error}"),
            )
        })?;
        environment.push(("HOME".into(), folder.to_string_lossy().into_owned()));
        environment.extend(built.environment.iter().cloned());
        let (program, arguments) = built.command.split_first().ok_or_else(gone)?;
        Ok(Run::Process(Arc::new(Command {
            program: program.into(),
            arguments: arguments.to_vec(),
            folder,
            environment,
            limits: recipe.limits(),
            container: None,
            files,
        })))
    }
}

fn own_environment(name: &Name, resource: &Resource) -> [(String, String); 4] {
    [
        ("KLAMBDA_FUNCTION".into(), name.name().to_owned()),
        ("KLAMBDA_NAMESPACE".into(), name.namespace().to_owned()),
        ("KLAMBDA_TIMEOUT_MS".into(), resource.spec.call_timeout().ms.to_string()),
        ("K_SERVICE".into(), name.name().to_owned()),
    ]
}

pub(super) fn scaling(scaling: Scaling, options: &Options) -> fleet::Scaling {
    fleet::Scaling {
        min_replicas: scaling.min_replicas,
        max_replicas: scaling.max_replicas,
        target_concurrency: scaling.target_concurrency,
        grace: Duration::from_millis(scaling.scale_to_zero_grace_period.ms),
        start_timeout: options.start_timeout,
        drain: options.drain,
        wait: options.start_timeout,
        ..fleet::Scaling::default()
    }
}
