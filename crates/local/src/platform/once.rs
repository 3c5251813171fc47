//! One function without a control plane: fetched, built and started, in a folder that the caller removes afterwards.

use super::deploy::{Recipe, scaling};
use super::work::broken;
use super::{Machine, Options, STOP_WITHIN, cache};
use crate::fleet::{self, Lease, Version};
use crate::logs::Follower;
use klambda_build::Cancel;
use klambda_core::time::Millis;
use klambda_functions::failure::Failure;
use klambda_functions::name::Name;
use klambda_functions::platform::Home;
use klambda_functions::resource::Resource;
use std::sync::Arc;
use std::time::SystemTime;

/// A function that is built and deployed. It runs until [`Once::stop`].
pub struct Once {
    machine: Machine,
    name: Name,
}

impl Once {
    /// Must be called within a runtime, which watches the processes.
    pub async fn start(options: Options, resource: &Resource) -> Result<Once, Failure> {
        cache::sweep(&options.folder.join("cache"), options.cache, SystemTime::now());
        let home = Home { resources: Vec::new(), tell: Arc::new(|_| {}), now: Arc::new(|| Millis(0)) };
        let machine = Machine::start(options, home).map_err(broken)?;
        let once = Once { machine, name: Name::of(resource) };
        match once.deploy(resource).await {
            Ok(()) => Ok(once),
            Err(failure) => {
                once.stop().await;
                Err(failure)
            }
        }
    }

    async fn deploy(&self, resource: &Resource) -> Result<(), Failure> {
        let machine = &self.machine;
        let fetched = machine.fetch_source(resource, &|_| {}).await?;
        let hash = fetched.digest;
        let never = Cancel::default();
        let build = machine.build_artifact(
            &hash,
            resource,
            Some(fetched.folder),
            &never,
            &|_| {},
            Arc::new(|_: &str| {}),
        );
        Box::pin(build).await?;
        let run = machine.run_of(&self.name, resource, &Recipe::new(resource, hash.clone()))?;
        let scaling = scaling(resource.spec.scaling, &machine.options);
        let version =
            Version { id: hash.as_str().into(), artifact: hash.into(), generation: 1, run, scaling };
        machine.fleet.deploy(self.name.as_str(), version).map_err(broken)
    }

    /// A replica for one call.
    pub async fn lease(&self) -> Result<Lease, fleet::Error> {
        self.machine.fleet.acquire(self.name.as_str()).await
    }

    /// The output of the function from its beginning. It ends when the function is stopped.
    pub fn logs(&self) -> Option<Follower> {
        Some(self.machine.fleet.logs(self.name.as_str())?.follow(usize::MAX))
    }

    /// Returns when nothing of the function runs.
    pub async fn stop(&self) {
        self.machine.fleet.shutdown(STOP_WITHIN).await;
    }
}
