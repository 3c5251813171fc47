//! Fetching and building.

use super::jobs::Begun;
use super::{Fetched, Platform};
use crate::control::Control;
use crate::names::Name;
use crate::observe::capital;
use crate::secrets::Secret;
use klambda_build::{Cancel, Language, Request, Stage, Told, hash_folder};
use klambda_crash::Point;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash::{self, REBUILD_ANNOTATION};
use klambda_functions::observed::{BuildRun, BuildState, Fetch, FetchState};
use klambda_functions::resource::{self, Outcome, Resource, SourceType};
use klambda_local::source::{self, Source};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where the code is, below what was fetched.
const CODE: &str = "code";

impl Control {
    pub(crate) fn fetch(
        &self,
        platform: &Platform,
        name: &Name,
        resource: &Arc<Resource>,
        inputs: String,
        number: u64,
    ) {
        let what = hash::of(&(&resource.metadata.namespace, &resource.spec.source));
        let joined = {
            let mut state = self.lock();
            let Some(entry) = state.functions.get_mut(name) else { return };
            let work = entry.work();
            if work.fetch.as_ref().is_some_and(|fetch| fetch.number == number) {
                return;
            }
            let joined = platform.fetches.join(&what, (name.clone(), number));
            work.fetch = Some(Fetch { inputs, number, state: fetching(joined.as_ref().err()) });
            joined
        };
        let begun = match joined {
            Ok(begun) => begun,
            Err(Some(_)) => return self.enqueue(name),
            Err(None) => return,
        };
        let (control, resource) = (self.clone(), resource.clone());
        tokio::spawn(async move {
            Point::Fetch.pass();
            control.fetch_for_all(begun, &resource).await
        });
    }

    async fn fetch_for_all(&self, begun: Begun, resource: &Resource) {
        let Some(platform) = self.running() else { return };
        let told = |stage: Stage| {
            let waits = waits(stage);
            for (name, number) in platform.fetches.waits(&begun, waits) {
                self.note_fetch(&name, number, |fetch| fetch.state = fetching(Some(&waits)));
            }
        };
        let fetched = tokio::select! {
            fetched = platform.fetch(resource, self, &told) => fetched,
            () = begun.cancel.cancelled() => Err(Failure::new(Reason::BuildCancelled, "It was called off")),
        };
        for (name, number) in platform.fetches.end(&begun).0 {
            self.note_fetched(&name, number, &fetched);
        }
    }

    fn note_fetch(&self, name: &Name, number: u64, note: impl FnOnce(&mut Fetch)) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let Some(fetch) = entry.work().fetch.as_mut().filter(|fetch| fetch.number == number) else { return };
        note(fetch);
        drop(state);
        self.enqueue(name);
    }

    fn note_build(&self, name: &Name, number: u64, note: impl FnOnce(&mut BuildRun)) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let Some(build) = entry.work().build.as_mut().filter(|build| build.number == number) else { return };
        note(build);
        drop(state);
        self.enqueue(name);
    }

    fn note_fetched(&self, name: &Name, number: u64, fetched: &Result<Fetched, Failure>) {
        let mut state = self.lock();
        let Some(entry) = state.functions.get_mut(name) else { return };
        let work = entry.work();
        let Some(fetch) = work.fetch.as_mut().filter(|fetch| fetch.number == number) else { return };
        match fetched {
            Ok(Fetched { digest, folder }) => {
                fetch.state = FetchState::Done { digest: digest.clone() };
                work.folder = Some(folder.clone());
            }
            Err(failure) => fetch.state = FetchState::Failed(failure.clone()),
        }
        drop(state);
        self.enqueue(name);
    }

    pub(crate) fn build(
        &self,
        platform: &Platform,
        name: &Name,
        resource: &Arc<Resource>,
        inputs: String,
        number: u64,
        hash: String,
    ) {
        let (folder, joined) = {
            let mut state = self.lock();
            let Some(entry) = state.functions.get_mut(name) else { return };
            let work = entry.work();
            if work.build.as_ref().is_some_and(|build| build.number == number) {
                return;
            }
            let joined = platform.builds.join(&hash, (name.clone(), number));
            let state = building(joined.as_ref().err());
            work.build = Some(BuildRun { inputs, hash: hash.clone(), number, state });
            (work.folder.clone(), joined)
        };
        let begun = match joined {
            Ok(begun) => begun,
            Err(Some(_)) => return self.enqueue(name),
            Err(None) => return,
        };
        let (control, resource) = (self.clone(), resource.clone());
        tokio::spawn(async move {
            Point::Build.pass();
            control.build_for_all(hash, begun, &resource, folder).await
        });
    }

    async fn build_for_all(
        &self,
        hash: String,
        begun: Begun,
        resource: &Resource,
        folder: Option<Arc<TempDir>>,
    ) {
        let Some(platform) = self.running() else { return };
        // Counted for the function that asked for it first: others that have the same content only wait for it.
        let name = Name::of(resource);
        self.counting.build_begun(&name);
        let began = OnceLock::new();
        let told = |stage: Stage| {
            let waits = waits(stage);
            if waits.is_none() {
                began.get_or_init(Instant::now);
            }
            for (name, number) in platform.builds.waits(&begun, waits) {
                self.note_build(&name, number, |build| build.state = building(Some(&waits)));
            }
        };
        let built = Box::pin(platform.build(&hash, resource, folder, &begun.cancel, self, &told)).await;
        let (askers, called_off) = platform.builds.end(&begun);
        let outcome = match &built {
            Ok(()) => Outcome::Completed,
            Err(failure) if failure.reason == Reason::BuildCancelled => called_off,
            Err(failure) => Outcome::of(failure.reason),
        };
        self.counting.build_ended(&name, outcome, began.get().map_or(Duration::ZERO, Instant::elapsed));
        for (name, number) in askers {
            let state = match &built {
                Ok(()) => BuildState::Done,
                Err(failure) => BuildState::Failed(failure.clone()),
            };
            self.note_build(&name, number, |build| build.state = state);
        }
    }

    /// Others who wait for the same thing go on.
    pub(crate) fn cancel(&self, platform: &Platform, name: &Name) {
        let mut state = self.lock();
        let entry = state.functions.get_mut(name);
        // What the plan has called it; a build that something else has taken the place of is called off.
        let build = entry.as_ref().and_then(|entry| entry.resource.status.build_status.as_ref());
        let called_off =
            build.and_then(|build| build.outcome).filter(|outcome| *outcome != Outcome::Completed);
        let called_off = called_off.unwrap_or(Outcome::Cancelled);
        if let Some(entry) = entry {
            entry.work = None;
        }
        drop(state);
        platform.fetches.leave(name, called_off);
        platform.builds.leave(name, called_off);
    }
}

