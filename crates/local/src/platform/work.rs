//! Fetches and builds.

use super::Machine;
use super::function::{BuildLog, Work};
use super::jobs::Begun;
use super::observe::capital;
use super::source_of::source_of;
use crate::source::{self, Source};
use klambda_build::{Cancel, Language, OnStage, Printed, Request, Stage, hash_folder};
use klambda_crash::Point;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash::{self, REBUILD_ANNOTATION};
use klambda_functions::logs::Build;
use klambda_functions::name::Name;
use klambda_functions::observed::{BuildRun, BuildState, Fetch, FetchState};
use klambda_functions::platform::News;
use klambda_functions::resource::{self, BuildOutcome, Resource};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The folder of the code, below the fetched folder.
const CODE: &str = "code";

#[derive(Clone)]
pub(super) struct Fetched {
    pub digest: String,
    commit: Option<String>,
    pub folder: Arc<TempDir>,
}

impl Machine {
    pub(super) fn fetch(&self, name: &Name, resource: &Arc<Resource>, inputs: String, number: u64) {
        let what = hash::of(&(&resource.metadata.namespace, &resource.spec.source));
        let joined = {
            let mut functions = self.lock();
            let work = functions.entry(name.clone()).or_default().work();
            if work.fetch.as_ref().is_some_and(|fetch| fetch.number == number) {
                return;
            }
            let joined = self.fetches.join(&what, (name.clone(), number));
            work.fetch = Some(Fetch { inputs, number, state: fetching(joined.as_ref().err()) });
            joined
        };
        let begun = match joined {
            Ok(begun) => begun,
            Err(Some(_)) => return self.changed(name),
            Err(None) => return,
        };
        let (machine, resource) = (self.clone(), resource.clone());
        tokio::spawn(async move {
            Point::Fetch.pass();
            machine.fetch_for_all(begun, &resource).await
        });
    }

    async fn fetch_for_all(&self, begun: Begun, resource: &Resource) {
        let on_stage = |stage: Stage| {
            let waits = waits(stage);
            for (name, number) in self.fetches.waits(&begun, waits) {
                self.note_fetch(&name, number, |fetch| fetch.state = fetching(Some(&waits)));
            }
        };
        let fetched = tokio::select! {
            fetched = self.fetch_source(resource, &on_stage) => fetched,
            () = begun.cancel.cancelled() => Err(Failure::new(Reason::BuildCancelled, "The fetch was cancelled")),
        };
        for (name, number) in self.fetches.end(&begun).0 {
            self.note_fetched(&name, number, &fetched);
        }
    }

    fn note_fetch(&self, name: &Name, number: u64, note: impl FnOnce(&mut Fetch)) {
        let mut functions = self.lock();
        let work = functions.get_mut(name).and_then(|function| function.work.as_mut());
        let fetch = work.and_then(|work| work.fetch.as_mut()).filter(|fetch| fetch.number == number);
        let Some(fetch) = fetch else { return };
        note(fetch);
        drop(functions);
        self.changed(name);
    }

    fn note_build(&self, name: &Name, number: u64, note: impl FnOnce(&mut BuildRun)) {
        let mut functions = self.lock();
        let work = functions.get_mut(name).and_then(|function| function.work.as_mut());
        let build = work.and_then(|work| work.build.as_mut()).filter(|build| build.number == number);
        let Some(build) = build else { return };
        note(build);
        drop(functions);
        self.changed(name);
    }

    fn note_fetched(&self, name: &Name, number: u64, fetched: &Result<Fetched, Failure>) {
        let mut functions = self.lock();
        let Some(work) = functions.get_mut(name).and_then(|function| function.work.as_mut()) else { return };
        let Some(fetch) = work.fetch.as_mut().filter(|fetch| fetch.number == number) else { return };
        match fetched {
            Ok(Fetched { digest, commit, folder }) => {
                fetch.state = FetchState::Done { digest: digest.clone(), commit: commit.clone() };
                work.folder = Some(folder.clone());
            }
            Err(failure) => fetch.state = FetchState::Failed(failure.clone()),
        }
        drop(functions);
        self.changed(name);
    }

