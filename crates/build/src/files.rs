//! File operations of a build.

use crate::Error;
use crate::hash::sorted_paths;
use std::path::{Component, Path};

/// Copies a source folder. Rejects links that lead out of it, because an artifact must not depend on other files.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<(), Error> {
    let paths = sorted_paths(from).map_err(|e| Error::io("could not read", from, &e))?;
    for path in paths {
        let (source, target) = (from.join(&path), to.join(&path));
        let parent = target.parent().unwrap_or(to);
        std::fs::create_dir_all(parent).map_err(|e| Error::io("could not create", parent, &e))?;
        copy_one(&path, &source, &target)?;
    }
    Ok(())
}

fn copy_one(path: &Path, source: &Path, target: &Path) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::io("could not copy", source, &e);
    let kind = std::fs::symlink_metadata(source).map_err(failed)?.file_type();
    if kind.is_symlink() {
        let link = std::fs::read_link(source).map_err(failed)?;
        if leads_out(path, &link) {
            let message = format!("link {} points out of the source; remove it", path.display());
            return Err(Error::Failed { message, log: Vec::new() });
        }
        return std::os::unix::fs::symlink(link, target).map_err(failed);
    }
    if kind.is_file() {
        std::fs::copy(source, target).map_err(failed)?;
    }
    Ok(())
}

fn leads_out(path: &Path, link: &Path) -> bool {
    let mut depth = path.components().count() as i64 - 1;
    for component in link.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth -= 1,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return true,
        }
        if depth < 0 {
            return true;
        }
    }
    false
}

pub(crate) fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|e| Error::io("could not write", path, &e))
}

pub(crate) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| Error::io("could not read", path, &e))
}

/// The text of a file, or `None` if the file does not exist.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<String>, Error> {
    if path.is_file() { read(path).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_are_known() {
        let out = |path: &str, link: &str| leads_out(Path::new(path), Path::new(link));
        assert!(
            out("a", "/etc/passwd") && out("a", "../b") && out("d/a", "../../b") && out("d/a", "../../d/b")
        );
        assert!(!out("a", "b") && !out("d/a", "../b") && !out("d/a", "./b"));
    }
}
