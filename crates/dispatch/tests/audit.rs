//! The audit log: one entry per change, in the group of the change.

mod world;

use klambda_core::subscription::Document;
use klambda_dispatch::audit::{Audited, Entry};
use klambda_dispatch::documents::{Expected, Write};
use klambda_dispatch::operate::Leftover;
use klambda_dispatch::{Config, Engine, Token};
use serde_json::json;
use world::{World, ordered};

fn entry(verb: &str, name: &str) -> Entry {
    Entry {
        who: "token/ci".into(),
        verb: verb.into(),
        kind: "subscription".into(),
        namespace: Some("shop".into()),
        name: name.into(),
        from: "127.0.0.1".into(),
    }
}

fn document(name: &str) -> Document {
    Document::parse(&ordered(name, &json!({}))).expect("a valid document")
}

fn all(engine: &mut Engine) -> Vec<Audited> {
    engine.audit_page(None, 1000, |_| true).expect("read").0
}

/// Verb and name of each entry, newest first.
fn told(engine: &mut Engine) -> Vec<String> {
    all(engine).iter().map(|audited| format!("{} {}", audited.entry.verb, audited.entry.name)).collect()
}

#[test]
fn each_change_leaves_one_entry_and_what_changes_nothing_none() {
    let mut world = World::new(1);
    let engine = &mut world.engine;
    let put = |engine: &mut Engine| engine.put_subscription(document("a"), false).is_ok();
    assert_eq!(engine.audited(&entry("put", "a"), put), (true, true));
    assert_eq!(engine.audited(&entry("put", "a"), put), (true, false), "nothing changes");
    let pause = |engine: &mut Engine| engine.pause_subscription("a", true).is_ok();
    assert_eq!(engine.audited(&entry("pause", "a"), pause), (true, true));
    let refused = |engine: &mut Engine| engine.pause_subscription("b", true).is_ok();
    assert_eq!(engine.audited(&entry("pause", "b"), refused), (false, false));
    let write = |engine: &mut Engine| {
        let write = Write {
            kind: "function".into(),
            key: "f".into(),
            content: Some(b"{}".to_vec()),
            expected: Expected::Absent,
        };
        engine.put_documents(&[write], &[]).is_ok()
    };
    assert_eq!(engine.audited(&entry("create", "f"), write), (true, true));
    assert_eq!(engine.audited(&entry("create", "f"), write), (false, false));
    let delete = |engine: &mut Engine| engine.delete_subscription("a", Leftover::Discard).is_ok();
    assert_eq!(engine.audited(&entry("delete", "a"), delete), (true, true));
    // Changes without a user are not in the audit log.
    engine.put_subscription(document("own"), false).expect("put");
    let expected = ["delete a", "create f", "pause a", "put a"];
    assert_eq!(told(engine), expected);
    let newest = all(engine).remove(0);
    assert_eq!((newest.number, newest.time, newest.entry), (4, world.now, entry("delete", "a")));
    world.engine.when_durable(Token(0));
    world.settle();
    world.restart(&mut |_| 0);
    assert_eq!(told(&mut world.engine), expected);
    world.must_be_sound();
}

/// Also if the record of the entry fills a write and the change alone would begin another one.
#[test]
fn a_power_cut_leaves_the_change_and_its_entry_or_neither() {
    const WRITE_BYTES: usize = 64 << 10;
    const SECTOR: usize = 512;
    let (mut both, mut neither) = (0, 0);
    for filler in (WRITE_BYTES - 500..WRITE_BYTES - 200).step_by(20) {
        for cut in WRITE_BYTES / SECTOR..WRITE_BYTES / SECTOR + 8 {
            let mut world = World::new(filler as u64);
            world.disk.set_sector_bytes(SECTOR);
            let put = |name: &'static str| {
                move |engine: &mut Engine| engine.put_subscription(document(name), false)
            };
            world.engine.audited(&entry("put", "a"), put("a")).0.expect("put");
            world.engine.when_durable(Token(0));
            world.settle();
            let content = Some("f".repeat(filler).into());
            let (kind, key) = ("function".to_owned(), "full".to_owned());
            let full = Write { kind, key, content, expected: Expected::Any };
            world.engine.put_documents(&[full], &[]).expect("written");
            world.engine.audited(&entry("put", "b"), put("b")).0.expect("put");
            world.engine.when_durable(Token(0));
            world.engine.flush();
            let mut sectors = cut;
            world.restart(&mut |n| {
                let is_kept = sectors > 0;
                sectors = sectors.saturating_sub(1);
                if is_kept { n.saturating_sub(1) } else { 0 }
            });
            let is_there = world.engine.subscription_id("b").is_ok();
            let expected: &[&str] = if is_there { &["put b", "put a"] } else { &["put a"] };
            assert_eq!(told(&mut world.engine), expected, "{filler} bytes before it, {cut} sectors kept");
            both += u32::from(is_there);
            neither += u32::from(!is_there);
            world.must_be_sound();
        }
    }
    assert!(both > 10 && neither > 10, "{both} and {neither}");
}

