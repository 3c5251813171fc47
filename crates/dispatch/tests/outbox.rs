//! Documents and their events: one atomic step in every case.

mod world;

use klambda_core::event::{Data, Event, Form};
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_dispatch::check::check;
use klambda_dispatch::documents::{DocumentEvent, Error, Expected, Write};
use klambda_dispatch::{Engine, Sender, Token};
use klambda_store::faulty_disk::Op;
use klambda_store::record::is_emitted;
use serde_json::json;
use std::sync::Arc;
use world::{Rng, World};

fn put(key: &str, content: &str, expected: Expected) -> Write {
    Write { kind: "function".into(), key: key.into(), content: Some(content.into()), expected }
}

fn remove(key: &str, version: u64) -> Write {
    Write { kind: "function".into(), key: key.into(), content: None, expected: Expected::Version(version) }
}

fn told(id: &str) -> DocumentEvent {
    let (source, kind) = ("/platform".into(), "lambda.function.ready".into());
    let event = Event { id: id.into(), source, kind, attributes: Vec::new(), data: None };
    DocumentEvent { namespace: "default".into(), event }
}

fn watcher() -> serde_json::Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "watcher"},
        "spec": {"target": {"url": "http://127.0.0.1:9000/"}, "ordering": "ordered"},
    })
}

fn content(engine: &Engine, key: &str) -> Option<String> {
    let found = engine.document("function", key).expect("read");
    found.map(|document| String::from_utf8(document.content).expect("text"))
}

fn durable(world: &mut World) {
    world.engine.when_durable(Token(0));
    world.settle();
}

/// The ids of all events delivered and acknowledged from here on.
fn deliver(world: &mut World) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        world.pass(10);
        let open = world.take_open();
        if open.is_empty() {
            return ids;
        }
        for delivery in open {
            assert!(is_emitted(&delivery.record));
            let view = EventView::decode(&delivery.record[delivery.event.clone()]).expect("an event");
            ids.push(view.id().to_owned());
            world.engine.outcome(delivery.ticket, world::ok());
        }
    }
}

#[test]
fn documents_are_written_listed_and_removed_by_version() {
    let mut world = World::new(1);
    let engine = &mut world.engine;
    let first = engine.put_documents(&[put("a", "1", Expected::Absent)], &[]).expect("written");
    let second = engine.put_documents(&[put("b", "2", Expected::Any)], &[]).expect("written");
    assert!(second > first);
    for stale in
        [put("a", "x", Expected::Absent), put("a", "x", Expected::Version(second)), remove("a", second)]
    {
        let refused = engine.put_documents(&[put("c", "3", Expected::Any), stale], &[told("never")]);
        assert!(matches!(refused, Err(Error::Conflict { found: Some(found), .. }) if found == first));
    }
    assert_eq!(content(engine, "c"), None);
    let third = engine.put_documents(&[put("a", "1b", Expected::Version(first))], &[]).expect("written");
    durable(&mut world);
    world.restart(&mut |_| 0);
    let list = |world: &World, after: Option<&str>, limit: usize| -> Vec<(String, u64)> {
        let found = world.engine.documents("function", after, limit).expect("read");
        found.into_iter().map(|document| (document.key, document.version)).collect()
    };
    assert_eq!(list(&world, None, 10), [("a".into(), third), ("b".into(), second)]);
    assert_eq!(list(&world, None, 1), [("a".into(), third)]);
    assert_eq!(list(&world, Some("a"), 10), [("b".into(), second)]);
    assert!(world.engine.documents("functio", None, 10).expect("read").is_empty());

    world.engine.put_documents(&[remove("b", second)], &[]).expect("removed");
    world.engine.request_checkpoint();
    while world.engine.is_checkpointing() {
        world.pass(10);
    }
    world.restart(&mut |_| 0);
    assert_eq!(list(&world, None, 10), [("a".into(), third)]);
    world.must_be_sound();
}

#[test]
fn exceeded_limits_are_reported() {
    let mut world = World::new(1);
    let long = "x".repeat(1025);
    for bad in [
        put("", "1", Expected::Any),
        put(&long, "1", Expected::Any),
        Write { kind: "a\0b".into(), ..put("a", "", Expected::Any) },
    ] {
        assert!(matches!(world.engine.put_documents(&[bad], &[]), Err(Error::Invalid(_))));
    }
    // More than a segment of this world can hold in one step.
    let large = put("a", &"x".repeat(100 << 10), Expected::Any);
    assert!(matches!(world.engine.put_documents(&[large], &[]), Err(Error::Invalid(_))));
}

