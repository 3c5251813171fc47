//! An in-memory disk that can lose, tear, fail and fill up on request.
//!
//! The disk distinguishes what a running process sees from what a power cut leaves: every write, creation, rename and
//! removal is volatile until it is synced. On `crash`, the function `choose` decides which unsynced changes survive.
//! Nothing here is random: the same calls and choices give the same disk.

use crate::disk::{Disk, File};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The default unit that a disk writes completely or not at all.
const SECTOR_BYTES: usize = 512;

/// Clones are handles to the same disk; `clone_image` copies the disk.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    names: Arc<Mutex<Names>>,
    hardware: Arc<Mutex<Hardware>>,
}

/// The operations that `fail_nth` can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Read,
    /// A failed write still writes the first half of the bytes.
    Write,
    /// A failed sync loses the file's unsynced writes in the next crash, although they stay readable and a later sync
    /// reports success. Linux behaves this way.
    Sync,
    SyncNames,
    Create,
    Rename,
    Remove,
}

#[derive(Default)]
struct Names {
    live: BTreeMap<String, Arc<Inode>>,
    durable: BTreeMap<String, Arc<Inode>>,
    /// The changes that lead from `durable` to `live`, in order.
    unsynced: Vec<NameChange>,
    /// A sync failed: some of the names in `live` will never be durable.
    lost: bool,
}

/// One atomic change of the folder. A rename has both parts.
struct NameChange {
    unset: Option<String>,
    set: Option<(String, Arc<Inode>)>,
}

#[derive(Clone)]
struct Hardware {
    faults: Vec<(Op, u64)>,
    capacity_bytes: Option<u64>,
    used_bytes: u64,
    sector_bytes: usize,
    /// The number of crashes. A handle from an earlier epoch belongs to a dead process.
    epoch: u64,
}

impl Default for Hardware {
    fn default() -> Hardware {
        let faults = Vec::new();
        Hardware { faults, capacity_bytes: None, used_bytes: 0, sector_bytes: SECTOR_BYTES, epoch: 0 }
    }
}

struct Inode {
    hardware: Arc<Mutex<Hardware>>,
    epoch: u64,
    content: Mutex<Content>,
}

#[derive(Clone, Default)]
struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    /// The file is removed; its space counts as free.
    removed: bool,
    /// The bytes of all unsynced writes in one buffer, so that a small write needs no allocation.
    written: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Change {
    Empty,
    Write { offset: usize, len: usize },
}

impl MemoryDisk {
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }

    /// Makes the `n`th operation of this kind from now fail once (1 is the next operation).
    pub fn fail_nth(&self, op: Op, n: u64) {
        assert!(n > 0, "n counts from 1");
        lock(&self.hardware).faults.push((op, n));
    }

    /// Cancels all pending failures.
    pub fn repair(&self) {
        lock(&self.hardware).faults.clear();
    }

    /// Writes that increase the total size of all files beyond this fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.hardware).capacity_bytes = bytes;
    }

    pub fn used_bytes(&self) -> u64 {
        lock(&self.hardware).used_bytes
    }

    /// The unit that a crash keeps completely or not at all. Default: 512 bytes.
    pub fn set_sector_bytes(&self, bytes: usize) {
        assert!(bytes > 0, "a sector has at least one byte");
        lock(&self.hardware).sector_bytes = bytes;
    }

    /// A power cut. `choose(n)` returns a number below `n`. Any subset of the sectors of each unsynced write
    /// survives, and a prefix of the unsynced name changes. Files opened before the crash return errors from now on.
    pub fn crash(&self, choose: &mut dyn FnMut(u64) -> u64) {
        let mut names = lock(&self.names);
        let kept = choose(names.unsynced.len() as u64 + 1) as usize;
        let mut unsynced = std::mem::take(&mut names.unsynced);
        unsynced.drain(..kept).for_each(|change| change.apply(&mut names.durable));

        let epoch = self.next_epoch();
        let sector_bytes = lock(&self.hardware).sector_bytes;
        let survivors = names.durable.iter().map(|(name, inode)| {
            let content = lock(&inode.content).after_crash(sector_bytes, choose);
            (name.clone(), self.new_inode(epoch, content))
        });
        let survivors: BTreeMap<_, _> = survivors.collect();
        names.live = survivors.clone();
        names.durable = survivors;
        names.lost = false;
    }

    /// True if a sync of names failed since the last power cut. A real file system would become read-only.
    pub fn are_names_lost(&self) -> bool {
        lock(&self.names).lost
    }

    /// An independent disk in the same state, including unsynced changes and pending failures.
    pub fn clone_image(&self) -> MemoryDisk {
        let names = lock(&self.names);
        let copy = MemoryDisk::new();
        *lock(&copy.hardware) = Hardware { used_bytes: 0, ..lock(&self.hardware).clone() };
        let mut copies: BTreeMap<*const Inode, Arc<Inode>> = BTreeMap::new();
        let mut copied = |inode: &Arc<Inode>| {
            let new = || copy.new_inode(inode.epoch, lock(&inode.content).clone());
            Arc::clone(copies.entry(Arc::as_ptr(inode)).or_insert_with(new))
        };
        let live = names.live.iter().map(|(name, inode)| (name.clone(), copied(inode))).collect();
        let durable = names.durable.iter().map(|(name, inode)| (name.clone(), copied(inode))).collect();
        let changes = names.unsynced.iter().map(|change| NameChange {
            unset: change.unset.clone(),
            set: change.set.as_ref().map(|(name, inode)| (name.clone(), copied(inode))),
        });
        let unsynced = changes.collect();
        *lock(&copy.names) = Names { live, durable, unsynced, lost: names.lost };
        copy
    }

    /// Damages the medium, both the live and the durable content.
    pub fn flip_bit(&self, name: &str, bit: u64) {
        let byte = usize::try_from(bit / 8).expect("the offset fits into memory");
        self.damage(name, byte..byte + 1, |byte| *byte ^= 1 << (bit % 8));
    }

    /// Damages the medium like `flip_bit`.
    pub fn zero(&self, name: &str, range: Range<usize>) {
        self.damage(name, range, |byte| *byte = 0);
    }

    fn damage(&self, name: &str, range: Range<usize>, harm: impl Fn(&mut u8)) {
        let inode = lock(&self.names).find(name).expect("the file exists");
        let content = &mut *lock(&inode.content);
        for bytes in [&mut content.live, &mut content.durable] {
            let end = range.end.min(bytes.len());
            bytes[range.start.min(end)..end].iter_mut().for_each(&harm);
        }
    }

    fn next_epoch(&self) -> u64 {
        let mut hardware = lock(&self.hardware);
        hardware.epoch += 1;
        hardware.used_bytes = 0;
        hardware.epoch
    }

    fn new_inode(&self, epoch: u64, content: Content) -> Arc<Inode> {
        lock(&self.hardware).used_bytes += content.used_bytes();
        Arc::new(Inode { hardware: Arc::clone(&self.hardware), epoch, content: Mutex::new(content) })
    }
}

