use super::*;
use crate::faulty_disk::{MemoryDisk, Op};
use crate::table::{Options, Times, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    /// Writes one table with these puts and deletes.
    Flush(BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    /// Runs all planned merges and drops values that begin with this byte.
    Merge(u8),
    /// Makes a plan before a flush and applies it after the flush.
    MergeAcrossFlush(BTreeMap<Vec<u8>, Option<Vec<u8>>>),
    Reopen,
}

struct World {
    disk: MemoryDisk,
    set: TableSet,
    model: Model,
    files: u32,
}

impl World {
    fn new() -> World {
        World { disk: MemoryDisk::new(), set: TableSet::default(), model: Model::new(), files: 0 }
    }

    fn new_name(&mut self) -> String {
        self.files += 1;
        format!("{:08}.table", self.files)
    }

    fn flush(&mut self, rows: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        let name = self.new_name();
        let mut writer = Writer::new(&self.disk, &name, Options { bloom: self.files.is_multiple_of(2) })
            .expect("create succeeds");
        for (key, value) in rows {
            writer.add(&key, value.as_deref()).expect("write succeeds");
            match value {
                Some(value) => drop(self.model.insert(key, value)),
                None => drop(self.model.remove(&key)),
            }
        }
        self.set = self.set.with_new(writer.finish().expect("finish succeeds"));
    }

    fn merge(&mut self, plan: &MergePlan, dropped: Option<u8>) {
        let name = self.new_name();
        // `keep` sees only the newest version of a key. A row of the model is that version if no newer table has the
        // key.
        let keep = |_: &[u8], value: &[u8]| dropped.is_none() || value.first() != dropped.as_ref();
        let planned: TableSet = self
            .set
            .tables()
            .iter()
            .filter(|table| plan.names().iter().any(|name| name == table.name()))
            .cloned()
            .collect();
        let newer: TableSet =
            self.set.tables().iter().take_while(|table| table.name() != plan.names()[0]).cloned().collect();
        for row in planned.scan_live(b"") {
            let (key, value) = row.expect("read succeeds");
            let hidden = newer.tables().iter().any(|table| table.get(&key).expect("read succeeds").is_some());
            if !keep(&key, &value) && !hidden {
                self.model.remove(&key);
            }
        }
        let merged = plan.run(&self.disk, &name, &keep).expect("merge succeeds");
        merged.verify().expect("the table is intact");
        self.set = self.set.with_merged(plan, merged);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Flush(rows) => self.flush(rows),
            Step::Merge(dropped) => {
                while let Some(plan) = self.set.plan_merge() {
                    self.merge(&plan, Some(dropped));
                }
            }
            Step::MergeAcrossFlush(rows) => {
                let plan = self.set.plan_merge();
                self.flush(rows);
                plan.into_iter().for_each(|plan| self.merge(&plan, None));
            }
            Step::Reopen => self.set = TableSet::open(&self.disk, &self.set.names()).expect("open succeeds"),
        }
    }

    fn check(&self) {
        let scanned: Model = self.set.scan_live(b"").collect::<Result<_, _>>().expect("read succeeds");
        assert_eq!(scanned, self.model);
        for first in 0..6 {
            for key in [vec![first], vec![first, first], vec![first, 5]] {
                assert_eq!(self.set.get(&key).expect("read succeeds"), self.model.get(&key).cloned());
                let from = self.set.scan_live(&key).next().transpose().expect("read succeeds");
                let expected = self.model.range(key..).next().map(|(k, v)| (k.clone(), v.clone()));
                assert_eq!(from, expected);
            }
        }
    }
}

fn rows() -> impl Strategy<Value = BTreeMap<Vec<u8>, Option<Vec<u8>>>> {
    let key = prop::collection::vec(0_u8..6, 1..3);
    let value = prop::option::of(prop_oneof![
        60 => prop::collection::vec(0_u8..8, 0..4),
        1 => (0_u8..8).prop_map(|byte| vec![byte; 70_000]),
    ]);
    prop::collection::btree_map(key, value, 0..12)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => rows().prop_map(Step::Flush),
        2 => (0_u8..8).prop_map(Step::Merge),
        1 => rows().prop_map(Step::MergeAcrossFlush),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_set_is_a_map(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
    }
}

