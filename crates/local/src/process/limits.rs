//! Memory and CPU limits, if a manifest sets them: with control groups, version 2 or 1, if this program may create them.
//! Otherwise memory is watched, and CPU limits are ignored with a note.
//!
//! Never with a limit on address space: node and go reserve far more than they use, and would die immediately.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod watch;

pub(super) use watch::{Watch, Watched};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// Thousandths of a core.
    pub cpu_millis: Option<u32>,
}

/// Where control groups can be created on this machine. Empty if nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    memory: Option<Place>,
    cpu: Option<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    folder: PathBuf,
    version: u8,
}

const ROOT: &str = "/sys/fs/cgroup";

/// The period of CPU quotas, in microseconds.
const CPU_PERIOD_US: u64 = 100_000;

impl Groups {
    /// Tries to create groups, because permissions and names do not tell whether it works.
    pub fn find() -> Groups {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = Groups { memory: find(&own, "memory"), cpu: find(&own, "cpu") };
        groups.memory.iter().chain(&groups.cpu).for_each(Place::sweep);
        groups
    }

    pub fn none() -> Groups {
        Groups::default()
    }

    /// Creates groups with these limits. Limits that cannot be set are noted.
    pub(super) fn limit(&self, name: &str, limits: Limits, notes: &mut Vec<String>) -> Held {
        let (mut groups, mut watch_bytes) = (Vec::new(), None);
        if let Some(bytes) = limits.memory_bytes {
            match made(&self.memory, name, |group| group.limit_memory(bytes)) {
                Some(group) => groups.push(group),
                None => {
                    watch_bytes = Some(bytes);
                    notes.push("memory is watched instead of limited: no writable control group".into());
                }
            }
        }
        if let Some(millis) = limits.cpu_millis {
            match made(&self.cpu, name, |group| group.limit_cpu(millis)) {
                Some(group) if groups.contains(&group) => {}
                Some(group) => groups.push(group),
                None => notes.push("the CPU limit is ignored: no writable control group".into()),
            }
        }
        Held { groups, watch_bytes }
    }
}

/// How the limits of a process are enforced.
pub(super) struct Held {
    pub groups: Vec<Group>,
    /// The memory limit to watch, if no group enforces it.
    pub watch_bytes: Option<u64>,
}

fn made(place: &Option<Place>, name: &str, limit: impl Fn(&Group) -> io::Result<()>) -> Option<Group> {
    let group = place.as_ref()?.make(name).ok()?;
    match limit(&group) {
        Ok(()) => Some(group),
        Err(_) => {
            group.remove();
            None
        }
    }
}

/// Below the group of this program, or else the root of the mount: a container may see only that.
fn find(own: &str, controller: &str) -> Option<Place> {
    let unified = Path::new(ROOT).join("cgroup.controllers").exists();
    let (version, root) = match unified {
        true => (2, PathBuf::from(ROOT)),
        false => (1, Path::new(ROOT).join(controller)),
    };
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let named = controllers.split(',').any(|name| name == controller);
        (if unified { controllers.is_empty() } else { named }).then_some(path)
    })?;
    let below = root.join(path.trim_start_matches('/'));
    let parent = below.parent().filter(|_| unified && below != root).map(Path::to_path_buf);
    let candidates = [Some(below), parent, Some(root)];
    candidates
        .into_iter()
        .flatten()
        .map(|folder| Place { folder, version })
        .find(|place| place.works(controller))
}

impl Place {
    fn works(&self, controller: &str) -> bool {
        if self.version == 2 {
            // The kernel rejects this if the group itself contains processes, unless it is the root.
            let _ = fs::write(self.folder.join("cgroup.subtree_control"), format!("+{controller}"));
        }
        let Ok(group) = self.make(&format!("klambda-{}-try-{controller}", std::process::id())) else {
            return false;
        };
        let works = match controller {
            "memory" => group.limit_memory(1 << 30),
            _ => group.limit_cpu(1000),
        };
        group.remove();
        works.is_ok()
    }

    /// Removes groups of earlier runs of this program. A group with a process in it cannot be removed.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let pid =
                name.to_str().and_then(|name| name.strip_prefix("klambda-")?.split('-').next()?.parse().ok());
            if pid.is_some_and(|pid: i32| super::proc::stat(pid).is_none()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    fn make(&self, name: &str) -> io::Result<Group> {
        let folder = self.folder.join(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Group { folder, version: self.version }),
        }
    }
}

/// One control group, for one process and its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    folder: PathBuf,
    version: u8,
}

impl Group {
    /// The file that moves a process into the group.
    pub fn entry(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Fails if there is no group, or if a process is still in it. Then the next process with this name reuses it.
    pub fn remove(&self) {
        let _ = fs::remove_dir(&self.folder);
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let (limit, swap) = match self.version {
            2 => ("memory.max", ("memory.swap.max", 0)),
            _ => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", bytes)),
        };
        self.write(limit, &bytes.to_string())?;
        // Not every system accounts for swap.
        let _ = self.write(swap.0, &swap.1.to_string());
        Ok(())
    }

    fn limit_cpu(&self, millis: u32) -> io::Result<()> {
        let quota = (u64::from(millis) * CPU_PERIOD_US / 1000).max(1000);
        match self.version {
            2 => self.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}")),
            _ => self.write("cpu.cfs_quota_us", &quota.to_string()),
        }
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        // Without creating the file: if it is missing, so is the controller.
        use std::io::Write;
        fs::OpenOptions::new().write(true).open(self.folder.join(file))?.write_all(text.as_bytes())
    }

    /// Whether the kernel killed a process of the group for its memory use.
    pub fn out_of_memory(&self) -> bool {
        let file = if self.version == 2 { "memory.events" } else { "memory.oom_control" };
        let text = fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .any(|(name, count)| name == "oom_kill" && count != "0")
    }
}