impl Disk for MemoryDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        lock(&self.hardware).begin(Op::Create)?;
        let mut names = lock(&self.names);
        if let Some(inode) = names.live.get(name) {
            inode.empty();
            return Ok(Arc::clone(inode) as Arc<dyn File>);
        }
        let epoch = lock(&self.hardware).epoch;
        let inode = self.new_inode(epoch, Content::default());
        names.change(NameChange { unset: None, set: Some((name.to_owned(), Arc::clone(&inode))) });
        Ok(inode)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(lock(&self.names).find(name)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.names).live.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.hardware).begin(Op::Remove)?;
        let mut names = lock(&self.names);
        names.find(name)?.remove();
        names.change(NameChange { unset: Some(name.to_owned()), set: None });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        lock(&self.hardware).begin(Op::Rename)?;
        let mut names = lock(&self.names);
        let inode = names.find(from)?;
        if let Some(replaced) = names.live.get(to).filter(|replaced| !Arc::ptr_eq(replaced, &inode)) {
            replaced.remove();
        }
        names.change(NameChange { unset: Some(from.to_owned()), set: Some((to.to_owned(), inode)) });
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let outcome = lock(&self.hardware).begin(Op::SyncNames);
        let mut names = lock(&self.names);
        let unsynced = std::mem::take(&mut names.unsynced);
        names.lost |= outcome.is_err() && !unsynced.is_empty();
        outcome?;
        if names.lost {
            return Err(io::Error::other("injected failure: an earlier SyncNames failed"));
        }
        unsynced.into_iter().for_each(|change| change.apply(&mut names.durable));
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        let hardware = lock(&self.hardware);
        hardware.capacity_bytes.map(|capacity| capacity.saturating_sub(hardware.used_bytes))
    }
}

impl File for Inode {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.begin(Op::Read)?;
        let content = lock(&self.content);
        let start = position(offset).min(content.live.len());
        let n = buf.len().min(content.live.len() - start);
        buf[..n].copy_from_slice(&content.live[start..start + n]);
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut content = lock(&self.content);
        let (fits, outcome) = self.room_for(buf.len(), position(offset), &content);
        content.write(&buf[..fits], position(offset));
        outcome
    }

    fn sync(&self) -> io::Result<()> {
        let outcome = self.begin(Op::Sync);
        let content = &mut *lock(&self.content);
        if outcome.is_ok() {
            content.make_durable();
        }
        content.unsynced.clear();
        content.written.clear();
        outcome
    }

    fn len(&self) -> io::Result<u64> {
        drop(self.alive()?);
        Ok(lock(&self.content).live.len() as u64)
    }
}

