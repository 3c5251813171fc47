//! A disk that never writes to the disk below it: changes are kept in memory, page by page.

use klambda_store::disk::{Disk, File};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Overlay {
    under: Arc<dyn Disk>,
    /// Every name that was opened or changed; `None` if it was deleted.
    names: Mutex<BTreeMap<String, Option<Arc<OverlayFile>>>>,
}

struct OverlayFile {
    under: Option<Arc<dyn File>>,
    content: Mutex<Content>,
}

struct Content {
    length: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

const PAGE_BYTES: u64 = 4096;

impl Overlay {
    pub fn new(under: Arc<dyn Disk>) -> Overlay {
        Overlay { under, names: Mutex::new(BTreeMap::new()) }
    }

    fn file(&self, name: &str) -> io::Result<Arc<OverlayFile>> {
        let mut names = lock(&self.names);
        match names.get(name) {
            Some(Some(file)) => Ok(file.clone()),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => {
                let under = self.under.open(name)?;
                let file = Arc::new(OverlayFile::new(under.len()?, Some(under)));
                names.insert(name.to_owned(), Some(file.clone()));
                Ok(file)
            }
        }
    }
}

impl Disk for Overlay {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = Arc::new(OverlayFile::new(0, None));
        lock(&self.names).insert(name.to_owned(), Some(file.clone()));
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(name)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut found = self.under.list()?;
        let names = lock(&self.names);
        found.retain(|name| !names.contains_key(name));
        found.extend(names.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name.clone()));
        found.sort_unstable();
        Ok(found)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.file(name)?;
        lock(&self.names).insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let file = self.file(from)?;
        let mut names = lock(&self.names);
        names.insert(from.to_owned(), None);
        names.insert(to.to_owned(), Some(file));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

impl OverlayFile {
    fn new(length: u64, under: Option<Arc<dyn File>>) -> OverlayFile {
        OverlayFile { under, content: Mutex::new(Content { length, pages: BTreeMap::new() }) }
    }

    fn read_under(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let n = match &self.under {
            Some(under) => under.read_at(buf, offset)?,
            None => 0,
        };
        buf[n..].fill(0);
        Ok(())
    }
}

impl File for OverlayFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = lock(&self.content);
        let length = (buf.len() as u64).min(content.length.saturating_sub(offset)) as usize;
        let buf = &mut buf[..length];
        self.read_under(buf, offset)?;
        let end = offset + length as u64;
        for (page, bytes) in content.pages.range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            let start = page * PAGE_BYTES;
            let (from, to) = (start.max(offset), (start + PAGE_BYTES).min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
        Ok(length)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut content = lock(&self.content);
        let end = offset + buf.len() as u64;
        for page in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let start = page * PAGE_BYTES;
            let bytes = match content.pages.entry(page) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let mut bytes = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                    self.read_under(&mut bytes, start)?;
                    entry.insert(bytes)
                }
            };
            let (from, to) = (start.max(offset), (start + PAGE_BYTES).min(end));
            bytes[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&buf[(from - offset) as usize..(to - offset) as usize]);
        }
        content.length = content.length.max(end);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.content).length)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change under these locks is ever visible half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_store::faulty_disk::MemoryDisk;

    #[test]
    fn changes_are_seen_above_and_not_below() {
        let below = MemoryDisk::new();
        let old: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        below.create("old").expect("creates").write_at(&old, 0).expect("writes");
        below.create("gone").expect("creates");
        let disk = Overlay::new(Arc::new(below.clone()));
        let file = disk.open("old").expect("opens");
        file.write_at(&[7; 5000], 4000).expect("writes");
        file.write_at(b"end", 20_000).expect("writes");
        disk.remove("gone").expect("removes");
        disk.create("new").expect("creates").write_at(b"x", 3).expect("writes");
        disk.rename("new", "renamed").expect("renames");

        let mut expected = old.clone();
        expected[4000..9000].fill(7);
        expected.resize(20_000, 0);
        expected.extend_from_slice(b"end");
        let mut seen = vec![9; 30_000];
        let n = disk.open("old").expect("opens").read_at(&mut seen, 0).expect("reads");
        assert_eq!(seen[..n], expected);
        let mut part = [9; 10];
        assert_eq!(file.read_at(&mut part, 8995).expect("reads"), 10);
        assert_eq!(part, expected[8995..9005]);
        assert_eq!(disk.list().expect("lists"), ["old", "renamed"]);
        assert!(disk.open("gone").is_err() && disk.open("new").is_err());

        assert_eq!(below.list().expect("lists"), ["gone", "old"]);
        let n = below.open("old").expect("opens").read_at(&mut seen, 0).expect("reads");
        assert_eq!(seen[..n], old);
    }
}