#[test]
fn emitted_events_are_marked_and_delivered_once() {
    let mut world = World::new(3);
    world.put(watcher());
    world.engine.put_documents(&[put("a", "1", Expected::Any)], &[told("t1"), told("t2")]).expect("written");
    world.engine.put_documents(&[put("a", "2", Expected::Any)], &[told("t2"), told("t3")]).expect("written");
    assert_eq!(deliver(&mut world), ["t1", "t2", "t3"]);
    // An external event with the same id is a duplicate. Another external event is not marked as emitted, whatever it
    // claims.
    world.engine.accept(Token(900), &Sender::default(), vec![Ok(told("t1").event), Ok(told("forged").event)]);
    world.settle();
    let forged = world.take_open();
    assert_eq!(forged.len(), 1);
    assert!(!forged[0].is_emitted());
    world.restart(&mut |_| 0);
    world.engine.put_documents(&[], &[told("t1"), told("t3")]).expect("nothing new");
    world.pass(10);
    assert_eq!(world.must_be_sound().events, 4, "three emitted events and one forged");
}

#[test]
fn a_power_cut_leaves_both_or_neither() {
    let (mut both, mut neither) = (0, 0);
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut world = World::new(seed);
        world.disk.set_sector_bytes(1 + rng.below(64) as usize);
        world.put(watcher());
        world.engine.put_documents(&[put("a", "old", Expected::Any)], &[told("t0")]).expect("written");
        durable(&mut world);
        if rng.below(2) == 0 {
            // Enough data before it that the next record would begin another write.
            world.disk.set_sector_bytes(512);
            let full = put("full", &"f".repeat(62_000), Expected::Any);
            world.engine.put_documents(&[full], &[]).expect("written");
        }
        let large = "n".repeat(1 + rng.below(12_000) as usize);
        let writes = [put("a", &large, Expected::Any), put("b", "new", Expected::Absent)];
        let mut long = told("t2");
        long.event.data = Some(Data { bytes: "d".repeat(8000).into(), form: Form::Text });
        world.engine.put_documents(&writes, &[told("t1"), long]).expect("written");
        world.engine.when_durable(Token(0));
        world.engine.flush();
        if rng.below(4) == 0
            && let Some(job) = world.engine.sync_job()
        {
            let _ = job.run();
        }
        // Keeps all, the beginning, or any part of the unsynced data.
        let (kept, mut sectors) = (rng.below(3), 120 + rng.below(40));
        world.restart(&mut |n| match kept {
            0 => n.saturating_sub(1),
            1 if sectors == 0 => 0,
            1 => {
                sectors -= 1;
                n.saturating_sub(1)
            }
            _ => rng.below(n.max(1)),
        });
        let is_new = content(&world.engine, "b").is_some();
        assert_eq!(
            content(&world.engine, "a"),
            Some(if is_new { large } else { "old".into() }),
            "seed {seed}"
        );
        let expected: &[&str] = if is_new { &["t0", "t1", "t2"] } else { &["t0"] };
        assert_eq!(deliver(&mut world), expected, "seed {seed}");
        both += u32::from(is_new);
        neither += u32::from(!is_new);
        world.must_be_sound();
    }
    assert!(both > 20 && neither > 20, "{both} and {neither}");
}

#[test]
fn a_write_or_sync_that_fails_leaves_both_or_neither() {
    for op in [Op::Write, Op::Sync] {
        for n in 1..=4 {
            let mut world = World::new(n);
            world.put(watcher());
            world.disk.fail_nth(op, n);
            for round in 0..4 {
                let events = [told(&format!("t{round}"))];
                let done =
                    world.engine.put_documents(&[put("a", &round.to_string(), Expected::Any)], &events);
                assert!(done.is_ok() || world.engine.failure().is_some());
                world.engine.when_durable(Token(0));
                world.engine.flush();
                world.engine.run_sync();
            }
            let mut rng = Rng(n);
            world.restart(&mut |n| rng.below(n.max(1)));
            let rounds =
                content(&world.engine, "a").map_or(0, |round| round.parse::<usize>().expect("a number") + 1);
            assert_eq!(deliver(&mut world).len(), rounds, "{op:?} {n}");
            world.must_be_sound();
        }
    }
}