    pub(super) fn build(
        &self,
        name: &Name,
        resource: &Arc<Resource>,
        inputs: String,
        number: u64,
        hash: String,
    ) {
        let (folder, joined) = {
            let mut functions = self.lock();
            let work = functions.entry(name.clone()).or_default().work();
            if work.build.as_ref().is_some_and(|build| build.number == number) {
                return;
            }
            let joined = self.builds.join(&hash, (name.clone(), number));
            let state = building(joined.as_ref().err());
            work.build = Some(BuildRun { inputs, hash: hash.clone(), number, state });
            let build = Build { hash: hash.clone(), started: (self.now)() };
            work.build_log = Some(BuildLog { generation: resource.metadata.generation, build });
            (work.folder.clone(), joined)
        };
        let shared = if joined.is_err() { ", shared with a function of the same content" } else { "" };
        self.print_build(name, number, &format!("Build started (hash {hash}){shared}"));
        let begun = match joined {
            Ok(begun) => begun,
            Err(Some(_)) => return self.changed(name),
            Err(None) => return,
        };
        let (machine, resource) = (self.clone(), resource.clone());
        tokio::spawn(async move {
            Point::Build.pass();
            machine.build_for_all(hash, begun, &resource, folder).await
        });
    }

    async fn build_for_all(
        &self,
        hash: String,
        begun: Begun,
        resource: &Resource,
        folder: Option<Arc<TempDir>>,
    ) {
        // Counted for the function that asked first. Others with the same content only wait.
        let name = Name::of(resource);
        (self.tell)(News::BuildBegun(name.clone()));
        let began = OnceLock::new();
        let on_stage = |stage: Stage| {
            let waits = waits(stage);
            if waits.is_none() {
                began.get_or_init(Instant::now);
            }
            for (name, number) in self.builds.waits(&begun, waits) {
                self.note_build(&name, number, |build| build.state = building(Some(&waits)));
            }
        };
        let printed = self.printed(&begun);
        let built =
            Box::pin(self.build_artifact(&hash, resource, folder, &begun.cancel, &on_stage, printed)).await;
        let (askers, called_off) = self.builds.end(&begun);
        let outcome = match &built {
            Ok(()) => BuildOutcome::Completed,
            Err(failure) if failure.reason == Reason::BuildCancelled => called_off,
            Err(failure) => BuildOutcome::of(failure.reason),
        };
        let took = began.get().map_or(Duration::ZERO, Instant::elapsed);
        (self.tell)(News::BuildEnded { name, outcome, took });
        let result = match &built {
            Ok(()) => format!("Build succeeded in {:.1}s", took.as_secs_f64()),
            Err(failure) => format!("Build failed: {} ({})", failure.detail, failure.reason.name()),
        };
        for (name, number) in askers {
            self.print_build(&name, number, &result);
            let state = match &built {
                Ok(()) => BuildState::Done,
                Err(failure) => BuildState::Failed(failure.clone()),
            };
            self.note_build(&name, number, |build| build.state = state);
        }
    }

    /// Prints the output of a job into the logs of all functions that wait for it.
    fn printed(&self, begun: &Begun) -> Printed {
        let (machine, begun) = (self.clone(), begun.clone());
        Arc::new(move |text| {
            for (name, number) in machine.builds.askers(&begun) {
                machine.print_build(&name, number, text);
            }
        })
    }

    fn print_build(&self, name: &Name, number: u64, text: &str) {
        let functions = self.lock();
        let work = functions.get(name).and_then(|function| function.work.as_deref());
        let is_current = |work: &&Work| work.build.as_ref().is_some_and(|build| build.number == number);
        let Some(log) = work.filter(is_current).and_then(|work| work.build_log.clone()) else { return };
        drop(functions);
        self.logs.of(name.as_str()).push_build(log.generation, &log.build, text);
    }

    /// Other functions that wait for the same job are not affected.
    pub(super) fn cancel(&self, name: &Name, called_off: BuildOutcome) {
        if let Some(function) = self.lock().get_mut(name) {
            function.work = None;
        }
        self.fetches.leave(name, called_off);
        self.builds.leave(name, called_off);
    }

    pub(super) async fn fetch_source(
        &self,
        resource: &Resource,
        on_stage: OnStage<'_>,
    ) -> Result<Fetched, Failure> {
        self.may_run_code()?;
        let source = self.source_of(resource).await?;
        let _slot = self.slots.take(on_stage).await.ok_or_else(|| broken("the server is shutting down"))?;
        self.fetch_and_hash(&resource.metadata.namespace, &source).await
    }

