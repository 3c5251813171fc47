//! What goes wrong with functions, each with the word for it and what its owner can do.

/// Lines kept of what a failed thing last said, and how much of each.
pub const LINES_MAX: usize = 20;
pub const LINE_CHARS_MAX: usize = 400;
/// The same as JSON, in which a character may take six bytes.
const LINE_BYTES_MAX: usize = 1600;
const DETAIL_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    /// What happened, in a sentence without its full stop.
    pub detail: String,
    /// The last lines of its log.
    pub lines: Vec<String>,
}

/// Declares the reasons, their advice and whether another try could help from one list.
macro_rules! reasons {
    ($($reason:ident $again:literal $advice:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($reason,)*
        }

        impl Reason {
            pub const ALL: &[Reason] = &[$(Reason::$reason,)*];

            /// The reason of the condition.
            pub fn name(self) -> &'static str {
                match self {
                    $(Reason::$reason => stringify!($reason),)*
                }
            }

            /// Whether the same thing may end otherwise when it is tried again.
            pub fn may_pass(self) -> bool {
                match self {
                    $(Reason::$reason => $again,)*
                }
            }

            /// What to do about it.
            pub fn advice(self) -> &'static str {
                match self {
                    $(Reason::$reason => $advice,)*
                }
            }
        }
    };
}

reasons! {
    SourceMissing false "Name a source: an image, a URL, or code with a runtime",
    SourceNotFound false "Name what exists (repository, ref and path, or bucket and key), or put it there and ask for a rebuild",
    SourceRefused false "Check that the credentials in the secret that secretRef names may read the source, then ask for a rebuild",
    SourceUnsafe false "Take out what the message names, then ask for a rebuild: plain files and folders, and links that stay among them",
    SourceUnreachable true "Check the address and the network, then ask for a rebuild",
    SourceTimeout true "Make the source smaller or raise the time limit of fetches in the configuration, then ask for a rebuild",
    ToolMissing false "Install the tool that the message names on this machine, then ask for a rebuild",
    SecretNotFound false "Create the secret or config map that the manifest names, with the key it names, then ask for a rebuild",
    ArchiveRefused false "Pack the code again and ask for a rebuild: plain files and folders below the archive's root, within the size limits",
    SourceTooLarge false "Leave out files that the function does not need, or give it as an image; then ask for a rebuild. The limits are fixed: 256 MiB to fetch, 512 MiB unpacked, 20,000 files",
    RuntimeNotFound false "Name a version that is there or leave runtime.version out; or install it and ask for a rebuild",
    DependencyNotFound false "Correct the dependency's name and version",
    DependencyFailed true "Look at the log lines, check that the package registry can be reached, then ask for a rebuild",
    SyntaxError false "Correct the code at the place that the log lines name",
    BuildFailed true "Look at the log lines, correct the code or its dependencies, and apply it again",
    BuildTimeout false "Raise build.timeout or make the build smaller",
    BuildStalled true "Look at the log lines, check that the package registry can be reached, then ask for a rebuild",
    BuildCancelled false "Ask for a rebuild to build it after all",
    BuildStopped false "Ask for a rebuild to let builds go on",
    HandlerNotFound false "Export the function that runtime.handler names, or name the one that is there",
    LoadError false "Correct what the code does when it is loaded; the log lines say where it fails",
    NeverAnswered false "Let the process listen on the port in $PORT, and answer GET /healthz",
    NotResponding true "Look for what blocks the process: an endless loop, or a call that waits without letting others run",
    UrlUnreachable true "Check the URL and that something listens there; it is asked again, and serves when it answers",
    StartFailed true "Look at the log lines: the process cannot be started",
    Crashed true "Look at the log lines: the process ended by itself",
    CrashLoop true "Look at the log lines: the process ends soon after each start",
    OutOfMemory true "Raise resources.limits.memory, or use less",
    ImageNotFound false "Check the image's name and tag, and the credentials to pull it",
    NoContainerEngine false "Install podman or docker on this machine and ask for a rebuild, or give the source as code",
    FolderNotAllowed false "A folder is a source on one machine only: use git, a bucket or inline code here",
    PlatformError true "Look at the log of the server",
}

impl Failure {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Failure {
        Failure { reason, detail: detail.into(), lines: Vec::new() }
    }

    pub fn with_lines(self, lines: Vec<String>) -> Failure {
        Failure { lines, ..self }
    }

    /// What happened and what to do.
    pub fn message(&self) -> String {
        match self.detail.is_empty() {
            true => format!("{}.", self.reason.advice()),
            false => {
                let detail = cut(self.detail.trim_end_matches('.'), DETAIL_BYTES_MAX);
                format!("{detail}. {}.", self.reason.advice())
            }
        }
    }

    /// The end of its log, within bounds.
    pub fn last_lines(&self) -> Vec<String> {
        let skipped = self.lines.len().saturating_sub(LINES_MAX);
        let bounded = |line: &String| cut(line, LINE_BYTES_MAX).chars().take(LINE_CHARS_MAX).collect();
        self.lines.iter().skip(skipped).map(bounded).collect()
    }
}

/// The beginning of a text that takes at most so many bytes as JSON.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut bytes = 0;
    let too_much = |character: char| {
        bytes += match character {
            '"' | '\\' => 2,
            '\0'..'\x20' => "\\u0000".len(),
            other => other.len_utf8(),
        };
        bytes > bytes_max
    };
    &text[..text.find(too_much).unwrap_or(text.len())]
}

impl Reason {
    pub fn parse(name: &str) -> Option<Reason> {
        Reason::ALL.iter().copied().find(|reason| reason.name() == name)
    }
}
