use super::*;

fn read(disk: &MemoryDisk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("open succeeds");
    let mut bytes = vec![0; file.len().expect("len succeeds") as usize];
    file.read_at(&mut bytes, 0).expect("read succeeds");
    bytes
}

fn create(disk: &MemoryDisk, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.create(name).expect("create succeeds");
    file.write_at(bytes, 0).expect("write succeeds");
    file
}

fn create_durable(disk: &MemoryDisk, name: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(disk, name, bytes);
    file.sync().expect("sync succeeds");
    disk.sync_names().expect("sync_names succeeds");
    file
}

#[test]
fn a_crash_keeps_what_was_synced_and_may_lose_the_rest() {
    let disk = MemoryDisk::new();
    let file = create_durable(&disk, "a", &[1; 1024]);
    file.write_at(&[2; 1024], 512).expect("write succeeds");
    create(&disk, "b", b"x").sync().expect("sync succeeds");
    disk.rename("a", "c").expect("rename succeeds");

    let nothing = disk.clone_image();
    nothing.crash(&mut |_| 0);
    assert_eq!(nothing.list().expect("list succeeds"), ["a"]);
    assert_eq!(read(&nothing, "a"), [1; 1024]);

    let all = disk.clone_image();
    all.crash(&mut |n| n - 1);
    assert_eq!(all.list().expect("list succeeds"), ["b", "c"]);
    assert_eq!(read(&all, "c"), [[1; 512], [2; 512], [2; 512]].concat());

    // No name change survives, the second sector of the write survives but not the first, and the length does not
    // grow.
    let mut choices = [0, 0, 1, 0].into_iter();
    disk.crash(&mut |_| choices.next().expect("four choices"));
    assert_eq!(read(&disk, "a"), [[1; 512], [1; 512], [2; 512]].concat());
    assert_eq!(disk.used_bytes(), 1536);
    assert!(file.write_at(b"late", 0).is_err(), "a file opened before the crash must fail");
}

#[test]
fn a_failed_sync_is_never_made_good() {
    let disk = MemoryDisk::new();
    let file = create_durable(&disk, "a", b"old");
    file.write_at(b"new", 0).expect("write succeeds");
    disk.fail_nth(Op::Sync, 1);
    file.sync().expect_err("an injected failure");
    file.sync().expect("a later sync reports success");
    assert_eq!(read(&disk, "a"), b"new");
    disk.crash(&mut |n| n - 1);
    assert_eq!(read(&disk, "a"), b"old");
}

#[test]
fn failures_come_once_and_in_their_turn() {
    let disk = MemoryDisk::new();
    disk.fail_nth(Op::Write, 2);
    let file = create(&disk, "a", b"1234");
    file.write_at(b"5678", 4).expect_err("the second write fails");
    assert_eq!(read(&disk, "a"), b"123456");
    file.write_at(b"5678", 4).expect("the third write succeeds");
    for (op, outcome) in [
        (Op::Create, (|disk| disk.create("b").map(drop)) as fn(&MemoryDisk) -> io::Result<()>),
        (Op::Rename, |disk| disk.rename("a", "a")),
        (Op::Remove, |disk| disk.remove("a")),
        (Op::SyncNames, |disk| disk.sync_names()),
        (Op::Read, |disk| disk.open("a")?.read_at(&mut [0], 0).map(drop)),
    ] {
        disk.fail_nth(op, 1);
        outcome(&disk).expect_err("an injected failure");
    }
    assert_eq!(disk.list().expect("list succeeds"), ["a"]);
}

#[test]
fn names_that_a_failed_sync_lost_are_not_made_good() {
    let disk = MemoryDisk::new();
    create(&disk, "a", b"1234");
    disk.fail_nth(Op::SyncNames, 1);
    for _ in 0..2 {
        disk.sync_names().expect_err("an injected failure, and all later calls");
    }
    assert!(disk.are_names_lost());
    disk.crash(&mut |_| 0);
    assert!(!disk.are_names_lost() && disk.list().expect("list succeeds").is_empty());
    disk.sync_names().expect("sync_names succeeds after a restart");
}

#[test]
fn a_full_disk_takes_what_fits_and_frees_what_is_removed() {
    let disk = MemoryDisk::new();
    disk.set_capacity(Some(10));
    let file = create_durable(&disk, "a", b"12345678");
    let full = file.write_at(b"abcd", 7).expect_err("11 bytes do not fit");
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!((read(&disk, "a"), disk.free_bytes()), (b"1234567abc".to_vec(), Some(0)));
    file.write_at(b"xyz", 0).expect("overwriting needs no space");
    disk.remove("a").expect("remove succeeds");
    assert_eq!(disk.free_bytes(), Some(10));
    disk.crash(&mut |_| 0);
    assert_eq!(disk.free_bytes(), Some(2), "the removal and two bytes were not synced");
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