    async fn fetch_and_hash(&self, namespace: &str, source: &Source) -> Result<Fetched, Failure> {
        let (folder, revision) = self.fetch_into(namespace, source).await?;
        let commit = revision.filter(|_| matches!(source, Source::Git(_)));
        let code = folder.path().join(CODE);
        let hashed = tokio::task::spawn_blocking(move || hash_folder(&code)).await;
        let digest = hashed.map_err(broken)?.map_err(broken)?.to_string();
        Ok(Fetched { digest, commit, folder: Arc::new(folder) })
    }

    /// Fetches a source and returns its digest. Keeps nothing.
    pub(super) async fn look(&self, resource: &Resource) -> Result<String, Failure> {
        self.may_run_code()?;
        let source = self.source_of(resource).await?;
        let _alone = self.looking.lock().await;
        Ok(self.fetch_and_hash(&resource.metadata.namespace, &source).await?.digest)
    }

    /// Reads the secrets that it names, on a thread that may block.
    async fn source_of(&self, resource: &Resource) -> Result<Source, Failure> {
        let (machine, resource) = (self.clone(), resource.clone());
        let read = tokio::task::spawn_blocking(move || source_of(&resource, &machine.options)).await;
        read.map_err(broken)?.map_err(|failure| *failure)
    }

    /// The folder, and the revision of the source: a commit or an ETag.
    async fn fetch_into(
        &self,
        namespace: &str,
        source: &Source,
    ) -> Result<(TempDir, Option<String>), Failure> {
        let folder = tempfile::tempdir_in(self.options.folder.join("sources")).map_err(broken)?;
        let reach = self.options.outbound.reach(namespace);
        let limits = source::Limits { reach, ..self.options.fetch.clone() };
        let fetched = source::fetch(source, &folder.path().join(CODE), &limits).await;
        fetched.map(|fetched| (folder, fetched.revision)).map_err(|error| not_fetched(&error, source))
    }

    pub(super) async fn build_artifact(
        &self,
        hash: &str,
        resource: &Resource,
        folder: Option<Arc<TempDir>>,
        cancel: &Cancel,
        on_stage: OnStage<'_>,
        printed: Printed,
    ) -> Result<(), Failure> {
        self.may_run_code()?;
        let Some(runtime) = &resource.spec.runtime else {
            return Err(Failure::new(Reason::BuildFailed, "The function has no runtime"));
        };
        let folder = match folder {
            Some(folder) => folder,
            None => {
                let source = self.source_of(resource).await?;
                Arc::new(self.fetch_into(&resource.metadata.namespace, &source).await?.0)
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
        let built = self.builder.build_with_progress(&request, cancel, on_stage, Some(printed)).await;
        let artifact = built.map_err(|error| not_built(&error))?;
        self.note_built(hash, artifact).map_err(broken)
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

/// Whether known content must be built again.
fn is_asked_again(resource: &Resource) -> bool {
    resource.spec.build.force_rebuild || resource.metadata.annotations.contains_key(REBUILD_ANNOTATION)
}

pub(super) fn language(language: resource::Language) -> Language {
    match language {
        resource::Language::Nodejs => Language::NodeJs,
        resource::Language::Python => Language::Python,
        resource::Language::Go => Language::Go,
    }
}

pub(super) fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::PlatformError, capital(&error.to_string()))
}

pub(super) fn not_fetched(error: &source::Error, source: &Source) -> Failure {
    let reason = match error {
        source::Error::NotFound(_) | source::Error::BadReference(_) => Reason::SourceNotFound,
        source::Error::Refused(_) => Reason::SourceRefused,
        source::Error::Unsafe(_) => Reason::SourceUnsafe,
        source::Error::TooLarge(_) => Reason::SourceTooLarge,
        source::Error::UnsafeArchive(_) | source::Error::BadArchive(_) => Reason::ArchiveRefused,
        source::Error::Timeout(_) => Reason::SourceTimeout,
        source::Error::Unreachable(_) => Reason::SourceUnreachable,
        source::Error::Forbidden(_) => Reason::AddressForbidden,
        source::Error::ToolMissing(_) => Reason::ToolMissing,
        source::Error::Io(_) => Reason::PlatformError,
    };
    let hint = match source {
        Source::Git(git) if reason == Reason::SourceNotFound && is_short_commit(&git.reference) => {
            "; to select a commit, use all 40 digits of its hash"
        }
        _ => "",
    };
    Failure::new(reason, capital(&format!("{error}{hint}")))
}

/// A branch may have such a name too, so this matters only if no branch was found.
fn is_short_commit(reference: &str) -> bool {
    (4..40).contains(&reference.len()) && reference.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) fn not_built(error: &klambda_build::Error) -> Failure {
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
