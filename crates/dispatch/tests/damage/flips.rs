//! Damage: flipped bits and lost sectors in any file. Damage is refused and named, or, in the last commit group, cut
//! off and named. Damage to unused bytes changes nothing.

use crate::load::{Drained, Load, Rng, Told, drain, open};
use crate::mirror::{Mirror, content};
use crate::verdict::Verdict;
use crate::{seed, times};
use klambda_core::time::Millis;
use klambda_dispatch::check::{self, ProblemKind};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use std::ops::Range;
use std::sync::Arc;

const FLIPS: usize = 1200;
const FLIPS_OF_A_FOLDER: usize = 100;
const FLIPS_WHILE_RUNNING: usize = 300;

/// A folder as a process left it, and what producers and targets knew at that time.
struct Left {
    disk: MemoryDisk,
    now: Millis,
    told: Told,
    /// Without the last commit group.
    told_before: Told,
    /// What the undamaged folder delivers.
    delivers: Drained,
}

impl Left {
    /// Left by a killed process, or by one that stopped cleanly.
    fn new(rng: &mut Rng) -> Left {
        let folder = tempfile::tempdir().expect("a folder");
        let mirror = Arc::new(Mirror::new(folder.path(), u64::MAX, rng.split()));
        let mut load = Load::start(mirror.clone());
        for _ in 0..200 + rng.below(400) {
            load.round(rng);
        }
        if rng.below(3) == 0 {
            load.stop(rng);
        }
        mirror.assert_equal();
        let disk = mirror.image.clone_image();
        disk.crash(&mut |n| n - 1);
        let (engine, report) = open(Arc::new(disk.clone_image()), load.now).expect("a whole folder");
        assert_eq!(report.cut, None);
        let delivers = drain(engine, load.now);
        let whole = Verdict::of(&delivers, &load.told, &load.told);
        assert_eq!((whole, delivers.failure.as_ref()), (Verdict::default(), None));
        Left { disk, now: load.now, told: load.told, told_before: load.synced_before, delivers }
    }
}

#[derive(Debug)]
struct Damage {
    name: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Bit(u64),
    Zeros(Range<usize>),
}

impl Damage {
    /// Damage in any file, mostly in the used part. `None` if it would change nothing.
    fn choose(disk: &MemoryDisk, rng: &mut Rng) -> Option<Damage> {
        let names = disk.list().expect("lists");
        let name = names[rng.below(names.len() as u64) as usize].clone();
        let bytes = content(disk, &name);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let end = if used == 0 || rng.below(10) == 0 { bytes.len() } else { used };
        // Damage at the end of a file is the hardest to detect.
        let start = if rng.below(4) == 0 { end.saturating_sub(4096) } else { 0 };
        let at = start + rng.below((end - start).max(1) as u64) as usize;
        let what = match rng.below(3) {
            0 => What::Bit(8 * at as u64 + rng.below(8)),
            1 => What::Zeros(at / 512 * 512..at / 512 * 512 + 512),
            _ => What::Zeros(at / 4096 * 4096..at / 4096 * 4096 + 4096),
        };
        let is_nothing = match &what {
            What::Bit(_) => bytes.is_empty(),
            What::Zeros(range) => {
                bytes[range.start.min(bytes.len())..range.end.min(bytes.len())].iter().all(|b| *b == 0)
            }
        };
        (!is_nothing).then_some(Damage { name, what })
    }

