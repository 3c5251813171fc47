//! Tests of the path of rows and marks from memory to tables by checkpoints and merges, and back from the manifest.

use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::chore::{Chore, Done, Work};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::{MemoryDisk, Op};
use klambda_store::manifest::Manifest;
use klambda_store::marks::{Identity, Mark, Marks, State};
use klambda_store::rows::{NumberKey, Rows};
use klambda_store::tables::TableSet;
use std::sync::Arc;

const KEY: [u8; 16] = [7, 0, 255, 16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const ORDERS: SubscriptionId = SubscriptionId(5);
const OTHERS: SubscriptionId = SubscriptionId(6);

/// The state of an engine, without the engine.
struct Folder {
    disk: MemoryDisk,
    manifest: Manifest,
    rows: Rows,
    marks: Marks,
}

impl Folder {
    fn new() -> Folder {
        Folder {
            disk: MemoryDisk::new(),
            manifest: Manifest::new(KEY),
            rows: Rows::default(),
            marks: Marks::default(),
        }
    }

    fn chore(&self, work: Work) -> Chore {
        Chore {
            disk: Arc::new(self.disk.clone()),
            manifest: self.manifest.clone(),
            rows: self.rows.tables().clone(),
            marks: self.marks.tables().clone(),
            work,
        }
    }

    fn run(&self, work: Work) -> Done {
        self.chore(work).run().expect("the disk works")
    }

    fn checkpoint(&mut self, at: u64) {
        let (changed, recent) = (self.rows.freeze(), self.marks.freeze());
        let work =
            Work::Checkpoint { changed, recent, address: LogAddress(at), next_position: Position(at + 1) };
        let Done { manifest, rows, marks } = self.run(work);
        self.rows.settle(rows);
        self.marks.settle(marks);
        self.manifest = manifest;
    }

    fn merge(&mut self, work: Work) {
        let Done { manifest, rows, marks } = self.run(work);
        self.rows.replace_tables(rows);
        self.marks.replace_tables(marks);
        self.manifest = manifest;
    }

    /// The state after a restart: only what the manifest names.
    fn reopened(&self) -> Folder {
        let manifest = Manifest::load(&self.disk).expect("load succeeds").expect("the manifest exists");
        manifest.sweep(&self.disk).expect("sweep succeeds");
        let open = |names: &[String]| TableSet::open(&self.disk, names).expect("the tables open");
        let (rows, marks) = (Rows::new(open(&manifest.rows)), Marks::new(open(&manifest.marks)));
        Folder { disk: self.disk.clone(), manifest, rows, marks }
    }

    fn files(&self, start: &str) -> usize {
        self.disk.list().expect("list succeeds").iter().filter(|name| name.starts_with(start)).count()
    }

    fn all(&self) -> Vec<(String, String)> {
        let found = self.rows.scan(b"", b"", 1000).expect("scan succeeds");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        found.into_iter().map(|(key, value)| (text(key), text(value))).collect()
    }
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.into(), value.into())
}

fn identity(n: u64) -> Identity {
    Identity::new(&KEY, NamespaceId(0), "/shop", &format!("e{n}"))
}

fn mark(n: u64) -> Mark {
    let state = match n % 4 {
        0 => State::Taken(Position(n)),
        1 => State::Later(Position(n)),
        2 => State::Delivered(LogAddress(n * 9)),
        _ => State::Released(LogAddress(n * 9)),
    };
    Mark { at: LogAddress(n * 8), time: Millis(n), state }
}

#[test]
fn rows_are_found_in_memory_while_they_are_written_and_in_tables() {
    let mut folder = Folder::new();
    folder.rows.put(b"a", b"1");
    folder.rows.put(b"b", b"1");
    folder.rows.put(b"c", b"1");
    folder.checkpoint(10);
    folder.rows.put(b"b", b"22");
    folder.rows.delete(b"c");
    let frozen = folder.rows.freeze();
    assert_eq!(frozen.len(), 2);
    folder.rows.put(b"d", b"4");
    let expected = [pair("a", "1"), pair("b", "22"), pair("d", "4")];
    assert_eq!(folder.all(), expected, "during a checkpoint");
    folder.rows.thaw();
    assert_eq!(folder.all(), expected, "after a failed checkpoint");
    folder.checkpoint(20);
    assert_eq!(folder.all(), expected, "after a finished checkpoint");
    let again = folder.reopened();
    assert_eq!((again.all(), again.rows.get(b"c").expect("read succeeds")), (expected.to_vec(), None));
    assert_eq!(again.manifest.checkpoint().address, LogAddress(20));
    assert_eq!((again.manifest.key(), again.files("rows-")), (KEY, 2));
}

