use super::*;
use crate::faulty_disk::{MemoryDisk, Op};
use proptest::prelude::*;
use std::collections::BTreeMap;

type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

const TIMES: Times = Times { min: Millis(5), max: Millis(9) };

fn write(disk: &MemoryDisk, name: &str, rows: &Rows, bloom: bool) -> Result<Table, Error> {
    let mut writer = Writer::new(disk, name, Options { bloom })?;
    writer.set_times(Some(TIMES));
    rows.iter().try_for_each(|(key, value)| writer.add(key, value.as_deref()))?;
    writer.finish()
}

fn read(table: &Table) -> Result<Rows, Error> {
    table.scan(b"").collect()
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

fn small_rows() -> Rows {
    rows_of(37)
}

/// Rows with values of various lengths, tombstones, and keys with common prefixes.
fn rows_of(value_bytes: usize) -> Rows {
    let row = |n: u32| {
        let value = (!n.is_multiple_of(7))
            .then(|| vec![n as u8; (n as usize * value_bytes) % (value_bytes * 10 + 1)]);
        (format!("orders/order-{:05}", n * 3).into_bytes(), value)
    };
    (0..60).map(row).collect()
}

#[test]
fn what_was_written_is_read() {
    for bloom in [false, true] {
        let disk = MemoryDisk::new();
        let rows = small_rows();
        let written = write(&disk, "t", &rows, bloom).expect("write succeeds");
        for table in [written, Table::open(&disk, "t").expect("open succeeds")] {
            assert_eq!(read(&table).expect("read succeeds"), rows);
            assert_eq!((table.rows(), table.tombstones()), (60, 9));
            assert_eq!((table.times(), table.has_filters()), (Some(TIMES), bloom));
            assert_eq!(table.get(b"orders/order-00003").expect("get succeeds"), Some(Some(vec![1; 37])));
            assert_eq!(table.get(b"orders/order-00000").expect("get succeeds"), Some(None));
            assert_eq!(table.get(b"orders/order-00004").expect("get succeeds"), None);
            table.verify().expect("the table is intact");
        }
    }
}

#[test]
fn an_empty_table_is_a_table() {
    let disk = MemoryDisk::new();
    let table = write(&disk, "t", &Rows::new(), true).expect("write succeeds");
    table.verify().expect("the table is intact");
    assert_eq!(table.get(b"").expect("get succeeds"), None);
    assert_eq!(read(&table).expect("read succeeds"), Rows::new());
}

#[test]
#[should_panic(expected = "keys must ascend")]
fn keys_must_ascend() {
    let mut writer = Writer::new(&MemoryDisk::new(), "t", Options::default()).expect("create succeeds");
    writer.add(b"b", None).expect("write succeeds");
    let _ = writer.add(b"b", None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_rows_are_read_as_written(
        rows in prop::collection::btree_map(
            prop::collection::vec(0_u8..4, 0..12), prop::option::of(prop::collection::vec(any::<u8>(), 0..2000)), 0..200),
        from in prop::collection::vec(0_u8..4, 0..12),
        bloom: bool,
    ) {
        let disk = MemoryDisk::new();
        let table = write(&disk, "t", &rows, bloom).expect("write succeeds");
        table.verify().expect("the table is intact");
        let expected: Rows = rows.range(from.clone()..).map(|(k, v)| (k.clone(), v.clone())).collect();
        prop_assert_eq!(table.scan(&from).collect::<Result<Rows, Error>>().expect("read succeeds"), expected);
        prop_assert_eq!(table.get(&from).expect("get succeeds"), rows.get(&from).cloned());
        for (key, value) in &rows {
            prop_assert_eq!(table.get(key).expect("get succeeds"), Some(value.clone()));
        }
    }

    /// Arbitrary bytes with valid checksums must give an error and never a panic.
    #[test]
    fn nonsense_under_right_checksums_does_not_panic(
        top in prop::collection::vec(any::<u8>(), 0..64), data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let disk = MemoryDisk::new();
        let file = disk.create("t").expect("create succeeds");
        let mut bytes = Vec::new();
        let seal = |bytes: &mut Vec<u8>, block: &[u8]| {
            let crc = block::checksum(bytes.len() as u64, block);
            bytes.extend_from_slice(block);
            bytes.extend_from_slice(&crc.to_le_bytes());
        };
        seal(&mut bytes, &data);
        let top_offset = bytes.len() as u64;
        seal(&mut bytes, &top);
        let (top_len, file_len) = (top.len() as u64 + 4, bytes.len() as u64 + 128);
        let footer = Footer { top_offset, top_len, file_len, rows: 1, tombstones: 0, times: None };
        seal(&mut bytes, &footer.encode());
        file.write_at(&bytes, 0).expect("write succeeds");
        if let Ok(table) = Table::open(&disk, "t") {
            let _ = (table.verify(), table.get(b"a"), read(&table));
        }
    }
}

/// Flips single bits. Every read must return the correct rows or an error.
fn flip(rows: &Rows, bloom: bool, bits: impl Fn(u64) -> bool) {
    let disk = MemoryDisk::new();
    let table = write(&disk, "t", rows, bloom).expect("write succeeds");
    for bit in (0..table.bytes() * 8).filter(|bit| bits(*bit)) {
        disk.flip_bit("t", bit);
        assert!(table.verify().is_err_and(|e| is_damage(&e)), "bit {bit}");
        if let Ok(table) = Table::open(&disk, "t").inspect_err(|e| assert!(is_damage(e), "{e}")) {
            right_or_refused(read(&table), rows);
            for (key, value) in rows.iter().skip(bit as usize % 20).step_by(20) {
                right_or_refused(table.get(key), &Some(value.clone()));
            }
        }
        disk.flip_bit("t", bit);
    }
    table.verify().expect("the table is intact again");
}

fn right_or_refused<T: PartialEq + std::fmt::Debug>(answer: Result<T, Error>, right: &T) {
    match answer {
        Ok(answer) => assert_eq!(answer, *right),
        Err(error) => assert!(is_damage(&error), "{error}"),
    }
}

#[test]
fn every_flipped_bit_is_seen_and_none_is_believed() {
    flip(&rows_of(1), false, |_| true);
    flip(&rows_of(1), true, |_| true);
    // Several data blocks; flips one bit in every seventh byte.
    flip(&rows_of(90), true, |bit| bit.is_multiple_of(57));
}

#[test]
fn a_torn_file_does_not_open() {
    let disk = MemoryDisk::new();
    let bytes = write(&disk, "t", &small_rows(), true).expect("write succeeds").bytes();
    let mut whole = vec![0; bytes as usize];
    disk.open("t").and_then(|file| file.read_at(&mut whole, 0)).expect("read succeeds");
    for len in 0..whole.len() {
        let file = disk.create("torn").expect("create succeeds");
        file.write_at(&whole[..len], 0).expect("write succeeds");
        assert!(Table::open(&disk, "torn").is_err_and(|e| is_damage(&e)), "{len} bytes");
    }
    let file = disk.open("t").expect("open succeeds");
    file.write_at(b"x", bytes).expect("write succeeds");
    assert!(Table::open(&disk, "t").is_err_and(|e| is_damage(&e)), "one byte too many");
    assert!(matches!(Table::open(&disk, "none"), Err(Error::Io { .. })));
}

#[test]
fn a_finished_table_survives_a_crash_and_an_unfinished_one_does_not_open() {
    let disk = MemoryDisk::new();
    write(&disk, "done", &small_rows(), true).expect("write succeeds");
    disk.sync_names().expect("sync_names succeeds");
    let mut unfinished = Writer::new(&disk, "unfinished", Options::default()).expect("create succeeds");
    unfinished.add(b"a", Some(&[7; 600 << 10])).expect("write succeeds");
    disk.crash(&mut |n| n - 1);
    let table = Table::open(&disk, "done").expect("open succeeds");
    assert_eq!(read(&table).expect("read succeeds"), small_rows());
    assert!(Table::open(&disk, "unfinished").is_err_and(|e| is_damage(&e)));
}

#[test]
fn a_failing_disk_is_an_error_of_that_call_only() {
    let rows = small_rows();
    for op in [Op::Create, Op::Write, Op::Sync] {
        let disk = MemoryDisk::new();
        disk.fail_nth(op, 1);
        assert!(matches!(write(&disk, "t", &rows, false), Err(Error::Io { .. })), "{op:?}");
        write(&disk, "t", &rows, false).expect("write succeeds");
    }
    let disk = MemoryDisk::new();
    let table = write(&disk, "t", &rows, false).expect("write succeeds");
    disk.fail_nth(Op::Read, 1);
    assert!(matches!(table.get(b"orders/order-00003"), Err(Error::Io { .. })));
    assert!(table.get(b"orders/order-00003").is_ok());
    disk.fail_nth(Op::Read, 2);
    assert!(matches!(read(&table), Err(Error::Io { .. })));
    assert_eq!(read(&table).expect("read succeeds"), rows);
}

#[test]
fn another_version_is_named() {
    let disk = MemoryDisk::new();
    let table = write(&disk, "t", &small_rows(), false).expect("write succeeds");
    let offset = table.bytes() - layout::FOOTER_BYTES as u64;
    let mut footer = table.0.footer.encode();
    footer[112] = 7;
    let crc = block::checksum(offset, &footer).to_le_bytes();
    table.0.source.file.write_at(&[&footer[..], &crc].concat(), offset).expect("write succeeds");
    assert!(matches!(Table::open(&disk, "t"), Err(Error::Version { found: 7, .. })));
}

#[test]
fn a_million_rows_cost_little_memory() {
    let disk = MemoryDisk::new();
    for (bloom, most) in [(false, 40 << 10), (true, 1_800 << 10)] {
        let mut writer = Writer::new(&disk, "t", Options { bloom }).expect("create succeeds");
        for n in 0..1_000_000_u64 {
            let key = format!("subscription/order-{:020}", n * 7_919);
            writer.add(key.as_bytes(), Some(&[0; 100])).expect("write succeeds");
        }
        let table = writer.finish().expect("finish succeeds");
        table.get(b"subscription/order-00000000000000007919").expect("get succeeds").expect("the key exists");
        println!("1M rows, bloom {bloom}: {} in the file, {} in memory", table.bytes(), table.memory_bytes());
        assert!(table.memory_bytes() < most, "{} bytes", table.memory_bytes());
    }
}