/// Documents outlive their segments, and undelivered events keep their mark.
#[test]
fn retention_keeps_documents_and_marks() {
    let mut world = World::new(5);
    let mut document = watcher();
    document["spec"]["retry"] = json!({"attempts": 1});
    world.put(document);
    world.engine.put_documents(&[put("a", "kept", Expected::Any)], &[told("t1")]).expect("written");
    world.pass(10);
    for delivery in world.take_open() {
        world.engine.outcome(delivery.ticket, CallOutcome::Timeout);
    }
    world.pass(10);
    let version = world.engine.document("function", "a").expect("read").expect("exists").version;
    for n in 0..300 {
        world.engine.put_documents(&[put("b", &"x".repeat(2000), Expected::Any)], &[]).expect("written");
        world.pass(if n % 100 == 99 { 8 * 24 * 3_600_000 / 4 } else { 10 });
    }
    for _ in 0..200 {
        world.pass(3_600_000);
    }
    let oldest = world.engine.reader().oldest().expect("a segment").base;
    assert!(version < oldest.0, "the segment of the document was deleted");
    world.restart(&mut |_| 0);
    assert_eq!(content(&world.engine, "a"), Some("kept".into()));
    world.must_be_sound();
}

#[test]
fn a_backup_holds_documents() {
    let mut world = World::new(6);
    world.engine.put_documents(&[put("a", "1", Expected::Any)], &[told("t1")]).expect("written");
    durable(&mut world);
    let mut archive = Vec::new();
    world.engine.snapshot().write_tar(&mut archive).expect("written");
    let folder = tempfile::tempdir().expect("a folder");
    tar::Archive::new(archive.as_slice()).unpack(folder.path()).expect("unpacked");
    let disk = klambda_store::real_disk::RealDisk::open(folder.path()).expect("opens");
    let (engine, _) = Engine::open(Arc::new(disk), world::config(), world.now, [9; 16]).expect("restores");
    assert_eq!(content(&engine, "a"), Some("1".into()));
}

#[test]
fn damage_at_the_end_of_a_backup_is_no_unfinished_write() {
    let mut world = World::new(6);
    for id in ["first", "last"] {
        world.engine.put_documents(&[put(id, "1", Expected::Any)], &[told(id)]).expect("written");
        durable(&mut world);
    }
    let mut archive = Vec::new();
    world.engine.snapshot().write_tar(&mut archive).expect("written");
    let folder = tempfile::tempdir().expect("a folder");
    tar::Archive::new(archive.as_slice()).unpack(folder.path()).expect("unpacked");
    let files = std::fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").path());
    let logs = files.filter(|path| path.to_string_lossy().contains("/log-"));
    let log = logs.max().expect("a segment");
    let mut bytes = std::fs::read(&log).expect("read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("something written");
    bytes[end] ^= 1;
    std::fs::write(&log, bytes).expect("written");
    let disk = Arc::new(klambda_store::real_disk::RealDisk::open(folder.path()).expect("opens"));
    assert!(!check(disk.clone(), &mut |_| {}).expect("checked").is_ok());
    assert!(
        Engine::open(disk, world::config(), world.now, [9; 16]).is_err(),
        "nothing is dropped in silence"
    );
}

#[test]
fn a_reader_that_is_behind_does_not_stop_the_platform() {
    let mut world = World::new(7);
    let mut document = watcher();
    document["spec"]["backlog"] = json!({"maxEvents": 2, "onFull": "reject"});
    document["spec"]["paused"] = true.into();
    world.put(document);
    for n in 0..10 {
        let events = [told(&format!("t{n}"))];
        world.engine.put_documents(&[put("a", "1", Expected::Any)], &events).expect("written");
        world.settle();
    }
    assert_eq!(world.engine.waiting(), 10);
    world.engine.accept(Token(900), &Sender::default(), vec![Ok(told("outside").event)]);
    world.engine.flush();
    world.settle();
    assert_eq!(world.engine.waiting(), 10, "other events are rejected");
}