fn flushed(world: &mut World, rows: &[(&str, Option<&str>)], times: Option<(u64, u64)>) {
    let name = world.new_name();
    let mut writer = Writer::new(&world.disk, &name, Options::default()).expect("create succeeds");
    writer.set_times(times.map(|(min, max)| Times { min: Millis(min), max: Millis(max) }));
    for (key, value) in rows {
        writer.add(key.as_bytes(), value.map(str::as_bytes)).expect("write succeeds");
    }
    world.set = world.set.with_new(writer.finish().expect("finish succeeds"));
}

fn get(set: &TableSet, key: &str) -> Option<String> {
    let value = set.get(key.as_bytes()).expect("read succeeds")?;
    Some(String::from_utf8(value).expect("text"))
}

/// The oldest table is too large to be merged with the four newer ones.
fn four_above_a_large_one() -> World {
    let mut world = World::new();
    flushed(
        &mut world,
        &[("a", Some("old")), ("b", Some("old")), ("c", Some(&"x".repeat(400_000)))],
        Some((1, 2)),
    );
    flushed(&mut world, &[("a", Some("new"))], Some((3, 4)));
    flushed(&mut world, &[("b", None)], Some((5, 6)));
    flushed(&mut world, &[("d", Some("new"))], Some((7, 8)));
    flushed(&mut world, &[("e", Some("new"))], Some((9, 10)));
    world
}

#[test]
fn what_is_dropped_in_a_merge_still_hides_older_tables() {
    let mut world = four_above_a_large_one();
    let plan = world.set.plan_merge().expect("four small tables");
    assert_eq!(plan.names().len(), 4);
    let merged = plan.run(&world.disk, "merged", &|key, _| key != b"a").expect("merge succeeds");
    assert_eq!((merged.rows(), merged.tombstones()), (4, 2));
    assert_eq!(merged.times(), Some(Times { min: Millis(3), max: Millis(10) }));
    let before = world.set.clone();
    world.set = world.set.with_merged(&plan, merged);
    assert_eq!(world.set.names(), ["merged", "00000001.table"]);
    assert_eq!(["a", "b", "d"].map(|key| get(&world.set, key)), [None, None, Some("new".to_owned())]);
    assert_eq!(get(&before, "a").as_deref(), Some("new"), "the old set is unchanged");
}

#[test]
fn a_merge_with_the_oldest_keeps_no_tombstones() {
    let mut world = World::new();
    for n in 0..4 {
        flushed(&mut world, &[("a", Some("x")), (&format!("b{n}"), None)], None);
    }
    let plan = world.set.plan_merge().expect("four small tables");
    let merged = plan.run(&world.disk, "merged", &|_, _| true).expect("merge succeeds");
    assert_eq!((merged.rows(), merged.tombstones(), merged.times()), (1, 0, None));
    let nothing = plan.run(&world.disk, "nothing", &|_, _| false).expect("merge succeeds");
    assert_eq!(world.set.with_merged(&plan, nothing).names(), [""; 0]);
}

#[test]
fn only_the_oldest_table_expires() {
    let mut world = four_above_a_large_one();
    let oldest = |world: &World, before| {
        let table = world.set.oldest_before(Millis(before));
        table.map(|table| table.name().to_owned())
    };
    assert_eq!(oldest(&world, 2), None);
    for name in ["00000001.table", "00000002.table", "00000003.table"] {
        assert_eq!(oldest(&world, 7).as_deref(), Some(name));
        world.set = world.set.without(&[name.to_owned()]);
    }
    assert_eq!(oldest(&world, 7), None);
    let mut world = World { set: TableSet::default(), ..world };
    flushed(&mut world, &[("a", None)], None);
    flushed(&mut world, &[("a", None)], Some((1, 2)));
    assert_eq!(oldest(&world, 7), None, "the oldest table has no times");
}