    fn inflict(&self, disk: &MemoryDisk) {
        match &self.what {
            What::Bit(bit) => disk.flip_bit(&self.name, *bit),
            What::Zeros(range) => disk.zero(&self.name, range.clone()),
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    refused: usize,
    cut: usize,
    named: usize,
    harmless: usize,
}

#[test]
fn damage_is_named_and_never_delivered() {
    let mut rng = Rng(seed());
    let mut tally = Tally::default();
    let (mut flips, mut zeroed) = (0, 0);
    while flips + zeroed < times(FLIPS) {
        let left = Left::new(&mut rng);
        for _ in 0..FLIPS_OF_A_FOLDER {
            let Some(damage) = Damage::choose(&left.disk, &mut rng) else { continue };
            tally.judge(&left, &damage);
            match damage.what {
                What::Bit(_) => flips += 1,
                What::Zeros(_) => zeroed += 1,
            }
        }
    }
    let Tally { refused, cut, named, harmless } = tally;
    crate::summarize(&format!(
        "damage: {flips} bit flips and {zeroed} zeroed sectors and pages: {refused} refused, {cut} cut off in the last commit group, {named} named by check, {harmless} in bytes without meaning: 0 silent, 0 wrong bytes delivered"
    ));
    assert!(refused > 0 && cut > 0 && named > 0, "{refused} {cut} {named}");
}

impl Tally {
    fn judge(&mut self, left: &Left, damage: &Damage) {
        let disk = left.disk.clone_image();
        damage.inflict(&disk);
        let report = check::check(Arc::new(disk.clone_image()), &mut |_| {}).expect("it can be read");
        let is_named = report
            .problems
            .listed
            .iter()
            .any(|problem| problem.kind == ProblemKind::Damage && problem.text.contains(&damage.name));
        let (engine, opening) = match open(Arc::new(disk), left.now) {
            Ok(opened) => opened,
            Err(failure) => {
                assert!(failure.to_string().contains(&damage.name), "{damage:?}: {failure}");
                assert!(is_named, "{damage:?} is refused, but check reports {:?}", report.problems);
                self.refused += 1;
                return;
            }
        };
        let drained = drain(engine, left.now);
        assert_eq!(drained.wrong, [], "{damage:?}");
        // Data that was cut off with the last commit group need not exist.
        let must = if opening.cut.is_some() { &left.told_before } else { &left.told };
        if judge_stop(&drained, left, must, damage) {
            assert!(is_named, "{damage:?}: {:?}", report.problems);
            self.refused += 1;
        } else if is_named {
            let verdict = Verdict::of(&drained, &left.told, &left.told);
            assert_eq!(verdict, Verdict::default(), "{damage:?}: {:?}", report.problems);
            self.named += 1;
        } else if opening.cut.is_some() {
            assert!(report.is_ok() && report.cut.is_some(), "{damage:?}: {report:?}");
            let verdict = Verdict::of(&drained, &left.told, &left.told_before);
            assert_eq!(verdict, Verdict::default(), "{damage:?}: {:?}", opening.cut);
            self.cut += 1;
        } else {
            assert!(report.is_ok() && report.cut.is_none(), "{damage:?}: {report:?}");
            if drained == left.delivers {
                self.harmless += 1;
                return;
            }
            // The last commit group as if it had never been written: zeros from its beginning to its end.
            let verdict = Verdict::of(&drained, &left.told, &left.told_before);
            let is_all = matches!(damage.what, What::Zeros(_)) && verdict == Verdict::default();
            assert!(is_all, "{damage:?} was not detected: {drained:?} instead of {:?}", left.delivers);
            self.cut += 1;
        }
    }
}

/// True if a delivery met the damage. It is then named, and every undelivered event is pending or a dead letter.
fn judge_stop(drained: &Drained, left: &Left, must: &Told, damage: &Damage) -> bool {
    if let Some(failure) = &drained.failure {
        assert!(failure.contains(&damage.name), "{damage:?}: {failure}");
        return true;
    }
    if drained.parked.is_empty() && drained.waiting == 0 {
        return false;
    }
    if drained.parked.is_empty() {
        // The damage hit the row of the parked lane. An action on the lane must name it.
        let refused = drained.refused.as_deref().unwrap_or_default();
        assert!(refused.contains(&damage.name), "{damage:?}: {drained:?}");
    }
    assert!(drained.parked.iter().all(|letter| letter.contains(&damage.name)), "{damage:?}: {drained:?}");
    let Verdict { lost, doubled, disordered, .. } = Verdict::of(drained, &left.told, must);
    assert_eq!((doubled, disordered), (vec![], vec![]), "{damage:?}");
    let kept = drained.waiting + drained.parked.len() as u64;
    assert!(lost.len() as u64 <= kept, "{damage:?}: {lost:?} of {kept}");
    true
}

#[test]
fn damage_under_a_running_engine_is_never_delivered() {
    let mut rng = Rng(seed());
    let (mut done, mut stopped) = (0, 0);
    while done < times(FLIPS_WHILE_RUNNING) {
        let left = Left::new(&mut rng);
        for _ in 0..FLIPS_OF_A_FOLDER {
            let Some(damage) = Damage::choose(&left.disk, &mut rng) else { continue };
            let disk = left.disk.clone_image();
            let (engine, _) = open(Arc::new(disk.clone()), left.now).expect("a whole folder");
            if disk.open(&damage.name).is_err() {
                // The damaged file is the next segment, which is prepared again.
                continue;
            }
            damage.inflict(&disk);
            let drained = drain(engine, left.now);
            assert_eq!(drained.wrong, [], "{damage:?}");
            match judge_stop(&drained, &left, &left.told, &damage) {
                true => stopped += 1,
                false => {
                    let verdict = Verdict::of(&drained, &left.told, &left.told);
                    assert_eq!(verdict, Verdict::default(), "{damage:?}");
                }
            }
            done += 1;
        }
    }
    crate::summarize(&format!(
        "damage: {done} times under a running engine, {stopped} met and named: 0 wrong bytes delivered"
    ));
    assert!(stopped > 0);
}
