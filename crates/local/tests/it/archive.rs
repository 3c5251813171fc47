//! Malicious archives. Each is rejected with a reason, and nothing is written outside the folder or left behind.

use klambda_local::source::{Error, Limits, archive};
use std::fs;
use std::io::{Cursor, Write};
use tar::{EntryType, Header};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

enum Entry<'a> {
    File(&'a str, &'a [u8]),
    Folder(&'a str),
    Link(&'a str, &'a str),
    HardLink(&'a str, &'a str),
    Kind(&'a str, EntryType),
}

/// Written field by field, because the library would refuse to create most of these.
fn header(path: &str, link: &str, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_ustar();
    let bytes = header.as_mut_bytes();
    bytes[..path.len()].copy_from_slice(path.as_bytes());
    bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_size(size);
    header.set_cksum();
    header
}

fn tarball(entries: &[Entry]) -> Vec<u8> {
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(gzip);
    for entry in entries {
        let (header, content) = match entry {
            Entry::File(path, content) => {
                (header(path, "", EntryType::Regular, content.len() as u64), *content)
            }
            Entry::Folder(path) => (header(path, "", EntryType::Directory, 0), &[][..]),
            Entry::Link(path, target) => (header(path, target, EntryType::Symlink, 0), &[][..]),
            Entry::HardLink(path, target) => (header(path, target, EntryType::Link, 0), &[][..]),
            Entry::Kind(path, kind) => (header(path, "", *kind, 0), &[][..]),
        };
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn zipped(entries: &[Entry]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().unix_permissions(0o6755);
    for entry in entries {
        match entry {
            Entry::File(path, content) => {
                writer.start_file(*path, options).unwrap();
                writer.write_all(content).unwrap();
            }
            Entry::Folder(path) => writer.add_directory(*path, options).unwrap(),
            Entry::Link(path, target) => writer.add_symlink(*path, *target, options).unwrap(),
            Entry::HardLink(..) | Entry::Kind(..) => unreachable!("zip has no such entries"),
        }
    }
    writer.finish().unwrap().into_inner()
}

/// Unpacks in a folder next to a secret file.
fn unpack(bytes: &[u8], limits: &Limits) -> (Result<(), Error>, TempDir) {
    let around = TempDir::new().unwrap();
    fs::write(around.path().join("archive"), bytes).unwrap();
    fs::write(around.path().join("secret"), "secret").unwrap();
    let into = around.path().join("into");
    fs::create_dir(&into).unwrap();
    let result = archive::unpack(&around.path().join("archive"), &into, limits).map(drop);
    let mut names: Vec<_> =
        fs::read_dir(around.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["archive", "into", "secret"], "something was written outside");
    assert_eq!(fs::read_to_string(around.path().join("secret")).unwrap(), "secret");
    (result, around)
}

fn refused(bytes: &[u8], limits: &Limits) -> String {
    unpack(bytes, limits).0.expect_err("the archive must be rejected").to_string()
}

#[test]
fn good_archives_come_out_as_they_went_in() {
    use std::os::unix::fs::PermissionsExt;
    let entries = [
        Entry::Folder("./"),
        Entry::Folder("lib/"),
        Entry::File("lib/a.js", b"a"),
        Entry::File("deep/er/b.js", b"b"),
        Entry::Link("lib/b.js", "../deep/er/b.js"),
    ];
    let zip = zipped(&entries[1..]);
    for bytes in [tarball(&entries), zip] {
        let (result, around) = unpack(&bytes, &Limits::default());
        result.unwrap();
        let into = around.path().join("into");
        assert_eq!(fs::read_to_string(into.join("lib/a.js")).unwrap(), "a");
        assert_eq!(fs::read_to_string(into.join("lib/b.js")).unwrap(), "b");
        let mode = fs::metadata(into.join("lib/a.js")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "only the executable bit is kept");
    }
}

#[test]
fn long_names_are_read_and_too_long_ones_refused() {
    let path = format!("{}/index.js", "folder".repeat(30));
    let gzip = |builder: tar::Builder<flate2::write::GzEncoder<Vec<u8>>>| {
        builder.into_inner().unwrap().finish().unwrap()
    };
    let builder =
        || tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
    let mut gnu = builder();
    let mut long = Header::new_gnu();
    long.set_size(1);
    long.set_mode(0o644);
    gnu.append_data(&mut long, &path, &b"x"[..]).unwrap();
    let mut pax = builder();
    pax.append_pax_extensions([("path", path.as_bytes())]).unwrap();
    pax.append(&header("short", "", EntryType::Regular, 1), &b"y"[..]).unwrap();
    for (bytes, content) in [(gzip(gnu), "x"), (gzip(pax), "y")] {
        let (result, around) = unpack(&bytes, &Limits::default());
        result.unwrap();
        assert_eq!(fs::read_to_string(around.path().join("into").join(&path)).unwrap(), content);
    }
    let mut bomb = builder();
    let name = vec![b'a'; 8 << 20];
    bomb.append(&header("x", "", EntryType::GNULongName, name.len() as u64), &name[..]).unwrap();
    assert!(refused(&gzip(bomb), &Limits::default()).contains("a name of more than"));
    let mut escape = builder();
    escape.append_pax_extensions([("path", &b"../out"[..])]).unwrap();
    escape.append(&header("in", "", EntryType::Regular, 1), &b"y"[..]).unwrap();
    assert!(refused(&gzip(escape), &Limits::default()).contains("leaves the folder"));
    let mut sizes = builder();
    sizes.append_pax_extensions([("size", &b"0"[..])]).unwrap();
    sizes.append(&header("in", "", EntryType::Regular, 1), &b"y"[..]).unwrap();
    assert!(refused(&gzip(sizes), &Limits::default()).contains("two sizes"));
}

#[test]
fn paths_and_links_that_lead_out_are_refused() {
    let limits = Limits::default();
    for path in ["../out", "/etc/out", "a/../../out", "a\\..\\..\\out", ".."] {
        for bytes in [tarball(&[Entry::File(path, b"x")]), zipped(&[Entry::File(path, b"x")])] {
            let said = refused(&bytes, &limits);
            assert!(said.contains("leaves the folder"), "{path}: {said}");
        }
    }
    for target in ["../secret", "/etc/passwd", "a/../../secret", "x/..", "../into/../secret"] {
        for bytes in [tarball(&[Entry::Link("l", target)]), zipped(&[Entry::Link("l", target)])] {
            assert!(refused(&bytes, &limits).contains("points out of the folder"), "{target}");
        }
    }
    // Through a link that stays inside: `..` then starts from another folder.
    let chain = [Entry::Folder("x/y"), Entry::Link("x/up", ".."), Entry::Link("x/y/l", "../up/../secret")];
    let through = [Entry::Folder("a"), Entry::Link("l", "a"), Entry::File("l/b", b"x")];
    for (entries, words) in [(&chain, "points out"), (&through, "goes through a link")] {
        for bytes in [tarball(entries), zipped(entries)] {
            assert!(refused(&bytes, &limits).contains(words));
        }
    }
    for target in ["../secret", "/etc/passwd", "missing"] {
        refused(&tarball(&[Entry::HardLink("l", target)]), &limits);
    }
    let linked = [Entry::Link("l", "f"), Entry::File("f", b"x"), Entry::HardLink("h", "l")];
    assert!(refused(&tarball(&linked), &limits).contains("not a file in the archive"));
    let inside = [Entry::File("f", b"x"), Entry::HardLink("h", "f")];
    unpack(&tarball(&inside), &limits).0.unwrap();
}

#[test]
fn devices_pipes_doubles_and_strangers_are_refused() {
    let limits = Limits::default();
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo, EntryType::GNUSparse] {
        refused(&tarball(&[Entry::Kind("d", kind)]), &limits);
    }
    let twice = [Entry::File("f", b"1"), Entry::File("f", b"2")];
    assert!(refused(&tarball(&twice), &limits).contains("twice"));
    let link_then_file = [Entry::Link("f", "g"), Entry::File("f", b"2")];
    assert!(refused(&tarball(&link_then_file), &limits).contains("twice"));
    for bytes in [&b""[..], b"PK", b"PK\x03\x04rubbish", b"\x1f\x8brubbish", b"#!/bin/sh\n"] {
        assert!(matches!(unpack(bytes, &limits).0, Err(Error::BadArchive(_))), "{bytes:?}");
    }
}

#[test]
fn bombs_are_refused_before_the_disk_is_full() {
    let limits = Limits { ratio: 20, ..Limits::default() };
    let zeros = vec![0; 17 << 20];
    for bytes in [tarball(&[Entry::File("zeros", &zeros)]), zipped(&[Entry::File("zeros", &zeros)])] {
        assert!(bytes.len() < 1 << 20);
        let said = refused(&bytes, &limits);
        assert!(said.contains("20 times its size"), "{said}");
    }
    let limits = Limits { unpacked_bytes: 100, files: 3, ..Limits::default() };
    let many: Vec<String> = (0..4).map(|number| number.to_string()).collect();
    let many: Vec<Entry> = many.iter().map(|name| Entry::File(name, b"")).collect();
    for bytes in [tarball(&many), zipped(&many)] {
        assert!(refused(&bytes, &limits).contains("more than 3 files"));
    }
    let large = [Entry::File("a", &[7; 60]), Entry::File("b", &[7; 60])];
    for bytes in [tarball(&large), zipped(&large)] {
        assert!(refused(&bytes, &limits).contains("more than 100 bytes unpacked"));
    }
    let limits = Limits { transfer_bytes: 10, ..Limits::default() };
    assert!(matches!(unpack(&zipped(&large), &limits).0, Err(Error::TooLarge(_))));
    // The number of entries is wrong, or stored in another place.
    for claimed in [10..12, 12..16, 16..20] {
        for comment in [0, u16::MAX] {
            let mut claims = zipped(&large);
            let end = claims.len() - 22;
            claims[end + claimed.start..end + claimed.end].fill(0xff);
            claims[end + 20..].copy_from_slice(&comment.to_le_bytes());
            // The extra bytes that readers tolerate after the longest comment.
            claims.resize(claims.len() + usize::from(comment) + if comment == 0 { 0 } else { 8 }, 0);
            assert!(matches!(unpack(&claims, &Limits::default()).0, Err(Error::TooLarge(_))), "{claimed:?}");
        }
    }
}

/// Skipped entries are inflated too, so they must count.
#[test]
fn nothing_is_inflated_without_being_counted() {
    let packed = |kind, size: usize, count: usize| {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut builder = tar::Builder::new(gzip);
        for number in 0..count {
            let header = header(&number.to_string(), "0", kind, size as u64);
            builder.append(&header, &vec![b'x'; size][..]).unwrap();
        }
        builder.append(&header("end", "", EntryType::Regular, 1), &b"y"[..]).unwrap();
        builder.into_inner().unwrap().finish().unwrap()
    };
    for kind in [EntryType::Directory, EntryType::Symlink, EntryType::Link] {
        let said = refused(&packed(kind, 1 << 20, 1), &Limits::default());
        assert!(said.contains("has content"), "{said}");
    }
    let limits = Limits { unpacked_bytes: 100, ..Limits::default() };
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XGlobalHeader] {
        let said = refused(&packed(kind, 60, 2), &limits);
        assert!(said.contains("more than 100 bytes unpacked"), "{said}");
    }
}

/// For any damaged bytes: a result, no panic, nothing written outside.
#[test]
fn damaged_archives_never_panic() {
    let entries = [Entry::Folder("d"), Entry::File("d/f", b"some text"), Entry::Link("l", "d/f")];
    let mut seed = 0x9e37_79b9_u64;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let plain_tar = {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&tarball(&entries)[..]), &mut text)
            .unwrap();
        text
    };
    for round in 0..600 {
        let mut bytes = if round % 2 == 0 { plain_tar.clone() } else { zipped(&entries) };
        for _ in 0..=next() % 4 {
            let at = next() % bytes.len().min(2048);
            bytes[at] = next() as u8;
        }
        if round % 2 == 0 {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&bytes).unwrap();
            bytes = gzip.finish().unwrap();
        }
        let _ = unpack(&bytes, &Limits { unpacked_bytes: 1 << 20, ..Limits::default() });
    }
}
