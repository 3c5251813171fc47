//! `backup`: a consistent copy of a running server's data, as a tar file or as a data folder.

use super::Context;
use crate::args::Backup;
use crate::bench::interrupt;
use crate::exit::Usage;
use crate::output::bytes;
use crate::progress;
use crate::route::Route;
use anyhow::Context as _;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use ureq::http::Method;

pub fn run(context: &mut Context, args: &Backup) -> anyhow::Result<()> {
    let route = Route::new(&["backup"]).query_opt("withKey", args.with_key.then_some(true));
    if args.path == Path::new("-") {
        return to_stdout(context, &route);
    }
    let target = Target::of(&args.path)?;
    let partial = partial_path(&args.path)?;
    interrupt::listen()?;
    let stream = context.client.stream(Method::POST, &route, "application/x-tar")?;
    let progress = progress::copying();
    let written = write(target, progress.wrap_read(Interruptible(stream)), &partial);
    progress.finish_and_clear();
    if let Err(error) = written.and_then(|()| settle(&partial, &args.path)) {
        // An incomplete copy must not look like a backup.
        remove(&partial);
        interrupt::check()?;
        return Err(error).with_context(|| format!("backup to {}", args.path.display()));
    }
    writeln!(context.out, "{} written, {}", args.path.display(), bytes(progress.position()))?;
    Ok(())
}

/// Writes the tar file to stdout. If it is incomplete, only the exit code shows it.
fn to_stdout(context: &mut Context, route: &Route) -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        return Err(Usage("the backup is a tar file; redirect it, or name a file".to_owned()).into());
    }
    let mut stream = context.client.stream(Method::POST, route, "application/x-tar")?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer).map_err(cut_off)? {
            0 => break,
            read => context.out.write_all(&buffer[..read])?,
        }
    }
    Ok(context.out.flush()?)
}

/// Ends with an error after Ctrl-C, so that the incomplete copy is removed.
struct Interruptible<R>(R);

impl<R: Read> Read for Interruptible<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match interrupt::happened() {
            true => Err(io::Error::other("interrupted")),
            false => self.0.read(buf),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Archive,
    Folder,
}

impl Target {
    fn of(path: &Path) -> Result<Target, Usage> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.symlink_metadata().is_ok() {
            return Err(Usage::file(path, &"already exists"));
        }
        if name.ends_with(".tar") {
            return Ok(Target::Archive);
        }
        match name.rsplit_once(".tar.").is_some() || name.ends_with(".tgz") {
            true => Err(Usage::file(path, &"cannot write compressed files; use a name that ends in .tar")),
            false => Ok(Target::Folder),
        }
    }
}

fn write(target: Target, mut stream: impl Read, partial: &Path) -> anyhow::Result<()> {
    match target {
        Target::Archive => {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial)?;
            file.lock()?;
            io::copy(&mut stream, &mut file).map_err(cut_off)?;
            file.sync_all()?;
        }
        Target::Folder => {
            DirBuilder::new().mode(0o700).create(partial)?;
            let folder = File::open(partial)?;
            folder.lock()?;
            tar::Archive::new(&mut stream).unpack(partial).map_err(cut_off)?;
            // The archive ends before the response does. Reads the rest, so that an error in it is seen.
            io::copy(&mut stream, &mut io::sink()).map_err(cut_off)?;
            sync_tree(partial)?;
        }
    }
    Ok(())
}

/// As text, because an `io::Error` would look like a closed stdout.
fn cut_off(error: io::Error) -> anyhow::Error {
    anyhow::anyhow!("the copy is incomplete: {:#}", anyhow::Error::new(error))
}

fn settle(partial: &Path, path: &Path) -> anyhow::Result<()> {
    fs::rename(partial, path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(())
}

fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// The name of the copy until it is complete. A copy that an ended process left under this name is removed; a running
/// backup holds a lock on its copy.
fn partial_path(path: &Path) -> Result<PathBuf, Usage> {
    let name = path.file_name().ok_or_else(|| Usage::file(path, &"not a valid name for a backup"))?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = path.with_file_name(partial);
    if partial.symlink_metadata().is_err() {
        return Ok(partial);
    }
    let left = File::open(&partial).map_err(|error| Usage::file(&partial, &error))?;
    match left.try_lock() {
        Ok(()) => {
            eprintln!("{}: removing the incomplete copy of an earlier backup", partial.display());
            remove(&partial);
            Ok(partial)
        }
        Err(TryLockError::WouldBlock) => Err(Usage::file(&partial, &"another backup is writing this copy")),
        Err(TryLockError::Error(error)) => Err(Usage::file(&partial, &error)),
    }
}

fn remove(partial: &Path) {
    let removed = if partial.is_dir() { fs::remove_dir_all(partial) } else { fs::remove_file(partial) };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        eprintln!("{}: {error}", partial.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append_data(&mut header, "log/0001.seg", &b"hello"[..]).expect("appended");
        builder.into_inner().expect("built")
    }

    #[test]
    fn a_folder_is_unpacked_whole() {
        let home = tempfile::tempdir().expect("a folder");
        let (partial, path) = (home.path().join("copy.partial"), home.path().join("copy"));
        write(Target::Folder, &archive()[..], &partial).expect("written");
        settle(&partial, &path).expect("renamed");
        assert_eq!(fs::read(path.join("log/0001.seg")).expect("read"), b"hello");
        assert!(!partial.exists());
    }

    #[test]
    fn the_copy_of_an_ended_backup_is_replaced_and_that_of_a_running_one_is_not() {
        let home = tempfile::tempdir().expect("a folder");
        for name in ["copy", "copy.tar"] {
            let path = home.path().join(name);
            let partial = partial_path(&path).expect("a path");
            match name {
                "copy" => fs::create_dir(&partial).expect("created"),
                _ => fs::write(&partial, "half").expect("written"),
            }
            let running = File::open(&partial).expect("open");
            running.lock().expect("locked");
            assert!(partial_path(&path).expect_err("in use").to_string().contains("another backup"));
            drop(running);
            assert_eq!(partial_path(&path).expect("free"), partial);
            assert!(!partial.exists());
        }
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let home = tempfile::tempdir().expect("a folder");
        let cut = &archive()[..514];
        assert!(write(Target::Folder, cut, &home.path().join("copy.partial")).is_err());
    }

    #[test]
    fn an_incomplete_copy_names_its_cause() {
        let home = tempfile::tempdir().expect("a folder");
        struct Cut<'a>(&'a [u8]);
        impl Read for Cut<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                match self.0.read(buf)? {
                    0 => Err(io::ErrorKind::StorageFull.into()),
                    read => Ok(read),
                }
            }
        }
        let whole = archive();
        let broken = write(Target::Folder, Cut(&whole[..514]), &home.path().join("copy.partial"));
        let message = broken.expect_err("cut").to_string();
        assert!(message.contains("no storage space"), "{message}");
    }

    #[test]
    fn the_name_decides_between_archive_and_folder() {
        let home = tempfile::tempdir().expect("a folder");
        assert_eq!(Target::of(&home.path().join("b.tar")).expect("fine"), Target::Archive);
        assert_eq!(Target::of(&home.path().join("b")).expect("fine"), Target::Folder);
        assert!(Target::of(&home.path().join("b.tar.gz")).is_err());
        assert!(Target::of(home.path()).is_err());
    }
}
