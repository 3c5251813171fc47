//! Observes one function on this machine.

use super::Machine;
use super::function::{Deployed, Function};
use super::secrets;
use crate::fleet::{self, Phase, Run, VersionView};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash;
use klambda_functions::name::Name;
use klambda_functions::observed::{Artifact, Fetch, FetchState, Observed, Version, VersionState};
use klambda_functions::resource::{BuildOutcome, Resource};

impl Machine {
    pub(super) fn observe(&self, resource: &Resource) -> Observed {
        let name = Name::of(resource);
        let (mut observed, hashes) = self.observe_work(&name, resource);
        observed.secrets = secrets::revisions(resource, &self.options);
        let artifact = |hash: String| Some(Artifact { uri: self.built(&hash)?.uri(), hash });
        observed.artifacts = hashes.into_iter().filter_map(artifact).collect();
        // Both under the lock, because versions are passed to the fleet under it.
        if let Some(function) = self.lock().get_mut(&name) {
            let seen = self.fleet.observe(name.as_str());
            observed.versions = versions(function, &seen.map(|seen| seen.versions).unwrap_or_default());
            observed.image_digests = function.deployed.iter().filter_map(image_digest).collect();
        }
        observed
    }

    /// Fetches and builds, and the artifacts that the function may need, which are kept from now on.
    fn observe_work(&self, name: &Name, resource: &Resource) -> (Observed, Vec<String>) {
        let mut functions = self.lock();
        let function = functions.entry(name.clone()).or_default();
        let built = resource.status.build_status.as_ref().and_then(|build| build.outcome);
        if built == Some(BuildOutcome::Completed) {
            // Its fetches and builds are no longer needed.
            function.work = None;
        }
        let work = function.work.as_deref();
        let (source, build) =
            (work.and_then(|work| work.fetch.clone()), work.and_then(|work| work.build.clone()));
        let hashes = artifacts(resource, source.as_ref());
        function.needs(resource, hashes.clone());
        (Observed { source, build, ..Observed::default() }, hashes)
    }
}

/// The hashes of artifacts that this function may need.
fn artifacts(resource: &Resource, source: Option<&Fetch>) -> Vec<String> {
    let is_built = resource.spec.source.as_ref().is_some_and(|source| source.kind.is_built());
    if !is_built {
        return Vec::new();
    }
    let fetched = source.and_then(|fetch| match &fetch.state {
        FetchState::Done { digest, .. } => Some(digest.clone()),
        _ => None,
    });
    let known = resource.status.build_status.as_ref().and_then(|build| build.hash.clone());
    let digest = hash::known_digest(&resource.spec).or(fetched);
    let wanted =
        digest.map(|digest| hash::artifact(resource, &digest)).filter(|hash| known.as_ref() != Some(hash));
    let restored = resource.status.restored.as_ref().and_then(|build| build.hash.clone());
    known.into_iter().chain(wanted).chain(restored).collect()
}

fn versions(function: &mut Function, views: &[VersionView]) -> Vec<Version> {
    let view_of = |deployed: &Deployed| views.iter().find(|view| *view.id == *deployed.version);
    let retiring = function.retiring;
    // The fleet has dropped versions because a newer one responds.
    function.deployed.retain(|deployed| retiring || !deployed.is_told() || view_of(deployed).is_some());
    let version = |deployed: &Deployed| {
        let view = view_of(deployed);
        Version {
            version: deployed.version.to_string(),
            generation: deployed.generation,
            state: if retiring { VersionState::Retiring } else { state(deployed, view) },
            replicas: view.map_or(0, |view| view.ready),
            // It has no URL of its own: the server forwards calls.
            url: None,
            elsewhere: match &deployed.run {
                Ok(Run::Remote(url)) => Some(url.to_string()),
                _ => None,
            },
            scaling: deployed.scaling,
        }
    };
    function.deployed.iter().map(version).collect()
}

/// The name of an image and its digest, if the container engine reported one.
fn image_digest(deployed: &Deployed) -> Option<(String, String)> {
    let Ok(Run::Image(image)) = &deployed.run else { return None };
    Some((image.reference.clone(), image.digest.get()?.clone()))
}

fn state(deployed: &Deployed, view: Option<&VersionView>) -> VersionState {
    let starting = VersionState::Starting { since: deployed.since };
    match (&deployed.run, view) {
        (Err(failure), _) => VersionState::Failed(failure.clone()),
        (Ok(_), None) => starting,
        (Ok(_), Some(view)) => match view.phase {
            Phase::Proving => starting,
            Phase::Good | Phase::BackOff => VersionState::Serving,
            Phase::Failed => VersionState::Failed(view.trouble.as_deref().map_or_else(unknown, failure)),
        },
    }
}

fn unknown() -> Failure {
    Failure::new(Reason::Crashed, "The process exited")
}

fn failure(trouble: &fleet::Failure) -> Failure {
    let reason = match trouble.reason {
        fleet::Reason::CrashLoop => Reason::CrashLoop,
        fleet::Reason::Crashed => Reason::Crashed,
        fleet::Reason::HandlerNotFound => Reason::HandlerNotFound,
        fleet::Reason::SyntaxError => Reason::SyntaxError,
        fleet::Reason::LoadError => Reason::LoadError,
        fleet::Reason::NeverAnswered => Reason::NeverAnswered,
        fleet::Reason::NotResponding => Reason::NotResponding,
        fleet::Reason::OutOfMemory => Reason::OutOfMemory,
        fleet::Reason::StartFailed => Reason::StartFailed,
        fleet::Reason::NoContainerEngine => Reason::NoContainerEngine,
        fleet::Reason::ImageNotFound => Reason::ImageNotFound,
    };
    let (line, rest) = headline(&trouble.message);
    let lines = trouble.last_lines.iter().cloned().chain(rest.map(str::to_owned)).collect();
    Failure::new(reason, capital(line)).with_lines(lines)
}

/// The line of a stack trace that names the error, and all lines if there are more.
fn headline(message: &str) -> (&str, impl Iterator<Item = &str>) {
    let mut lines = message.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let names_error = |line: &&str| {
        let word = line.split([':', ' ']).next().unwrap_or_default();
        word.ends_with("Error") || word.ends_with("Exception")
    };
    // Python names the error last; Node first, or after the location.
    let named = match message.starts_with("Traceback") {
        true => lines.clone().next_back(),
        false => lines.clone().find(names_error),
    };
    let line = named.or_else(|| lines.next()).unwrap_or_default();
    let is_all = line.len() == message.trim_end().len();
    (line, message.lines().filter(move |_| !is_all))
}

/// Capitalizes the first word of a sentence.
pub fn capital(text: &str) -> String {
    let first = text.split(' ').next().unwrap_or_default();
    // Names of files and the like are left as they are.
    if !first.chars().all(char::is_alphabetic) {
        return text.to_owned();
    }
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::headline;

    #[test]
    fn of_a_stack_the_line_that_says_what_is_wrong() {
        let node =
            "/data/x/index.js:1\nthrow new Error('no');\n^\n\nError: no\n    at Object.<anonymous> (/data/x)";
        let python =
            "Traceback (most recent call last):\n  File \"/data/x.py\", line 1\nValueError: no: way\n";
        for (message, expected, rest) in [
            (node, "Error: no", 6),
            (python, "ValueError: no: way", 3),
            ("index.js exports no function handler", "index.js exports no function handler", 0),
            ("one\ntwo", "one", 2),
            ("", "", 0),
        ] {
            let (line, lines) = headline(message);
            assert_eq!((line, lines.count()), (expected, rest), "{message}");
        }
    }
}
