//! The functions of a backup. The snapshot of the engine has their documents; their artifacts are files.

use crate::control::Control;
use klambda_functions::platform::{Files, Platform};
use klambda_functions::resource::Resource;
use std::sync::Arc;
use tokio::sync::RwLockWriteGuard;

/// While this exists, all documents of functions are durable and none of them changes.
pub struct Still<'a> {
    control: &'a Control,
    _steps: RwLockWriteGuard<'a, ()>,
}

/// The functions at one instant. While this exists, the platform removes none of their files.
pub struct Archive {
    platform: Option<Arc<dyn Platform>>,
    resources: Vec<Arc<Resource>>,
    _kept: Option<Box<dyn Send>>,
}

impl Control {
    pub async fn still(&self) -> Still<'_> {
        Still { control: self, _steps: self.steps.write().await }
    }
}

impl Still<'_> {
    pub async fn archive(&self) -> Archive {
        let platform = self.control.running().cloned();
        let kept = match &platform {
            Some(platform) => Some(platform.keep().await),
            None => None,
        };
        Archive { platform, resources: self.control.all(), _kept: kept }
    }
}

impl Archive {
    /// Reads files: call it on a thread that may block.
    pub fn files(&self) -> Files {
        self.platform.as_ref().map(|platform| platform.files_of(&self.resources)).unwrap_or_default()
    }
}
