use super::*;

fn read(disk: &MemoryDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("opens");
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn create(disk: &MemoryDisk, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.create(name).expect("creates");
    file.write_at(bytes, 0).expect("writes");
    file
}

fn create_durable(disk: &MemoryDisk, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(disk, name, bytes);
    file.sync().expect("syncs");
    disk.sync_names().expect("syncs names");
    file
}

#[test]
fn a_crash_keeps_what_was_synced_and_may_lose_the_rest() {
    let disk = MemoryDisk::new();
    let file = create_durable(&disk, "a", &[1; 1024]);
    file.write_at(&[2; 1024], 512).expect("writes");
    create(&disk, "b", b"x").sync().expect("syncs");
    disk.rename("a", "c").expect("renames");

    let nothing = disk.clone_image();
    nothing.crash(&mut |_| 0);
    assert_eq!(nothing.list().expect("lists"), ["a"]);
    assert_eq!(read(&nothing, "a"), [1; 1024]);

    let all = disk.clone_image();
    all.crash(&mut |n| n - 1);
    assert_eq!(all.list().expect("lists"), ["b", "c"]);
    assert_eq!(read(&all, "c"), [[1; 512], [2; 512], [2; 512]].concat());

    // Neither name change, the second sector but not the first, and no more.
    let mut choices = [0, 0, 1, 0].into_iter();
    disk.crash(&mut |_| choices.next().expect("four choices"));
    assert_eq!(read(&disk, "a"), [[1; 512], [1; 512], [2; 512]].concat());
    assert_eq!(disk.used_bytes(), 1536);
    assert!(file.write_at(b"late", 0).is_err(), "a file opened before the crash");
}

#[test]
fn a_failed_sync_is_never_made_good() {
    let disk = MemoryDisk::new();
    let file = create_durable(&disk, "a", b"old");
    file.write_at(b"new", 0).expect("writes");
    disk.fail_nth(Op::Sync, 1);
    file.sync().expect_err("as asked");
    file.sync().expect("reports success");
    assert_eq!(read(&disk, "a"), b"new");
    disk.crash(&mut |n| n - 1);
    assert_eq!(read(&disk, "a"), b"old");
}

#[test]
fn failures_come_once_and_in_their_turn() {
    let disk = MemoryDisk::new();
    disk.fail_nth(Op::Write, 2);
    let file = create(&disk, "a", b"1234");
    file.write_at(b"5678", 4).expect_err("the second");
    assert_eq!(read(&disk, "a"), b"123456");
    file.write_at(b"5678", 4).expect("the third");
    for (op, outcome) in [
        (Op::Create, (|disk| disk.create("b").map(drop)) as fn(&MemoryDisk) -> io::Result<()>),
        (Op::Rename, |disk| disk.rename("a", "a")),
        (Op::Remove, |disk| disk.remove("a")),
        (Op::SyncNames, |disk| disk.sync_names()),
        (Op::Read, |disk| disk.open("a")?.read_at(&mut [0], 0).map(drop)),
    ] {
        disk.fail_nth(op, 1);
        outcome(&disk).expect_err("as asked");
    }
    assert_eq!(disk.list().expect("lists"), ["a"]);
}

#[test]
fn names_that_a_failed_sync_lost_are_not_made_good() {
    let disk = MemoryDisk::new();
    create(&disk, "a", b"1234");
    disk.fail_nth(Op::SyncNames, 1);
    for _ in 0..2 {
        disk.sync_names().expect_err("as asked, and from then on");
    }
    assert!(disk.are_names_lost());
    disk.crash(&mut |_| 0);
    assert!(!disk.are_names_lost() && disk.list().expect("lists").is_empty());
    disk.sync_names().expect("after a start");
}

#[test]
fn a_full_disk_takes_what_fits_and_frees_what_is_removed() {
    let disk = MemoryDisk::new();
    disk.set_capacity(Some(10));
    let file = create_durable(&disk, "a", b"12345678");
    let full = file.write_at(b"abcd", 7).expect_err("11 bytes");
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!((read(&disk, "a"), disk.free_bytes()), (b"1234567abc".to_vec(), Some(0)));
    file.write_at(b"xyz", 0).expect("needs no room");
    disk.remove("a").expect("removes");
    assert_eq!(disk.free_bytes(), Some(10));
    disk.crash(&mut |_| 0);
    assert_eq!(disk.free_bytes(), Some(2), "the removal was not synced, nor were two bytes");
}

#[test]
fn damage_outlives_a_crash() {
    let disk = MemoryDisk::new();
    create_durable(&disk, "a", &[255; 4]);
    disk.flip_bit("a", 9);
    disk.zero("a", 3..9);
    disk.crash(&mut |_| 0);
    assert_eq!(read(&disk, "a"), [255, 253, 255, 0]);
}
