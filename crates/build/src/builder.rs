//! Runs builds: one at a time per content, several at once, each in a folder that is renamed when it is complete.

use crate::hash::Hasher;
use crate::output::{Output, Printed};
use crate::slots::{OnStage, Slots, Stage};
use crate::step::Bench;
use crate::tools::Tools;
use crate::wrappers::Wrappers;
use crate::{
    Artifact, Cancel, Error, Hash, Language, ProcessTracker, Request, Tool, files, go, hash_folder, nodejs,
    python,
};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tracing::{debug, info};

/// Increase this when the same source must produce a different artifact.
const FORMAT: &str = "1";
const STALL_DEFAULT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug)]
pub struct Options {
    /// Holds artifacts and the wrappers. Created if it does not exist. Only one process may use it at a time.
    pub dir: PathBuf,
    /// The shared cache of the tools for downloads and compiled code.
    pub cache: PathBuf,
    /// Maximum number of concurrent builds.
    pub builds_max: usize,
    /// A build without output and CPU use for this long is killed, because it would block its slot.
    pub stall: Duration,
    /// Prefix of every command, for example a program that kills the command when this process ends.
    pub launcher: Vec<OsString>,
    /// Kills processes that commands leave behind outside their process group.
    pub tracker: Option<ProcessTracker>,
}

impl Options {
    pub fn new(dir: impl Into<PathBuf>) -> Options {
        let dir: PathBuf = dir.into();
        Options {
            cache: dir.join("cache"),
            dir,
            builds_max: 2,
            stall: STALL_DEFAULT,
            launcher: Vec::new(),
            tracker: None,
        }
    }
}

pub struct Builder {
    options: Options,
    wrappers: Wrappers,
    tools: Tools,
    slots: Slots,
    open: SyncMutex<HashMap<Hash, Weak<Mutex<()>>>>,
}

impl Builder {
    /// Opens the folder and removes the remains of interrupted builds.
    pub fn open(options: Options) -> Result<Builder, Error> {
        let wrappers = Wrappers::write(&options.dir.join("runtimes"))?;
        let building = options.dir.join("building");
        if building.exists() {
            std::fs::remove_dir_all(&building).map_err(|e| Error::io("could not clear", &building, &e))?;
        }
        for folder in [&building, &options.dir.join("artifacts"), &options.cache] {
            std::fs::create_dir_all(folder).map_err(|e| Error::io("could not create", folder, &e))?;
        }
        let slots = Slots::new(options.builds_max);
        Ok(Builder { options, wrappers, tools: Tools::default(), slots, open: SyncMutex::default() })
    }

    /// The installed tools for a language.
    pub async fn tools(&self, language: Language) -> Vec<Tool> {
        self.tools.all(language).await
    }

    /// The hash of the artifact of a request, without building it.
    pub async fn hash(&self, request: &Request) -> Result<Hash, Error> {
        let tool = self.tools.find(request.language, &request.version).await?;
        self.content(request, &tool).await
    }

    /// Returns the artifact of a request, and builds it unless its content was built before. Builds of the same content
    /// wait for each other and share the result.
    pub async fn build(&self, request: &Request, cancel: &Cancel) -> Result<Artifact, Error> {
        self.build_with_progress(request, cancel, &|_| {}, None).await
    }

