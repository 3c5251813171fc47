//! The place of a control plane on this machine: a number, a folder, and a network namespace.
//!
//! The namespace holds all processes of the control plane, so that their ports are free and nothing outside reaches them.
//! A pair of virtual interfaces connects it with the machine.
//!
//! A helper process removes everything as soon as the process that started it ends, for whatever reason. The lock of the
//! slot is released when both have ended. A slot that is left behind all the same (both were killed) is removed when the
//! slot is used again.

use crate::knative::WEBHOOK_ADDRESS;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Control planes that may run on one machine at a time.
const SLOTS: u8 = 16;
const FOLDER: &str = "/run/klambda-testbed";
const REMOVE: &str = include_str!("../../../testbed/cluster/remove.sh");
/// Marks a control plane that a person keeps until `down`.
const KEPT: &str = "kept";

/// The number of a slot, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(u8);

impl Place {
    pub fn all() -> impl Iterator<Item = Place> {
        (0..SLOTS).map(Place)
    }

    /// The name of the network namespace and of the interface on the machine.
    pub fn namespace(self) -> String {
        format!("klambda-{}", self.0)
    }

    pub fn folder(self) -> PathBuf {
        Path::new(FOLDER).join(self.0.to_string())
    }

    /// The machine, as processes in the namespace see it.
    pub fn machine(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 246, self.0, 1)
    }

    /// The namespace, as the machine sees it.
    pub fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 246, self.0, 2)
    }

    /// Whether a person keeps a control plane here.
    pub fn kept(self) -> bool {
        self.folder().join(KEPT).exists() && Path::new("/run/netns").join(self.namespace()).exists()
    }

    /// Whether a process uses this slot.
    pub fn locked(self) -> bool {
        File::open(self.lock_file()).is_ok_and(|lock| lock.try_lock_shared().is_err())
    }

    /// A command that runs in the namespace, in a session of its own.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new("setsid");
        command.arg("nsenter").arg(format!("--net=/run/netns/{}", self.namespace())).arg(program);
        command
    }

    /// Ends a control plane that is kept here.
    pub fn end_kept(self) -> Result<()> {
        let lock = self.open_lock()?;
        lock.lock().with_context(|| format!("locking {}", self.lock_file().display()))?;
        self.remove()
    }

    fn lock_file(self) -> PathBuf {
        Path::new(FOLDER).join(format!("{}.lock", self.0))
    }

    fn open_lock(self) -> Result<File> {
        let file = self.lock_file();
        File::create(&file).with_context(|| format!("creating {}", file.display()))
    }

    fn remove(self) -> Result<()> {
        let status = Command::new("sh")
            .args(["-c", REMOVE, "remove"])
            .arg(self.namespace())
            .arg(self.folder())
            .status()?;
        ensure!(
            status.success(),
            "could not remove {}; remove it and namespace {}",
            self.folder().display(),
            self.namespace()
        );
        Ok(())
    }

    fn connect(self) -> Result<()> {
        let (name, machine, address) = (self.namespace(), self.machine(), self.address());
        ip(&format!("netns add {name}"))?;
        ip(&format!("link add {name} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {machine}/30 dev {name}"))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("-n {name} addr add {address}/30 dev eth0"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        // Nothing forwards addresses of Services here. The webhook listens on its own.
        ip(&format!("-n {name} addr add {WEBHOOK_ADDRESS}/32 dev lo"))?;
        ip(&format!("-n {name} route add default via {machine}"))
    }
}

/// A slot that this process uses. Everything in it ends when the value is dropped or the process ends.
pub struct Slot {
    place: Place,
    remover: Child,
    _lock: File,
}

impl Slot {
    /// Takes a free slot and creates its folder and its network namespace.
    pub fn take() -> Result<Self> {
        if let Some(reason) = missing() {
            bail!("{reason}");
        }
        fs::create_dir_all(FOLDER).with_context(|| format!("creating {FOLDER}"))?;
        for place in Place::all() {
            let lock = place.open_lock()?;
            if lock.try_lock().is_err() || place.kept() {
                continue;
            }
            place.remove()?;
            let slot = Self { place, remover: remover(place, lock.try_clone()?)?, _lock: lock };
            fs::create_dir(place.folder())
                .with_context(|| format!("creating {}", place.folder().display()))?;
            place.connect()?;
            return Ok(slot);
        }
        bail!("{SLOTS} control planes are running; end one with `cargo run -p testbed -- down`")
    }

    pub fn place(&self) -> Place {
        self.place
    }

    /// Leaves everything running after this process, until `Place::end_kept`.
    pub fn keep(mut self) -> Result<Place> {
        let file = self.place.folder().join(KEPT);
        fs::write(&file, "").with_context(|| format!("writing {}", file.display()))?;
        let mut input = self.remover.stdin.take().context("the remover has no input")?;
        input.write_all(b"keep\n").context("telling the remover to keep everything")?;
        Ok(self.place)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The end of its input tells the remover to start.
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

/// Starts the process that removes everything when its input ends. It holds the lock until it has finished.
fn remover(place: Place, lock: File) -> Result<Child> {
    let script = format!("read -r word; [ \"$word\" = keep ] && exit\n{REMOVE}");
    let mut command = Command::new("setsid");
    command.args(["sh", "-c", &script, "remove"]).arg(place.namespace()).arg(place.folder());
    command.stdin(Stdio::piped()).stdout(lock).stderr(Stdio::null());
    command.spawn().context("starting the remover")
}

/// The reason why no control plane can run on this machine.
pub fn missing() -> Option<String> {
    for tool in ["ip", "nsenter", "setsid"] {
        if Command::new(tool).arg("-V").output().is_err() {
            return Some(format!("`{tool}` is missing; install iproute2 and util-linux"));
        }
    }
    let probe = format!("klambda-probe-{}", std::process::id());
    let added = ip(&format!("netns add {probe}"));
    let removed = ip(&format!("netns delete {probe}"));
    let error = added.and(removed).err()?;
    Some(format!("network namespaces cannot be created; run as root ({error})"))
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("running `ip`")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", message.trim());
    Ok(())
}
