//! The small formats: lanes, marks, the manifest, frame headers, optional numbers.
#![no_main]

use klambda_core::ids::Position;
use klambda_core::lane::{Lane, Queue};
use klambda_core::wire::{Reader, put_option, put_varint};
use klambda_fuzz::input::Input;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::manifest::{Manifest, NAME};
use klambda_store::marks::Mark;
use klambda_store::segment::{FRAME_HEADER, FrameHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    match mode % 7 {
        0 => lane(rest),
        6 => queue(rest),
        1 => mark(rest),
        2 => manifest(rest),
        3 => manifest(&sealed(rest)),
        4 => frame_header(&mut Input::new(rest)),
        _ => numbers(&mut Input::new(rest)),
    }
});

fn lane(bytes: &[u8]) {
    let Ok(lane) = Lane::decode(&mut Reader::new(bytes)) else { return };
    // Encoding drops data that no lane writes. After that, the encoding is stable.
    let (first, again) = written(&lane);
    let (second, _) = written(&again);
    assert_eq!(first, second);
    assert_eq!(lane.entries().collect::<Vec<_>>(), again.entries().collect::<Vec<_>>());
    assert_eq!(lane.early().collect::<Vec<_>>(), again.early().collect::<Vec<_>>());
    assert_eq!(
        (lane.expected(), lane.retry_at(), lane.hold()),
        (again.expected(), again.retry_at(), again.hold())
    );
    assert!(first.len() <= bytes.len(), "our encoding must not be longer");
}

fn queue(bytes: &[u8]) {
    let Ok(queue) = Queue::decode(&mut Reader::new(bytes)) else { return };
    let mut again = Vec::new();
    queue.encode(&mut again);
    let mut reader = Reader::new(&again);
    assert_eq!(Queue::decode(&mut reader), Ok(queue));
    assert!(reader.is_empty() && again.len() <= bytes.len());
}

fn written(lane: &Lane) -> (Vec<u8>, Lane) {
    let mut bytes = Vec::new();
    lane.encode(&mut bytes);
    let mut reader = Reader::new(&bytes);
    let again = Lane::decode(&mut reader).expect("an encoded lane decodes");
    assert!(reader.is_empty(), "decoding reads the whole row");
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
    assert_eq!(load(&again).expect("an encoded manifest loads"), manifest);
    assert_eq!(manifest.checkpoint().address, manifest.checkpoint);
    let mut damaged = again;
    if let Some(byte) = damaged.last_mut() {
        *byte ^= 1;
    }
    assert!(load(&damaged).is_err(), "a flipped bit was not detected");
    let _ = manifest.key();
}

fn load(bytes: &[u8]) -> Result<Manifest, klambda_store::manifest::Error> {
    let disk = MemoryDisk::new();
    disk.create(NAME).and_then(|file| file.write_at(bytes, 0)).expect("a file in memory");
    Manifest::load(&disk).map(|manifest| manifest.expect("the manifest exists"))
}

fn frame_header(input: &mut Input<'_>) {
    let at = LogAddress(input.number());
    let header = FrameHeader {
        length: input.number() as u32,
        first_position: Position(input.number()),
        synced: LogAddress(input.number()),
        count: input.number() as u32,
    };
    let mut bytes = header.encode(at);
    assert_eq!(FrameHeader::decode(&bytes, at), Some(header));
    assert_eq!(FrameHeader::decode(&bytes[..FRAME_HEADER - 1], at), None);
    assert_eq!(FrameHeader::decode(&bytes, LogAddress(at.0 ^ 1)), None, "decoded at the wrong address");
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
    // Any bytes: a decoded number is encoded in at most as many bytes.
    let mut reader = Reader::new(input.rest());
    if let Ok(number) = reader.varint() {
        let mut again = Vec::new();
        put_varint(&mut again, number);
        let taken = input.rest().len() - reader.rest().len();
        assert!(again.len() <= taken);
    }
}
