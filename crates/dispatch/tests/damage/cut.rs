//! Power cuts: whatever remains of the unsynced data, the folder opens and no acknowledged state is lost.

use crate::load::{Load, Rng, Told, drain, open};
use crate::mirror::{Mirror, content};
use crate::verdict::Verdict;
use crate::{seed, times};
use klambda_core::time::Millis;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

const STATES: usize = 2200;
/// Per picture.
const STATES_OF_A_PICTURE: u64 = 8;

#[test]
fn every_state_that_a_power_cut_can_leave_opens_with_nothing_lost() {
    let mut rng = Rng(seed());
    let mut cuts = Cuts::default();
    let mut folders = 0;
    while cuts.states.len() < times(STATES) {
        let folder = tempfile::tempdir().expect("a folder");
        let mirror = Arc::new(Mirror::new(folder.path(), 12, rng.split()));
        let mut load = Load::start(mirror.clone());
        for _ in 0..600 {
            load.round(&mut rng);
            for (picture, told) in std::mem::take(&mut load.pictures) {
                (0..STATES_OF_A_PICTURE).for_each(|_| cuts.try_one(&picture, &told, load.now, &mut rng));
            }
        }
        mirror.assert_equal();
        folders += 1;
    }
    crate::summarize(&format!(
        "damage: {} torn states ({} of 4 KiB sectors) of {folders} folders, {} with a tail cut off: 0 lost, 0 doubled, 0 disordered, 0 wrong",
        cuts.states.len(),
        cuts.of_pages,
        cuts.cut,
    ));
    assert!(cuts.cut > STATES / 10, "too few writes were torn");
}

#[derive(Default)]
struct Cuts {
    /// Hashes of the disk contents, so that a state is counted only once.
    states: HashSet<u64>,
    of_pages: usize,
    cut: usize,
}

impl Cuts {
    fn try_one(&mut self, picture: &MemoryDisk, told: &Told, now: Millis, rng: &mut Rng) {
        let disk = picture.clone_image();
        let is_of_pages = rng.below(2) == 0;
        disk.set_sector_bytes(if is_of_pages { 4096 } else { 512 });
        crash(&disk, rng);
        if !self.states.insert(hash(&disk)) {
            return;
        }
        self.of_pages += usize::from(is_of_pages);
        let (engine, report) = open(Arc::new(disk), now).expect("a power cut is not damage");
        self.cut += usize::from(report.cut.is_some());
        let drained = drain(engine, now);
        assert_eq!((drained.failure.as_ref(), &drained.parked[..], drained.waiting), (None, &[][..], 0));
        assert_eq!(Verdict::of(&drained, told, told), Verdict::default());
    }
}

/// Keeps all, none, or any part of the unsynced data.
fn crash(disk: &MemoryDisk, rng: &mut Rng) {
    match rng.below(10) {
        0 => disk.crash(&mut |_| 0),
        1 => disk.crash(&mut |n| n - 1),
        // Nearly all, or nearly nothing.
        2 | 3 => disk.crash(&mut |n| if rng.below(12) == 0 { rng.below(n) } else { n - 1 }),
        4 | 5 => disk.crash(&mut |n| if rng.below(12) == 0 { rng.below(n) } else { 0 }),
        _ => disk.crash(&mut |n| rng.below(n)),
    }
}

fn hash(disk: &MemoryDisk) -> u64 {
    let names = disk.list().expect("lists");
    let files: Vec<(&String, Vec<u8>)> = names.iter().map(|name| (name, content(disk, name))).collect();
    BuildHasherDefault::<DefaultHasher>::default().hash_one(&files)
}