    /// The same, and reports when the build waits, when it starts, and what it prints.
    pub async fn build_with_progress(
        &self,
        request: &Request,
        cancel: &Cancel,
        on_stage: OnStage<'_>,
        printed: Option<Printed>,
    ) -> Result<Artifact, Error> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Error::Cancelled),
            result = Box::pin(self.find_or_make(request, on_stage, printed)) => result,
        }
    }

    /// Builds that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.slots.waiting()
    }

    /// Removes all artifacts except the given ones. Artifacts in use must be given.
    pub async fn keep_only(&self, keep: &[Hash]) -> std::io::Result<usize> {
        let keep: Vec<OsString> = keep.iter().map(|hash| hash.to_string().into()).collect();
        let mut removed = 0;
        for entry in std::fs::read_dir(self.options.dir.join("artifacts"))? {
            let entry = entry?;
            if !keep.contains(&entry.file_name()) {
                std::fs::remove_dir_all(entry.path())?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    async fn find_or_make(
        &self,
        request: &Request,
        on_stage: OnStage<'_>,
        printed: Option<Printed>,
    ) -> Result<Artifact, Error> {
        request.handler_parts()?;
        let tool = self.tools.find(request.language, &request.version).await?;
        let hash = self.content(request, &tool).await?;
        let dir = self.options.dir.join("artifacts").join(hash.to_string());
        let turn = self.turn(hash);
        let _turn = match turn.try_lock() {
            Ok(held) => held,
            Err(_) => {
                on_stage(Stage::Waits { before: 1 });
                turn.lock().await
            }
        };
        if dir.is_dir() {
            debug!(%hash, "Artifact found");
        } else {
            self.make(request, &tool, &dir, on_stage, Output::new(printed)).await?;
            info!(%hash, language = %request.language, version = %tool.version, "Artifact built");
        }
        Ok(self.artifact(request, &tool, hash, dir))
    }

    /// The lock of a content. Dropped when nobody holds it.
    fn turn(&self, hash: Hash) -> Arc<Mutex<()>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = open.get(&hash).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Mutex::new(()));
        open.insert(hash, Arc::downgrade(&turn));
        turn
    }

    async fn content(&self, request: &Request, tool: &Tool) -> Result<Hash, Error> {
        let source = request.source.clone();
        let folder =
            blocking(move || hash_folder(&source).map_err(|e| Error::io("could not read", &source, &e)))
                .await?;
        let mut hasher = Hasher::new();
        hasher.part(FORMAT.as_bytes());
        hasher.part(folder.to_string().as_bytes());
        hasher.part(request.language.name().as_bytes());
        hasher.part(format!("{}.{}", tool.version.major, tool.version.minor).as_bytes());
        hasher.part(request.handler.as_bytes());
        hasher.part(request.dependencies.trim().as_bytes());
        if request.source_distributions {
            hasher.part(b"source distributions");
        }
        if !request.again.is_empty() {
            hasher.part(request.again.as_bytes());
        }
        if request.language == Language::Go {
            // The Go wrapper is compiled in. The other wrappers are beside the artifact.
            hasher.part(self.wrappers.hash.to_string().as_bytes());
        }
        Ok(hasher.finish())
    }

    async fn make(
        &self,
        request: &Request,
        tool: &Tool,
        dir: &Path,
        on_stage: OnStage<'_>,
        output: Output,
    ) -> Result<(), Error> {
        let _slot = self.slots.take(on_stage).await.ok_or(Error::Cancelled)?;
        let building = self.options.dir.join("building");
        let folder =
            tempfile::tempdir_in(&building).map_err(|e| Error::io("could not write into", &building, &e))?;
        let bench = Bench {
            dir: folder.path().join("artifact"),
            home: folder.path().join("home"),
            cache: self.options.cache.clone(),
            launcher: self.options.launcher.clone(),
            tracker: self.options.tracker.clone(),
            output,
            stall: self.options.stall,
        };
        let work = self.work(request, tool, &bench);
        let made = match tokio::time::timeout(request.timeout, Box::pin(work)).await {
            Ok(Ok(())) => put(bench.dir, dir.to_path_buf()).await,
            Ok(failed) => failed,
            Err(_) => Err(Error::Timeout { after: request.timeout, log: bench.output.lines() }),
        };
        clear(folder).await;
        made
    }

    async fn work(&self, request: &Request, tool: &Tool, bench: &Bench) -> Result<(), Error> {
        let (source, code, home) = (request.source.clone(), bench.code(), bench.home.clone());
        blocking(move || {
            for folder in [&code, &home] {
                std::fs::create_dir_all(folder).map_err(|e| Error::io("could not create", folder, &e))?;
            }
            files::copy_folder(&source, &code)
        })
        .await?;
        match request.language {
            Language::NodeJs => nodejs::build(request, tool, bench).await,
            Language::Python => python::build(request, tool, bench, &self.wrappers).await,
            Language::Go => go::build(request, tool, bench, &self.wrappers).await,
        }
    }

    fn artifact(&self, request: &Request, tool: &Tool, hash: Hash, dir: PathBuf) -> Artifact {
        let program = tool.path.clone().into_os_string();
        let command = match request.language {
            Language::NodeJs => vec![program, self.wrappers.path("nodejs/main.js").into()],
            // Without `site`, which takes most of the start time. The wrapper finds the packages itself.
            Language::Python => {
                vec![program, "-S".into(), "-s".into(), self.wrappers.path("python/main.py").into()]
            }
            Language::Go => vec![dir.join(go::BINARY).into()],
        };
        let env = vec![
            ("KLAMBDA_CODE".into(), dir.join("code").into()),
            ("KLAMBDA_HANDLER".into(), request.handler.clone().into()),
        ];
        Artifact { hash, dir, command, env }
    }
}

/// Removes a folder that tools used. Killed tools may still write for a moment. The rest is removed when the
/// builder opens again.
async fn clear(folder: tempfile::TempDir) {
    const TRIES: u32 = 20;
    let path = folder.keep();
    for _ in 0..TRIES {
        let gone = path.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(gone)).await;
        if matches!(removed, Ok(Ok(()))) || !path.exists() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Makes a finished folder durable, then visible.
async fn put(made: PathBuf, dir: PathBuf) -> Result<(), Error> {
    blocking(move || {
        let failed = |e: std::io::Error| Error::io("could not store the artifact in", &dir, &e);
        let handle = std::fs::File::open(&made).map_err(failed)?;
        rustix::fs::syncfs(&handle).map_err(|e| failed(e.into()))?;
        std::fs::rename(&made, &dir).map_err(failed)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            Err(Error::Failed { message: format!("the build was aborted: {error}"), log: Vec::new() })
        }
    }
}