/// The key of a row with a number.
fn key_of(n: u64) -> NumberKey {
    let mut key = [b'I'; size_of::<NumberKey>()];
    // The order of the keys is not that of the numbers.
    key[1..9].copy_from_slice(&n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes());
    key
}

#[test]
fn numbers_are_found_wherever_they_are_and_sorted_among_the_other_rows() {
    let mut folder = Folder::new();
    let number = |folder: &Folder, n: u64| folder.rows.number(&key_of(n)).expect("read succeeds");
    folder.rows.put(b"F", b"before");
    folder.rows.put(b"T", b"behind");
    (1..100).for_each(|n| folder.rows.put_number(&key_of(n), n));
    folder.checkpoint(10);
    folder.rows.put_number(&key_of(1), 1000);
    folder.rows.delete_number(&key_of(2));
    folder.rows.put_number(&key_of(3), 3000);
    assert_eq!(folder.rows.freeze().len(), 3);
    folder.rows.put_number(&key_of(3), 3001);
    folder.rows.put_number(&key_of(100), 100);
    let expected = |n: u64| match n {
        1 => Some(1000),
        2 | 101 => None,
        3 => Some(3001),
        n => Some(n),
    };
    for round in ["during a checkpoint", "after a failed checkpoint", "after a finished checkpoint"] {
        for n in 1..102 {
            assert_eq!(number(&folder, n), expected(n), "{n} {round}");
        }
        match round {
            "during a checkpoint" => folder.rows.thaw(),
            _ => folder.checkpoint(20),
        }
    }
    let again = folder.reopened();
    assert!((1..102).all(|n| number(&again, n) == expected(n)));
    let found = again.rows.scan(b"", b"", 1000).expect("scan succeeds");
    let keys: Vec<Vec<u8>> = found.into_iter().map(|(key, _)| key).collect();
    assert!(keys.is_sorted() && keys.len() == 101, "{} rows", keys.len());
    assert_eq!((keys.first(), keys.last()), (Some(&b"F".to_vec()), Some(&b"T".to_vec())));
}

#[test]
fn changed_bytes_are_those_of_what_changed() {
    let mut rows = Rows::default();
    rows.put(b"key", b"value");
    let first = rows.changed_bytes();
    rows.put(b"key", b"longer value");
    assert_eq!(rows.changed_bytes(), first + 7);
    rows.put(b"key", b"value");
    assert_eq!(rows.changed_bytes(), first);
    rows.delete(b"key");
    assert_eq!(rows.changed_bytes(), first - 5);
    rows.put(b"other", b"");
    assert_eq!(rows.changed_bytes(), 2 * (first - 5) + 2);
    rows.freeze();
    assert_eq!(rows.changed_bytes(), 0);
}

#[test]
fn marks_are_known_wherever_they_are() {
    let mut folder = Folder::new();
    for n in 0..10 {
        folder.marks.put(identity(n), ORDERS, mark(n));
    }
    assert_eq!((folder.marks.recent_len(), folder.marks.len()), (10, 10));
    folder.checkpoint(1);
    for n in 10..14 {
        folder.marks.put(identity(n), ORDERS, mark(n));
    }
    folder.marks.freeze();
    folder.marks.put(identity(14), ORDERS, mark(14));
    assert_eq!((folder.marks.recent_len(), folder.marks.len()), (1, 15));
    for n in 0..15 {
        assert_eq!(folder.marks.get(identity(n), ORDERS).expect("read succeeds"), Some(mark(n)), "{n}");
        assert_eq!(
            folder.marks.get(identity(n), OTHERS).expect("read succeeds"),
            None,
            "mark of another subscription"
        );
    }
    folder.marks.thaw();
    folder.checkpoint(2);
    let again = folder.reopened();
    assert_eq!((again.marks.recent_len(), again.marks.len()), (0, 15));
    assert_eq!(again.marks.get(identity(12), ORDERS).expect("read succeeds"), Some(mark(12)));
    assert!(again.marks.tables().memory_bytes() > 0);
}

