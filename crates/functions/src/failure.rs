//! Failures of functions: a reason for each, and advice for the owner.

use klambda_core::os_error::without_codes;

/// Number of log lines that are kept of a failure, and the length of each.
pub const LINES_MAX: usize = 20;
pub const LINE_CHARS_MAX: usize = 400;
/// The same limits as JSON, in which a character can take six bytes.
const LINE_BYTES_MAX: usize = 1600;
const DETAIL_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: Reason,
    /// What happened: one sentence without the final period.
    pub detail: String,
    /// The last log lines of the failed step.
    pub lines: Vec<String>,
    /// Replaces the advice of the reason.
    pub advice: Option<String>,
}

/// Declares the reasons from one list: each with its advice, and whether a retry can help.
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

            /// Whether a retry can succeed.
            pub fn may_pass(self) -> bool {
                match self {
                    $(Reason::$reason => $again,)*
                }
            }

            /// How to fix it: sentences without the final period.
            pub fn advice(self) -> &'static str {
                match self {
                    $(Reason::$reason => $advice,)*
                }
            }
        }
    };
}

reasons! {
    SourceMissing false "Add a source to the manifest: an image, a URL, or code with a runtime",
    SourceNotFound false "Check the repository, ref and path, or the bucket and key. If you add the missing source later, run `klambda rebuild`",
    SourceRefused false "Set credentials that can read the source in the secret of secretRef. If the credentials are right, change their access rights and run `klambda rebuild`",
    SourceUnsafe false "Remove the file named in the message, then run `klambda rebuild`. A source may contain files, folders, and links that stay inside it",
    SourceUnreachable true "Check the address and the network, then run `klambda rebuild`",
    AddressForbidden false "Use another address. Or ask an operator to allow this one in outbound.allow, and run `klambda rebuild`",
    SourceTimeout true "Make the source smaller, or raise the fetch timeout in the configuration, then run `klambda rebuild`",
    ToolMissing false "Install the missing tool on the server, then run `klambda rebuild`",
    SecretNotFound false "The function continues automatically when the key exists",
    SecretUnreadable false "Set the secret again, or restore the key file and restart the server",
    ArchiveRefused false "Create the archive again, then run `klambda rebuild`. An archive may contain only files and folders below its root, within the size limits",
    SourceTooLarge false "Remove files that the function does not need, or use an image, then run `klambda rebuild`. The limits are fixed: 256 MiB to fetch, 512 MiB unpacked, 20,000 files",
    RuntimeNotFound false "Set runtime.version to an installed version or remove it. Or install the version and run `klambda rebuild`",
    DependencyNotFound false "Fix the name and version of the dependency",
    DependencyFailed true "Check the build log (`klambda logs --build NAME`) and the connection to the package registry, then run `klambda rebuild`",
    SyntaxError false "Fix the error shown in the build log: `klambda logs --build NAME`",
    BuildFailed true "Check the build log (`klambda logs --build NAME`), fix the code or its dependencies, and apply again",
    BuildTimeout false "Raise build.timeout or make the build smaller; `klambda logs --build NAME` shows how far it got",
    BuildStalled true "Check the build log (`klambda logs --build NAME`) and the connection to the package registry, then run `klambda rebuild`",
    BuildCancelled false "To build it, run `klambda rebuild`",
    BuildStopped false "To resume builds, run `klambda rebuild`",
    HandlerNotFound false "Export the function named in runtime.handler, or change runtime.handler",
    LoadError false "Fix the code that runs at load time; the log shows where it fails",
    NeverAnswered false "Make the process listen on the port in $PORT and answer GET /healthz",
    NotResponding true "Find the code that blocks the process, such as an endless loop or a blocking call",
    UrlUnreachable true "Check the URL and the service behind it. The URL is checked again automatically",
    StartFailed true "Check the log: the process could not start",
    Crashed true "Check the log: the process exited",
    CrashLoop true "Check the log: the process exits soon after each start",
    OutOfMemory true "Raise resources.limits.memory or use less memory",
    ImageNotFound false "Check the name and tag of the image, and the credentials to pull it",
    NoContainerEngine false "Install podman or docker on the server and run `klambda rebuild`, or use code as the source",
    IsolationRequired false "Use an image or a URL as the source. Or set functions.isolation to none, restart the server, and run `klambda rebuild`",
    FolderNotAllowed false "Folders work only on a single machine. Use git, a bucket or inline code",
    SpecInvalid false "Fix the fields that the message names and apply again",
    NameTaken false "Rename this function, or delete the other object",
    PlatformError true "Check the log of the server",
}

impl Failure {
    pub fn new(reason: Reason, detail: impl Into<String>) -> Failure {
        Failure { reason, detail: without_codes(&detail.into()), lines: Vec::new(), advice: None }
    }

    /// Replaces the advice of the reason, where the detail allows a better one.
    pub fn advising(self, advice: String) -> Failure {
        Failure { advice: Some(advice), ..self }
    }

    pub fn with_lines(self, lines: Vec<String>) -> Failure {
        Failure { lines, ..self }
    }

    /// What happened and how to fix it.
    pub fn message(&self) -> String {
        self.with_advice(self.advice.as_deref().unwrap_or(self.reason.advice()))
    }

    /// The same, with commands for the function of this name.
    pub fn message_for(&self, name: &str) -> String {
        match &self.advice {
            Some(advice) => self.with_advice(advice),
            None => self.with_advice(&self.reason.advice().replace("NAME", name)),
        }
    }

    fn with_advice(&self, advice: &str) -> String {
        match self.detail.is_empty() {
            true => format!("{advice}."),
            false => {
                let detail = cut(self.detail.trim_end_matches('.'), DETAIL_BYTES_MAX);
                format!("{detail}. {advice}.")
            }
        }
    }

    /// The last log lines, shortened.
    pub fn last_lines(&self) -> Vec<String> {
        let skipped = self.lines.len().saturating_sub(LINES_MAX);
        let bounded = |line: &String| cut(line, LINE_BYTES_MAX).chars().take(LINE_CHARS_MAX).collect();
        self.lines.iter().skip(skipped).map(bounded).collect()
    }
}

/// The beginning of a text that takes at most this many bytes as JSON.
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