impl Platform {
    async fn fetch(
        &self,
        resource: &Resource,
        control: &Control,
        told: Told<'_>,
    ) -> Result<Fetched, Failure> {
        let source = source_of(resource, control).map_err(|failure| *failure)?;
        let _slot = self.slots.take(told).await.ok_or_else(|| broken("the server is stopping"))?;
        let folder = self.fetch_into(&source, control).await?;
        let code = folder.path().join(CODE);
        let hashed = tokio::task::spawn_blocking(move || hash_folder(&code)).await;
        let digest = hashed.map_err(broken)?.map_err(broken)?.to_string();
        Ok(Fetched { digest, folder: Arc::new(folder) })
    }

    async fn fetch_into(&self, source: &Source, control: &Control) -> Result<TempDir, Failure> {
        let folder = tempfile::tempdir_in(self.folder.join("sources")).map_err(broken)?;
        let fetched = source::fetch(source, &folder.path().join(CODE), &control.options.fetch).await;
        fetched.map(|_| folder).map_err(|error| not_fetched(&error, source))
    }

    async fn build(
        &self,
        hash: &str,
        resource: &Resource,
        folder: Option<Arc<TempDir>>,
        cancel: &Cancel,
        control: &Control,
        told: Told<'_>,
    ) -> Result<(), Failure> {
        let Some(runtime) = &resource.spec.runtime else {
            return Err(Failure::new(Reason::BuildFailed, "It names no runtime"));
        };
        let folder = match folder {
            Some(folder) => folder,
            None => {
                let source = source_of(resource, control).map_err(|failure| *failure)?;
                Arc::new(self.fetch_into(&source, control).await?)
            }
        };
        let inline = resource.spec.source.as_ref().and_then(|source| source.inline.as_ref());
        let request = Request {
            source: folder.path().join(CODE),
            language: language(runtime.language),
            version: runtime.version.clone().unwrap_or_default(),
            handler: runtime.handler.clone(),
            dependencies: inline.and_then(|inline| inline.dependencies.clone()).unwrap_or_default(),
            source_distributions: resource.spec.build.allow_source_distributions,
            timeout: Duration::from_millis(resource.spec.build.timeout.ms),
            again: if is_asked_again(resource) { hash.to_owned() } else { String::new() },
        };
        let built = self.workshop.build_told(&request, cancel, told).await;
        let artifact = built.map_err(|error| not_built(&error))?;
        self.note_made(hash, artifact).map_err(broken)
    }
}

fn waits(stage: Stage) -> Option<usize> {
    match stage {
        Stage::Waits { before } => Some(before),
        Stage::Begins => None,
    }
}

fn fetching(waits: Option<&Option<usize>>) -> FetchState {
    waits.copied().flatten().map_or(FetchState::Running, |before| FetchState::Waiting { before })
}

fn building(waits: Option<&Option<usize>>) -> BuildState {
    waits.copied().flatten().map_or(BuildState::Running, |before| BuildState::Waiting { before })
}

/// Content that was built before is to be built once more.
fn is_asked_again(resource: &Resource) -> bool {
    resource.spec.build.force_rebuild || resource.metadata.annotations.contains_key(REBUILD_ANNOTATION)
}