#[test]
fn merges_leave_out_what_is_to_go() {
    let mut folder = Folder::new();
    let row = |letter: u8, id: SubscriptionId| [&[letter][..], &id.0.to_be_bytes(), b"x"].concat();
    let mut n = 0;
    while folder.rows.tables().plan_merge().is_none() || folder.marks.tables().plan_merge().is_none() {
        folder.rows.put(&row(b'L', ORDERS), b"of orders");
        folder.rows.put(&row(b'L', OTHERS), b"of others");
        folder.rows.put(&row(b'X', ORDERS), b"of nobody");
        folder.marks.put(identity(n), ORDERS, mark(n));
        folder.checkpoint(n + 1);
        n += 1;
    }
    let before = (folder.files("rows-"), folder.files("marks-"));
    let plan = folder.rows.tables().plan_merge().expect("many tables");
    folder.merge(Work::MergeRows { plan, removed: vec![ORDERS] });
    let get = |folder: &Folder, letter: u8, id: SubscriptionId| {
        folder.rows.get(&row(letter, id)).expect("read succeeds")
    };
    assert_eq!(get(&folder, b'L', OTHERS), Some(b"of others".to_vec()));
    assert_eq!(get(&folder, b'X', ORDERS), Some(b"of nobody".to_vec()));
    let merged = folder.rows.tables().tables().iter().find(|table| table.rows() == 2);
    assert!(merged.is_some(), "the merge omits the row of the removed subscription");
    let plan = folder.marks.tables().plan_merge().expect("many tables");
    let merged = plan.names().len() as u64;
    folder.merge(Work::MergeMarks { plan, before: Millis(2) });
    for at in 0..n {
        let known = folder.marks.get(identity(at), ORDERS).expect("read succeeds");
        assert_eq!(known.is_some(), at >= 2 || n - at > merged, "mark {at} of {n}, {merged} merged");
    }
    let after = (folder.files("rows-"), folder.files("marks-"));
    assert!(after.0 < before.0 && after.1 < before.1, "{before:?} {after:?}");
    let again = folder.reopened();
    assert_eq!((again.files("rows-"), again.files("marks-")), after, "no files are left over");
    assert_eq!(get(&again, b'L', OTHERS), Some(b"of others".to_vec()));

    let names = folder.marks.tables().names();
    folder.merge(Work::DropMarks { names });
    assert_eq!((folder.marks.len(), folder.files("marks-")), (0, 0));
}

#[test]
fn an_empty_checkpoint_writes_no_table() {
    let mut folder = Folder::new();
    folder.checkpoint(1);
    assert_eq!((folder.files("rows-"), folder.files("marks-")), (0, 0));
    folder.rows.put(b"a", b"1");
    folder.checkpoint(2);
    assert_eq!((folder.files("rows-"), folder.files("marks-")), (1, 0));
}

#[test]
fn segments_are_removed_once_and_those_that_are_gone_already_are_no_failure() {
    let folder = Folder::new();
    folder.disk.create("log-1").expect("create succeeds");
    let names = vec!["log-0".to_owned(), "log-1".to_owned()];
    folder.run(Work::RemoveFiles { names: names.clone() });
    assert_eq!(folder.files("log-"), 0);
    folder.disk.create("log-1").expect("create succeeds");
    folder.disk.fail_nth(Op::Remove, 2);
    let failed = folder.chore(Work::RemoveFiles { names }).run();
    assert!(failed.is_err() && folder.files("log-") == 1, "a failed removal is reported");
}

#[test]
fn a_manifest_that_cannot_be_read_is_not_taken_for_none() {
    let mut folder = Folder::new();
    assert_eq!(Manifest::load(&folder.disk).expect("load succeeds"), None);
    folder.checkpoint(1);
    folder.disk.fail_nth(Op::Read, 1);
    assert!(Manifest::load(&folder.disk).is_err());
    assert_eq!(Manifest::load(&folder.disk).expect("load succeeds"), Some(folder.manifest.clone()));
}

#[test]
fn what_chores_left_over_is_swept_away_and_nothing_else() {
    let mut folder = Folder::new();
    folder.rows.put(b"a", b"1");
    folder.checkpoint(1);
    let mut kept = folder.disk.list().expect("list succeeds");
    for name in
        ["rows-99999999", "marks-99999999", "spare", "spare-unfinished", "manifest-new", "log-1", "lock"]
    {
        folder.disk.create(name).expect("create succeeds");
    }
    folder.manifest.sweep(&folder.disk).expect("sweep succeeds");
    kept.extend(["log-1".to_owned(), "lock".to_owned()]);
    let mut left = folder.disk.list().expect("list succeeds");
    left.sort();
    kept.sort();
    assert_eq!(left, kept);
}
