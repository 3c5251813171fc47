//! From an artifact to what the fleet runs.

use super::{Platform, made};
use crate::control::Control;
use crate::names::Name;
use crate::options::Options;
use crate::secrets;
use crate::state::Deployed;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{EnvVar, Image, Resource, Resources, Scaling};
use klambda_local::fleet::{self, Run, Version};
use klambda_local::process::{Command, Limits};
use klambda_local::{container, fleet::Scaling as FleetScaling};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long a call may take where the manifest does not say.
const TIMEOUT_MS: u64 = 30_000;

/// What a version is made of, kept by its name: after a restart the one that serves may be another than the one that
/// is asked for. Secrets are named in it, not written.
#[derive(Serialize, Deserialize)]
pub struct Recipe {
    pub artifact: String,
    image: Option<Box<Image>>,
    url: Option<String>,
    env: Vec<EnvVar>,
    resources: Resources,
}

impl Recipe {
    fn new(resource: &Resource, artifact: String) -> Recipe {
        let source = resource.spec.source.as_ref();
        Recipe {
            artifact,
            image: source.and_then(|source| source.image.clone()),
            url: resource.spec.url().map(str::to_owned),
            env: resource.spec.env.clone(),
            resources: resource.spec.resources,
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

impl Control {
    pub(crate) fn deploy(
        &self,
        platform: &Platform,
        name: &Name,
        resource: &Arc<Resource>,
        version: String,
        artifact: String,
        generation: u64,
    ) {
        let recipe = Recipe::new(resource, artifact);
        let run = platform.run_of(name, resource, &recipe, &self.options);
        if run.is_ok()
            && let Err(error) = platform.keep(&version, &recipe)
        {
            tracing::warn!(%error, function = %name, "It is not noted how a version is started; a restart will build it again.");
        }
        let away = match &run {
            Ok(Run::Remote(url)) => Some(url.clone()),
            _ => None,
        };
        let deployed = Deployed {
            version: version.into(),
            artifact: recipe.artifact.into(),
            generation,
            scaling: resource.spec.scaling,
            since: self.clock.now(),
            run,
            asking: away.is_some(),
        };
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        if entry.retiring || entry.deployed.iter().any(|known| known.version == deployed.version) {
            return;
        }
        match away {
            Some(url) => drop(tokio::spawn(self.clone().ask(name.clone(), deployed.version.clone(), url))),
            None => platform.tell_fleet(name, &deployed, &self.options),
        }
        entry.deployed.push(deployed);
        drop(state);
        self.enqueue(name);
    }

    pub(crate) fn scale(&self, platform: &Platform, name: &Name, version: &str, scaling: Scaling) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let newest = entry.deployed.iter().rposition(Deployed::is_told);
        let Some(index) = entry.deployed.iter().position(|known| *known.version == *version) else { return };
        entry.deployed[index].scaling = scaling;
        if newest == Some(index) {
            platform.tell_fleet(name, &entry.deployed[index], &self.options);
        }
        drop(state);
        self.enqueue(name);
    }

    pub(crate) fn retire(&self, platform: &Platform, name: &Name, resource: &Resource, version: &str) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        if resource.is_deleting() {
            if !std::mem::replace(&mut entry.retiring, true) {
                tokio::spawn(self.clone().end(name.clone()));
            }
            return;
        }
        entry.deployed.retain(|known| *known.version != *version);
        // The fleet passes over what never answered when it is told of what serves again; what is older it ends itself.
        if let Some(kept) = entry.deployed.iter().rev().find(|known| known.is_told()) {
            platform.tell_fleet(name, kept, &self.options);
        }
        drop(state);
        self.enqueue(name);
    }

    async fn end(self, name: Name) {
        let Some(platform) = self.running() else { return };
        platform.fleet.remove(name.as_str(), Duration::from_millis(self.options.limits.drain_ms_max)).await;
        if let Some(entry) = self.lock().functions.get_mut(&name) {
            entry.deployed.clear();
        }
        self.enqueue(&name);
    }
}

impl Platform {
    pub(super) fn recipe(&self, version: &str) -> Option<Recipe> {
        let text = std::fs::read(self.recipe_path(version)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn recipe_path(&self, version: &str) -> PathBuf {
        self.folder.join("versions").join(format!("{version}.json"))
    }

    fn keep(&self, version: &str, recipe: &Recipe) -> std::io::Result<()> {
        let path = self.recipe_path(version);
        if path.exists() { Ok(()) } else { made::write(&path, recipe) }
    }

    pub(super) fn tell_fleet(&self, name: &Name, deployed: &Deployed, options: &Options) {
        let Ok(run) = &deployed.run else { return };
        let content = self.made(&deployed.artifact).map(|made| made.content.as_str().into());
        let version = Version {
            id: deployed.version.clone(),
            artifact: content.unwrap_or_else(|| deployed.artifact.clone()),
            run: run.clone(),
            scaling: scaling(deployed.scaling, options),
        };
        if let Err(error) = self.fleet.deploy(name.as_str(), version) {
            tracing::warn!(%error, function = %name, "A version is not deployed.");
        }
    }

    pub(super) fn run_of(
        &self,
        name: &Name,
        resource: &Resource,
        recipe: &Recipe,
        options: &Options,
    ) -> Result<Run, Failure> {
        if let Some(url) = &recipe.url {
            return Ok(Run::Remote(url.as_str().into()));
        }
        let mut environment = secrets::environment(&recipe.env, options).map_err(|failure| *failure)?;
        environment.extend(own_environment(name, resource));
        if let Some(image) = &recipe.image {
            return Ok(Run::Image(Arc::new(container::Image {
                reference: image.uri.clone(),
                port: image.port,
                arguments: Vec::new(),
                environment,
                limits: recipe.limits(),
            })));
        }
        let gone = || Failure::new(Reason::PlatformError, "Its artifact is no longer there");
        let made = self.made(&recipe.artifact).ok_or_else(gone)?;
        let folder = self.work_folder(name);
        std::fs::create_dir_all(&folder).map_err(|error| {
            Failure::new(Reason::PlatformError, format!("Its folder cannot be made: {error}"))
        })?;
        environment.push(("HOME".into(), folder.to_string_lossy().into_owned()));
        environment.extend(made.environment.iter().cloned());
        let (program, arguments) = made.command.split_first().ok_or_else(gone)?;
        Ok(Run::Process(Arc::new(Command {
            program: program.into(),
            arguments: arguments.to_vec(),
            folder,
            environment,
            limits: recipe.limits(),
            container: None,
        })))
    }
}

pub fn timeout_ms(resource: &Resource) -> u64 {
    let stated = resource.spec.retry.as_ref().and_then(|retry| retry.timeout);
    stated.map_or(TIMEOUT_MS, |timeout| timeout.ms)
}

fn own_environment(name: &Name, resource: &Resource) -> [(String, String); 4] {
    [
        ("KLAMBDA_FUNCTION".into(), name.name().to_owned()),
        ("KLAMBDA_NAMESPACE".into(), name.namespace().to_owned()),
        ("KLAMBDA_TIMEOUT_MS".into(), timeout_ms(resource).to_string()),
        ("K_SERVICE".into(), name.name().to_owned()),
    ]
}

fn scaling(scaling: Scaling, options: &Options) -> FleetScaling {
    FleetScaling {
        min_replicas: scaling.min_replicas,
        max_replicas: scaling.max_replicas,
        target_concurrency: scaling.target_concurrency,
        grace: Duration::from_millis(scaling.scale_to_zero_grace_period.ms),
        start_timeout: options.start_timeout,
        drain: Duration::from_millis(options.limits.drain_ms_max),
        wait: options.start_timeout,
        ..fleet::Scaling::default()
    }
}
