//! A folder of this machine as a source. It is copied, so that later edits do not change a build.

use super::budget::{Budget, link_stays_inside};
use super::{Error, Fetched};
use rustix::fs::OFlags;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Not part of a source, and often large.
const SKIPPED: [&str; 3] = [".git", "node_modules", "__pycache__"];

pub fn copy(from: &Path, into: &Path, mut budget: Budget) -> Result<Fetched, Error> {
    match fs::metadata(from) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(Error::BadReference(format!("{} is not a folder", from.display()))),
        Err(error) => return Err(Error::NotFound(format!("{}: {error}", from.display()))),
    }
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let mut entries = fs::read_dir(from.join(&folder))?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                continue;
            }
            budget.entry()?;
            if kind.is_dir() {
                fs::create_dir(into.join(&path))?;
                folders.push(path);
            } else if kind.is_symlink() {
                link(&entry.path(), &path, into)?;
            } else if kind.is_file() {
                file(&entry.path(), &into.join(&path), &mut budget)?;
            } else {
                return Err(Error::Unsafe(format!("{} is not a file, folder or link", path.display())));
            }
        }
    }
    Ok(budget.fetched())
}

fn file(from: &Path, to: &Path, budget: &mut Budget) -> Result<(), Error> {
    // It was a plain file a moment ago. If it is a pipe by now, opening it must not block.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let mut reader = fs::OpenOptions::new().read(true).custom_flags(flags).open(from)?;
    if !reader.metadata()?.is_file() {
        return Err(Error::Unsafe(format!("{} is no longer a plain file", from.display())));
    }
    let permissions = reader.metadata()?.permissions();
    let mut writer = fs::File::create_new(to)?;
    budget.copy(&mut reader, &mut writer)?;
    writer.set_permissions(permissions)?;
    Ok(())
}

fn link(from: &Path, path: &Path, into: &Path) -> Result<(), Error> {
    let target = fs::read_link(from)?;
    if !link_stays_inside(path, &target) {
        let message = format!("link {} points out of the folder, to {}", path.display(), target.display());
        return Err(Error::Unsafe(message));
    }
    std::os::unix::fs::symlink(target, into.join(path))?;
    Ok(())
}
