//! Tables: rows can be read back, damage is an error, and invalid blocks with valid checksums are errors too.
#![no_main]

use klambda_core::wire::{put_bytes, put_varint};
use klambda_fuzz::input::Input;
use klambda_fuzz::seal;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::table::{Options, Row, Table, Writer};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

const NAME: &str = "table";

type Rows = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.flag() {
        true => written(&mut input),
        false => made_up(&mut input),
    }
});

// ---- a table written by the program, then damaged -------------------------------------------------------

fn written(input: &mut Input<'_>) {
    let disk = MemoryDisk::new();
    let bloom = input.flag();
    let (rows, table) = write(&disk, bloom, input);
    table.verify().expect("a new table is intact");
    assert_eq!((table.rows(), table.has_filters()), (rows.len() as u64, bloom && !rows.is_empty()));
    let from = input.bytes();
    let found: Vec<Row> = table.scan(from).collect::<Result<_, _>>().expect("scan succeeds");
    assert!(found.iter().map(|(key, value)| (key, value)).eq(rows.range(from.to_vec()..)));
    assert!(rows.iter().all(|(key, value)| table.get(key).expect("get succeeds").as_ref() == Some(value)));
    assert_eq!(table.get(from).expect("get succeeds"), rows.get(from).cloned());
    let bit = input.below(8 * table.bytes().min(8000) as usize) as u64;
    disk.flip_bit(NAME, 8 * (table.bytes().saturating_sub(8000)) + bit);
    let Ok(harmed) = Table::open(&disk, NAME) else { return };
    assert!(harmed.verify().is_err(), "the flipped bit {bit} was not detected");
    for (key, value) in &rows {
        assert!(harmed.get(key).is_err() || harmed.get(key).is_ok_and(|found| found.as_ref() == Some(value)));
    }
    let good = harmed.scan(b"").take_while(Result::is_ok).map(|row| row.expect("errors were filtered out"));
    assert!(good.zip(&rows).all(|((key, value), row)| (&key, &value) == row));
}

fn write(disk: &MemoryDisk, bloom: bool, input: &mut Input<'_>) -> (Rows, Table) {
    let mut rows = Rows::new();
    for _ in 0..input.byte() % 24 {
        let key = input.bytes().to_vec();
        // Long values create many blocks from few bytes of input.
        let value = input.flag().then(|| input.bytes().repeat(1 + input.below(200)));
        rows.insert(key, value);
    }
    let mut writer = Writer::new(disk, NAME, Options { bloom }).expect("the file can be created");
    rows.iter().for_each(|(key, value)| writer.add(key, value.as_deref()).expect("the disk has space"));
    (rows, writer.finish().expect("the disk has space"))
}

// ---- arbitrary blocks with valid checksums --------------------------------------------------------------

fn made_up(input: &mut Input<'_>) {
    let disk = MemoryDisk::new();
    let rows = input.number();
    let mut file = Vec::new();
    let data = block(&mut file, input.bytes());
    let index = match input.flag() {
        true => block(&mut file, input.bytes()),
        false => block(&mut file, &row(b"", data)),
    };
    let filter = if input.flag() { block(&mut file, input.bytes()) } else { 0 };
    let top_offset = file.len() as u64;
    let top_len = match input.flag() {
        true => block(&mut file, input.bytes()),
        false => block(&mut file, &top(input, [data, index, filter])),
    };
    footer(&mut file, [top_offset, top_len, top_offset + top_len + 128, rows, input.number()]);
    disk.create(NAME).and_then(|new| new.write_at(&file, 0)).expect("a file in memory");
    if let Ok(table) = Table::open(&disk, NAME) {
        check(&table, input.rest());
    }
}

fn check(table: &Table, key: &[u8]) {
    let whole = table.verify().is_ok();
    let rows: Vec<Row> = table.scan(b"").take(10_000).map_while(Result::ok).collect();
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "keys must ascend");
    let _ = table.get(key);
    let _ = table.scan(key).take(10_000).count();
    if whole {
        assert_eq!(rows.len() as u64, table.rows());
        assert!(
            rows.iter()
                .all(|(key, value)| table.get(key).expect("the table is intact").as_ref() == Some(value))
        );
    }
}

/// Appends a block with its checksum. Returns the length of both.
fn block(file: &mut Vec<u8>, payload: &[u8]) -> u64 {
    let crc = seal::block(file.len() as u64, payload);
    file.extend_from_slice(payload);
    file.extend_from_slice(&crc.to_le_bytes());
    payload.len() as u64 + 4
}

/// The only row of an index: the length of its block.
fn row(key: &[u8], len: u64) -> Vec<u8> {
    let mut value = Vec::new();
    put_varint(&mut value, len);
    single(key, &value)
}

fn single(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut row = Vec::new();
    put_varint(&mut row, 0);
    put_varint(&mut row, key.len() as u64);
    put_varint(&mut row, value.len() as u64 + 1);
    [&row, key, value].concat()
}

fn top(input: &mut Input<'_>, lens: [u64; 3]) -> Vec<u8> {
    let (mut top, mut value) = (Vec::new(), Vec::new());
    put_bytes(&mut top, input.bytes());
    put_bytes(&mut top, input.bytes());
    lens.iter().for_each(|len| put_varint(&mut value, *len));
    top.extend_from_slice(&single(b"", &value));
    top
}

fn footer(file: &mut Vec<u8>, fields: [u64; 5]) {
    let mut payload = [0; 124];
    for (place, field) in payload.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    payload[112..116].copy_from_slice(&1_u32.to_le_bytes());
    payload[116..].copy_from_slice(b"klambdaT");
    block(file, &payload);
}
