//! The developer loop: `init` writes a function, `dev` runs it and builds it again after every change, `run` calls it once.

pub mod dev;
pub mod init;
mod log_line;
pub mod once;
mod outcomes;
mod project;
mod watch;

use crate::args::Global;
use crate::exit::Usage;
use std::path::{Path, PathBuf};

/// Flags that name a server make no sense here. Variables and contexts do not count: they are for other commands.
fn refuse_server(command: &str, global: &Global) -> Result<(), Usage> {
    let flags = [
        ("--server", "KLAMBDA_SERVER", &global.server),
        ("--context", "KLAMBDA_CONTEXT", &global.context),
        ("--namespace", "KLAMBDA_NAMESPACE", &global.namespace),
    ];
    let is_typed = |variable: &str, value: &Option<String>| {
        value.is_some() && std::env::var(variable).ok().as_ref() != value.as_ref()
    };
    match flags.into_iter().find(|(_, variable, value)| is_typed(variable, value)) {
        Some((flag, ..)) => Err(Usage(format!(
            "{flag}: klambda {command} uses no other server; to deploy on one, use `klambda apply -f function.yaml`"
        ))),
        None => Ok(()),
    }
}

/// Links the user's build cache into the folder of a platform, which is new every time: Go compiles its library once.
/// Without it builds are slow, but work.
fn share_cache(platform: &Path) {
    let Some(cache) = cache_of_user() else { return };
    let linked = std::fs::create_dir_all(&cache).and_then(|()| std::fs::create_dir_all(platform));
    let _ = linked.and_then(|()| std::os::unix::fs::symlink(cache, platform.join("cache")));
}

fn cache_of_user() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(base.join("klambda/build"))
}