fn language(language: resource::Language) -> Language {
    match language {
        resource::Language::Nodejs => Language::NodeJs,
        resource::Language::Python => Language::Python,
        resource::Language::Go => Language::Go,
    }
}

fn inline_language(language: resource::Language) -> source::Language {
    match language {
        resource::Language::Nodejs => source::Language::NodeJs,
        resource::Language::Python => source::Language::Python,
        resource::Language::Go => source::Language::Go,
    }
}

fn source_of(resource: &Resource, control: &Control) -> Result<Source, Box<Failure>> {
    let nothing = || Box::new(Failure::new(Reason::SourceMissing, "It names no source"));
    let given = resource.spec.source.as_ref().ok_or_else(nothing)?;
    let options = &control.options;
    Ok(match given.kind {
        SourceType::Inline => {
            let (inline, runtime) =
                given.inline.as_ref().zip(resource.spec.runtime.as_ref()).ok_or_else(nothing)?;
            Source::Inline(source::Inline {
                language: inline_language(runtime.language),
                handler: runtime.handler.clone(),
                code: inline.code.clone(),
                // Installed by the build, which is told of them.
                dependencies: String::new(),
            })
        }
        SourceType::Git => {
            let git = given.git.as_ref().ok_or_else(nothing)?;
            Source::Git(source::Git {
                url: git.url.clone(),
                reference: git.reference.clone().unwrap_or_default(),
                path: git.path.clone().unwrap_or_default(),
                credentials: Secret::open(options, git.secret_ref.as_ref()).for_git()?,
            })
        }
        SourceType::Minio => {
            let minio = given.minio.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::Minio,
                bucket: minio.bucket.clone(),
                key: minio.key.clone(),
                endpoint: Some(endpoint(&minio.endpoint)),
                region: None,
                credentials: Secret::open(options, minio.secret_ref.as_ref()).for_buckets()?,
            })
        }
        SourceType::S3 => {
            let s3 = given.s3.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::S3,
                bucket: s3.bucket.clone(),
                key: s3.key.clone(),
                endpoint: s3.endpoint.clone(),
                region: Some(s3.region.clone()),
                credentials: Secret::open(options, s3.secret_ref.as_ref()).for_buckets()?,
            })
        }
        SourceType::Gcs => {
            let gcs = given.gcs.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::Gcs,
                bucket: gcs.bucket.clone(),
                key: gcs.key.clone(),
                endpoint: None,
                region: None,
                credentials: Secret::open(options, gcs.secret_ref.as_ref()).for_google()?,
            })
        }
        SourceType::Folder => {
            let folder = given.folder.as_ref().ok_or_else(nothing)?;
            Source::Folder(PathBuf::from(&folder.path))
        }
        SourceType::Image | SourceType::Url => return Err(nothing()),
    })
}

/// Addresses of MinIO are written without a scheme as well.
fn endpoint(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::PlatformError, capital(&error.to_string()))
}

fn not_fetched(error: &source::Error, source: &Source) -> Failure {
    let reason = match error {
        source::Error::NotFound(_) | source::Error::BadReference(_) => Reason::SourceNotFound,
        source::Error::Refused(_) => Reason::SourceRefused,
        source::Error::Unsafe(_) => Reason::SourceUnsafe,
        source::Error::TooLarge(_) => Reason::SourceTooLarge,
        source::Error::UnsafeArchive(_) | source::Error::BadArchive(_) => Reason::ArchiveRefused,
        source::Error::Timeout(_) => Reason::SourceTimeout,
        source::Error::Unreachable(_) => Reason::SourceUnreachable,
        source::Error::ToolMissing(_) => Reason::ToolMissing,
        source::Error::Io(_) => Reason::PlatformError,
    };
    let hint = match source {
        Source::Git(git) if reason == Reason::SourceNotFound && is_short_commit(&git.reference) => {
            "; a commit is named by all of its 40 digits"
        }
        _ => "",
    };
    Failure::new(reason, capital(&format!("{error}{hint}")))
}

/// A branch may look so as well: it is only suspected when there is none.
fn is_short_commit(reference: &str) -> bool {
    (4..40).contains(&reference.len()) && reference.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn not_built(error: &klambda_build::Error) -> Failure {
    let reason = match error {
        klambda_build::Error::VersionNotAvailable { .. } => Reason::RuntimeNotFound,
        klambda_build::Error::DependencyNotFound { .. } => Reason::DependencyNotFound,
        klambda_build::Error::SyntaxError { .. } => Reason::SyntaxError,
        klambda_build::Error::HandlerMissing { .. } => Reason::HandlerNotFound,
        klambda_build::Error::Timeout { .. } => Reason::BuildTimeout,
        klambda_build::Error::Stalled { .. } => Reason::BuildStalled,
        klambda_build::Error::Cancelled => Reason::BuildCancelled,
        klambda_build::Error::Failed { .. } => Reason::BuildFailed,
    };
    Failure::new(reason, capital(&error.to_string())).with_lines(error.log().to_vec())
}