impl Inode {
    fn alive(&self) -> io::Result<MutexGuard<'_, Hardware>> {
        let hardware = lock(&self.hardware);
        match hardware.epoch == self.epoch {
            true => Ok(hardware),
            false => Err(io::Error::other("the disk crashed after this file was opened")),
        }
    }

    fn begin(&self, op: Op) -> io::Result<()> {
        self.alive()?.begin(op)
    }

    /// Returns how many of `len` bytes a write may store, and its result. Reserves space for growth.
    fn room_for(&self, len: usize, offset: usize, content: &Content) -> (usize, io::Result<()>) {
        let mut hardware = match self.alive() {
            Ok(hardware) => hardware,
            Err(dead) => return (0, Err(dead)),
        };
        let outcome = hardware.begin(Op::Write);
        let wanted = if outcome.is_ok() { len } else { len / 2 };
        let free = hardware.capacity_bytes.map_or(u64::MAX, |all| all.saturating_sub(hardware.used_bytes));
        let file_len = content.live.len();
        let end_max = file_len.saturating_add(usize::try_from(free).unwrap_or(usize::MAX));
        let fits = wanted.min(end_max.saturating_sub(offset));
        if fits > 0 && !content.removed {
            hardware.used_bytes += (offset + fits).saturating_sub(file_len) as u64;
        }
        match outcome {
            Ok(()) if fits < len => (fits, Err(io::ErrorKind::StorageFull.into())),
            outcome => (fits, outcome),
        }
    }

    fn empty(&self) {
        let mut content = lock(&self.content);
        lock(&self.hardware).used_bytes -= content.used_bytes();
        content.live.clear();
        content.unsynced.push(Change::Empty);
    }

    fn remove(&self) {
        let mut content = lock(&self.content);
        lock(&self.hardware).used_bytes -= content.used_bytes();
        content.removed = true;
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let used_bytes = lock(&self.content).used_bytes();
        let mut hardware = lock(&self.hardware);
        if hardware.epoch == self.epoch {
            hardware.used_bytes -= used_bytes;
        }
    }
}

impl Content {
    fn used_bytes(&self) -> u64 {
        if self.removed { 0 } else { self.live.len() as u64 }
    }

    fn write(&mut self, bytes: &[u8], offset: usize) {
        if bytes.is_empty() {
            return;
        }
        overwrite(&mut self.live, bytes, offset);
        self.written.extend_from_slice(bytes);
        self.unsynced.push(Change::Write { offset, len: bytes.len() });
    }

    fn make_durable(&mut self) {
        let mut written = &self.written[..];
        for change in &self.unsynced {
            match *change {
                Change::Empty => self.durable.clear(),
                Change::Write { offset, len } => {
                    let (bytes, rest) = written.split_at(len);
                    written = rest;
                    overwrite(&mut self.durable, bytes, offset);
                }
            }
        }
    }

    fn after_crash(&self, sector_bytes: usize, choose: &mut dyn FnMut(u64) -> u64) -> Content {
        let mut left = self.durable.clone();
        let mut written = &self.written[..];
        for change in &self.unsynced {
            match *change {
                Change::Empty if choose(2) == 1 => left.clear(),
                Change::Empty => {}
                Change::Write { offset, len } => {
                    let (bytes, rest) = written.split_at(len);
                    written = rest;
                    keep_some_sectors(&mut left, bytes, offset, sector_bytes, choose);
                }
            }
        }
        // The length may reach the disk without the data, which then reads as zeros.
        if left.len() < self.live.len() && !self.unsynced.is_empty() && choose(2) == 1 {
            left.resize(self.live.len(), 0);
        }
        Content { live: left.clone(), durable: left, ..Content::default() }
    }
}

impl Names {
    fn find(&self, name: &str) -> io::Result<Arc<Inode>> {
        self.live.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.live);
        self.unsynced.push(change);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, Arc<Inode>>) {
        if let Some(name) = &self.unset {
            names.remove(name);
        }
        if let Some((name, inode)) = &self.set {
            names.insert(name.clone(), Arc::clone(inode));
        }
    }
}

impl Hardware {
    /// Counts the operation towards the requested failures.
    fn begin(&mut self, op: Op) -> io::Result<()> {
        if self.faults.is_empty() {
            return Ok(());
        }
        let of_this_kind = self.faults.iter_mut().filter(|(kind, _)| *kind == op);
        of_this_kind.for_each(|(_, left)| *left -= 1);
        let waiting = self.faults.len();
        self.faults.retain(|(_, left)| *left > 0);
        match self.faults.len() == waiting {
            true => Ok(()),
            false => Err(io::Error::other(format!("injected failure: {op:?}"))),
        }
    }
}

fn keep_some_sectors(
    left: &mut Vec<u8>,
    mut bytes: &[u8],
    mut offset: usize,
    sector_bytes: usize,
    choose: &mut dyn FnMut(u64) -> u64,
) {
    while !bytes.is_empty() {
        let in_sector = (sector_bytes - offset % sector_bytes).min(bytes.len());
        if choose(2) == 1 {
            overwrite(left, &bytes[..in_sector], offset);
        }
        bytes = &bytes[in_sector..];
        offset += in_sector;
    }
}

fn overwrite(file: &mut Vec<u8>, bytes: &[u8], offset: usize) {
    if file.len() == offset {
        return file.extend_from_slice(bytes);
    }
    if file.len() < offset + bytes.len() {
        file.resize(offset + bytes.len(), 0);
    }
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("the offset fits into memory")
}

/// Ignores poisoning, so that the panic message of a failed test is not hidden by panics in other threads.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