#[test]
fn entries_are_read_in_pages_newest_first() {
    let mut world = World::new(3);
    for n in 0..2500 {
        let kind = if n % 500 == 0 { "rare" } else { "common" };
        let noted = Entry { kind: kind.into(), ..entry("put", &n.to_string()) };
        let pause = |engine: &mut Engine| engine.put_documents(&[note(n)], &[]).expect("written");
        world.engine.audited(&noted, pause);
        if n % 100 == 0 {
            world.engine.when_durable(Token(0));
            world.settle();
        }
    }
    let (mut before, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let (page, next) =
            world.engine.audit_page(before, 2, |audited| audited.entry.kind == "rare").expect("read");
        found.extend(page.into_iter().map(|audited| audited.entry.name));
        pages += 1;
        before = next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(found, ["2000", "1500", "1000", "500", "0"]);
    assert!(pages <= 6, "{pages}");
    let (page, next) = world.engine.audit_page(Some(3), 10, |_| true).expect("read");
    assert_eq!((page.len(), next), (2, None));
}

fn note(n: u32) -> Write {
    let content = Some(n.to_string().into_bytes());
    Write { kind: "function".into(), key: "n".into(), content, expected: Expected::Any }
}

#[test]
fn the_oldest_go_when_they_are_too_many_or_too_old() {
    let day = 24 * 3_600_000;
    let config = Config { audit_entries_max: 300, audit_age_ms: 2 * day, ..world::config() };
    let mut world = World::with(4, config);
    for n in 0..1000 {
        let change = |engine: &mut Engine| engine.put_documents(&[note(n)], &[]).expect("written");
        world.engine.audited(&entry("put", &n.to_string()), change);
        if n % 50 == 0 {
            world.engine.when_durable(Token(0));
            world.settle();
        }
    }
    for _ in 0..5 {
        world.pass(61_000);
    }
    let left = all(&mut world.engine);
    assert_eq!((left.len(), left[0].number, left[299].number), (300, 1000, 701));
    world.restart(&mut |_| 0);
    assert_eq!(all(&mut world.engine), left, "the numbers are the same after a restart");
    for _ in 0..6 {
        world.pass(day / 2);
    }
    assert!(all(&mut world.engine).is_empty());
    let change = |engine: &mut Engine| engine.put_documents(&[note(0)], &[]).expect("written");
    world.engine.audited(&entry("put", "after"), change);
    assert_eq!(told(&mut world.engine), ["put after"]);
    world.must_be_sound();
}

/// Writes entries, each with a change of its own.
fn note_all(world: &mut World, entries: impl IntoIterator<Item = Entry>) {
    for (n, noted) in entries.into_iter().enumerate() {
        let change = |engine: &mut Engine| engine.put_documents(&[note(n as u32)], &[]).expect("written");
        world.engine.audited(&noted, change);
        if n % 20 == 0 {
            world.engine.when_durable(Token(0));
            world.settle();
        }
    }
}

/// The names of a namespace's entries, oldest first, read in pages.
fn names(engine: &mut Engine, namespace: Option<&str>) -> Vec<String> {
    let (mut names, mut before) = (Vec::new(), None);
    loop {
        let is_wanted = |audited: &Audited| audited.entry.namespace.as_deref() == namespace;
        let (page, next) = engine.audit_page(before, 100, is_wanted).expect("read");
        names.extend(page.into_iter().map(|audited| audited.entry.name));
        before = next;
        if next.is_none() {
            names.reverse();
            return names;
        }
    }
}

#[test]
fn a_busy_namespace_removes_only_its_own_entries() {
    let config = Config { audit_entries_max: 300, ..world::config() };
    let mut world = World::with(6, config);
    let of = |namespace: Option<&str>, name: String| Entry {
        namespace: namespace.map(str::to_owned),
        ..entry("put", &name)
    };
    let numbered = |namespace: &'static str, from: u32, to: u32| {
        (from..to).map(move |n| of(Some(namespace), n.to_string()))
    };
    note_all(&mut world, numbered("quiet", 0, 40));
    note_all(&mut world, (0..10).map(|n| of(None, n.to_string())));
    note_all(&mut world, numbered("busy", 0, 2000));
    let due = |world: &mut World| (0..100).for_each(|_| world.pass(1_000));
    due(&mut world);
    let last = |from: u32, to: u32| (from..to).map(|n| n.to_string()).collect::<Vec<_>>();
    let kept = |world: &mut World| {
        [Some("quiet"), None, Some("busy")].map(|namespace| names(&mut world.engine, namespace))
    };
    assert_eq!(kept(&mut world), [last(0, 40), last(0, 10), last(1750, 2000)]);
    // After a restart, the entries are counted again.
    world.restart(&mut |_| 0);
    world.pass(1_000);
    note_all(&mut world, numbered("busy", 2000, 2100));
    note_all(&mut world, numbered("quiet", 40, 400));
    due(&mut world);
    assert_eq!(kept(&mut world), [last(255, 400), last(0, 10), last(1955, 2100)], "(300 - 10) / 2 each");
    world.must_be_sound();
}

#[test]
fn long_texts_are_cut_and_lines_are_one() {
    let mut world = World::new(5);
    let noted = Entry { name: "\n\"ü".repeat(2000), who: "\u{1}".repeat(9000), ..entry("put", "") };
    let change = |engine: &mut Engine| engine.put_documents(&[note(1)], &[]).expect("written");
    world.engine.audited(&noted, change);
    let entry = all(&mut world.engine).remove(0).entry;
    assert!(entry.name.len() <= 512 && entry.name.starts_with(" \"ü"), "{entry:?}");
    assert_eq!(entry.who, " ".repeat(512));
}
