//! The small forms: lanes, marks, the manifest, headers of frames, numbers that may be absent.
#![no_main]

use klambda_core::ids::{Address, Position};
use klambda_core::lane::Lane;
use klambda_core::wire::{Reader, put_option, put_varint};
use klambda_fuzz::input::Input;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::manifest::{Manifest, NAME};
use klambda_store::marks::Mark;
use klambda_store::segment::{FRAME_HEADER, FrameHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    match mode % 6 {
        0 => lane(rest),
        1 => mark(rest),
        2 => manifest(rest),
        3 => manifest(&sealed(rest)),
        4 => frame_header(&mut Input::new(rest)),
        _ => numbers(&mut Input::new(rest)),
    }
});

fn lane(bytes: &[u8]) {
    let Ok(lane) = Lane::decode(&mut Reader::new(bytes)) else { return };
    // What no lane writes is left out when it is written again: from then on it stays the same.
    let (first, again) = written(&lane);
    let (second, _) = written(&again);
    assert_eq!(first, second);
    assert_eq!(lane.entries().collect::<Vec<_>>(), again.entries().collect::<Vec<_>>());
    assert_eq!(lane.early().collect::<Vec<_>>(), again.early().collect::<Vec<_>>());
    assert_eq!(
        (lane.expected(), lane.retry_at(), lane.hold()),
        (again.expected(), again.retry_at(), again.hold())
    );
    // A row of an older version grows when it is written as one of today.
    let is_of_today = first.first() == bytes.first();
    assert!(!is_of_today || first.len() <= bytes.len(), "our own encoding is the shortest");
}

fn written(lane: &Lane) -> (Vec<u8>, Lane) {
    let mut bytes = Vec::new();
    lane.encode(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let again = Lane::decode(&mut reader).expect("what was encoded decodes");
    assert!(reader.is_empty(), "all of it is read");
    (bytes, again)
}

fn mark(bytes: &[u8]) {
    let Ok(mark) = Mark::decode(bytes) else { return };
    let mut again = Vec::new();
    mark.encode(&mut again);
    assert_eq!(Mark::decode(&again), Ok(mark));
}

fn sealed(json: &[u8]) -> Vec<u8> {
    [format!("{:08x}\n", crc32fast::hash(json)).as_bytes(), json].concat()
}

fn manifest(bytes: &[u8]) {
    let Ok(manifest) = load(bytes) else { return };
    let again = manifest.encode().expect("JSON");
    assert_eq!(load(&again).expect("a manifest of ours"), manifest);
    assert_eq!(manifest.checkpoint().address, manifest.checkpoint);
    let mut damaged = again;
    if let Some(byte) = damaged.last_mut() {
        *byte ^= 1;
    }
    assert!(load(&damaged).is_err(), "a flipped bit was read");
    let _ = manifest.key();
}

fn load(bytes: &[u8]) -> Result<Manifest, klambda_store::manifest::Error> {
    let disk = MemoryDisk::new();
    disk.create(NAME).and_then(|file| file.write_at(bytes, 0)).expect("a file in memory");
    Manifest::load(&disk).map(|manifest| manifest.expect("there is one"))
}

fn frame_header(input: &mut Input<'_>) {
    let at = Address(input.number());
    let header = FrameHeader {
        length: input.number() as u32,
        first_position: Position(input.number()),
        synced: Address(input.number()),
        count: input.number() as u32,
    };
    let mut bytes = header.encode(at);
    assert_eq!(FrameHeader::decode(&bytes, at), Some(header));
    assert_eq!(FrameHeader::decode(&bytes[..FRAME_HEADER - 1], at), None);
    assert_eq!(FrameHeader::decode(&bytes, Address(at.0 ^ 1)), None, "in the wrong place");
    assert!(header.stride() >= FRAME_HEADER as u64 + u64::from(header.length));
    let bit = input.below(8 * FRAME_HEADER);
    bytes[bit / 8] ^= 1 << (bit % 8);
    assert_eq!(FrameHeader::decode(&bytes, at), None, "bit {bit} is flipped");
    let _ = FrameHeader::decode(input.rest(), at);
}

fn numbers(input: &mut Input<'_>) {
    let (number, option) = (input.number(), input.flag().then(|| input.number()));
    let mut bytes = Vec::new();
    put_varint(&mut bytes, number);
    put_option(&mut bytes, option);
    let mut reader = Reader::new(&bytes);
    assert_eq!((reader.varint(), reader.option()), (Ok(number), Ok(option)));
    assert!(reader.is_empty());
    // Any bytes: what is read as a number is written as no more bytes than it took.
    let mut reader = Reader::new(input.rest());
    if let Ok(number) = reader.varint() {
        let mut again = Vec::new();
        put_varint(&mut again, number);
        let taken = input.rest().len() - reader.rest().len();
        assert!(again.len() <= taken);
    }
}