#[test]
fn a_merge_of_tables_that_went_meanwhile_is_left_out() {
    let world = four_above_a_large_one();
    let plan = world.set.plan_merge().expect("four small tables");
    let merged = plan.run(&world.disk, "merged", &|_, _| true).expect("merge succeeds");
    let without = world.set.without(&plan.names());
    assert_eq!(without.with_merged(&plan, merged).names(), ["00000001.table"]);
}

#[test]
fn a_merge_that_fails_leaves_no_file() {
    let world = four_above_a_large_one();
    let plan = world.set.plan_merge().expect("four small tables");
    for op in [Op::Create, Op::Read, Op::Write, Op::Sync] {
        world.disk.fail_nth(op, 1);
        assert!(matches!(plan.run(&world.disk, "merged", &|_, _| true), Err(Error::Io { .. })), "{op:?}");
        assert!(!world.disk.list().expect("list succeeds").contains(&"merged".to_owned()));
    }
    world.disk.set_capacity(Some(world.disk.used_bytes() + 10));
    assert!(plan.run(&world.disk, "merged", &|_, _| true).is_err());
    assert_eq!(world.disk.free_bytes(), Some(10));
}

#[test]
fn a_scan_outlives_its_tables() {
    let world = four_above_a_large_one();
    let scan = world.set.scan_live(b"b");
    world
        .disk
        .list()
        .expect("list succeeds")
        .iter()
        .for_each(|name| world.disk.remove(name).expect("remove succeeds"));
    drop(world);
    let keys: Vec<Vec<u8>> = scan.map(|row| row.expect("read succeeds").0).collect();
    assert_eq!(keys, [b"c", b"d", b"e"]);
}

#[test]
#[ignore = "prints speeds: cargo test --release -p klambda-store -- --ignored --nocapture speeds"]
fn speeds() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = crate::real_disk::RealDisk::open(folder.path()).expect("free");
    let key = |n: u64| format!("orders/{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let timed = |what: &str, count: u64, work: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        work();
        println!("{what}: {:.2} us each", start.elapsed().as_micros() as f64 / count as f64);
    };
    let mut set = TableSet::default();
    for file in 0..4 {
        let mut keys: Vec<String> = (0..250_000).map(|n| key(n * 4 + file)).collect();
        keys.sort();
        timed("write a row of 100 bytes", 250_000, &mut || {
            let mut writer =
                Writer::new(&disk, &format!("{file}"), Options { bloom: true }).expect("create succeeds");
            keys.iter().for_each(|key| writer.add(key.as_bytes(), Some(&[1; 80])).expect("write succeeds"));
            set = set.with_new(writer.finish().expect("finish succeeds"));
        });
    }
    let get = |set: &TableSet, from: u64| {
        let found = (from..from + 100_000)
            .filter(|n| set.get(key(n * 7).as_bytes()).expect("read succeeds").is_some());
        found.count()
    };
    timed("get a present key, 4 tables", 100_000, &mut || assert_eq!(get(&set, 0), 100_000));
    timed("get an absent key, 4 tables", 100_000, &mut || assert_eq!(get(&set, 1_000_000), 0));
    timed("scan a row, 4 tables", 1_000_000, &mut || assert_eq!(set.scan(b"").count(), 1_000_000));
    let plan = set.plan_merge().expect("four tables of the same size");
    timed("merge a row", 1_000_000, &mut || {
        set = set.with_merged(&plan, plan.run(&disk, "merged", &|_, _| true).expect("merge succeeds"));
    });
    timed("get a present key, 1 table", 100_000, &mut || assert_eq!(get(&set, 0), 100_000));
    timed("verify a row", 1_000_000, &mut || set.tables()[0].verify().expect("the table is intact"));
    println!("{} bytes, {} in memory", set.bytes(), set.memory_bytes());
}
