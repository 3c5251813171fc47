//! Validates sources: exactly one, complete, and without text that could inject options into a command or escape a path.

use super::{Faults, OBJECT_NAME, is_object_name};
use crate::resource::{Git, Source, SourceType};

const CODE_BYTES_MAX: usize = 1 << 20;
const TEXT_BYTES_MAX: usize = 4096;
const GIT_SCHEMES: [&str; 4] = ["https://", "http://", "ssh://", "git://"];

pub(super) fn check(source: &Source, is_typed: bool, faults: &mut Faults<'_>) {
    if is_typed {
        members(source, faults);
    }
    for (member, secret) in source.secret_refs() {
        let path = format!("spec.source.{member}.secretRef.name");
        faults.unless(is_object_name(&secret.name), &path, OBJECT_NAME);
    }
    objects(source, faults);
    if let Some(git) = &source.git {
        check_git(git, faults);
    }
    code(source, faults);
    running(source, faults);
}

/// Only the member of the source type may be set.
fn members(source: &Source, faults: &mut Faults<'_>) {
    let kind = source.kind.name();
    for member in SourceType::ALL {
        let path = format!("spec.source.{}", member.name());
        match (member == source.kind, source.has(member)) {
            (true, false) => faults.add(path, format!("missing: the source type is {kind}")),
            (false, true) => {
                faults.add(
                    path,
                    format!("the source type is {kind}: set type: {} or remove this field", member.name()),
                );
            }
            _ => {}
        }
    }
}

fn objects(source: &Source, faults: &mut Faults<'_>) {
    let minio = source.minio.as_ref().map(|minio| ("minio", &minio.bucket, &minio.key));
    let s3 = source.s3.as_ref().map(|s3| ("s3", &s3.bucket, &s3.key));
    let gcs = source.gcs.as_ref().map(|gcs| ("gcs", &gcs.bucket, &gcs.key));
    for (member, bucket, key) in [minio, s3, gcs].into_iter().flatten() {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let spelled = (3..=222).contains(&bucket.len()) && bucket.bytes().all(fine);
        let path = format!("spec.source.{member}");
        faults.unless(spelled, &format!("{path}.bucket"), "must be the name of a bucket");
        let spelled = !key.trim_matches('/').is_empty() && key.len() <= 1024;
        faults.unless(spelled, &format!("{path}.key"), "must be the key of a zip or tar.gz archive");
    }
    if let Some(minio) = &source.minio {
        let path = "spec.source.minio.endpoint";
        faults.unless(
            is_endpoint(&minio.endpoint),
            path,
            "must be host:port, optionally with http:// or https://",
        );
    }
    if let Some(endpoint) = source.s3.as_ref().and_then(|s3| s3.endpoint.as_ref()) {
        let path = "spec.source.s3.endpoint";
        faults.unless(is_endpoint(endpoint), path, "must be host:port, optionally with http:// or https://");
    }
}

fn is_endpoint(text: &str) -> bool {
    let host = text.strip_prefix("http://").or(text.strip_prefix("https://")).unwrap_or(text);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':' | b'[' | b']');
    let host = host.strip_suffix('/').unwrap_or(host);
    !host.is_empty() && host.len() <= 260 && host.bytes().all(fine)
}

fn check_git(git: &Git, faults: &mut Faults<'_>) {
    let path = "spec.source.git.url";
    let url = git.url.as_str();
    let scheme = GIT_SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme));
    // The form git@host:path has no scheme.
    let short = url.split_once(':').filter(|(host, rest)| host.contains('@') && !rest.starts_with("//"));
    let known = scheme.is_some_and(|rest| !rest.is_empty()) || short.is_some();
    let plain = url.len() <= TEXT_BYTES_MAX
        && !url.starts_with('-')
        && url.chars().all(|c| !c.is_control() && c != ' ');
    faults.unless(!url.starts_with("file://"), path, "must not be a file URL: use type: folder instead");
    faults.unless(
        known && plain,
        path,
        "must be the URL of a repository, such as https://example.com/team/shop.git",
    );
    let host = scheme.and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let user = host.rsplit_once('@').map(|(user, _)| user).unwrap_or_default();
    faults.unless(
        !user.contains(':'),
        path,
        "must not contain a password: store it in a secret and refer to it with secretRef",
    );
    if let Some(reference) = &git.reference {
        let fine = |c: char| !c.is_control() && !" ~^:?*[\\".contains(c);
        let spelled = !reference.is_empty() && reference.len() <= 255 && reference.chars().all(fine);
        let spelled = spelled && !reference.starts_with('-') && !reference.contains("..");
        faults.unless(spelled, "spec.source.git.ref", "must be a branch, a tag or a commit");
    }
    if let Some(inside) = &git.path {
        let path = "spec.source.git.path";
        let relative = "must be relative to the root of the repository, without a leading /";
        faults.unless(!inside.starts_with('/'), path, relative);
        let spelled = inside.split(['/', '\\']).all(|part| part != "..") && !inside.contains('\0');
        faults.unless(spelled, path, "must be a folder inside the repository, without ..");
    }
}

fn code(source: &Source, faults: &mut Faults<'_>) {
    if let Some(inline) = &source.inline {
        let path = "spec.source.inline.code";
        faults.unless(!inline.code.trim().is_empty(), path, "must not be empty");
        faults.unless(
            inline.code.len() <= CODE_BYTES_MAX,
            path,
            "must be at most 1Mi: store larger code in git or in a bucket",
        );
        let dependencies = inline.dependencies.as_deref().unwrap_or_default();
        let path = "spec.source.inline.dependencies";
        faults.unless(dependencies.len() <= CODE_BYTES_MAX, path, "must be at most 1Mi");
    }
    if let Some(folder) = &source.folder {
        let plain = folder.path.len() <= TEXT_BYTES_MAX && !folder.path.contains('\0');
        let fine = folder.path.starts_with('/') && plain;
        faults.unless(fine, "spec.source.folder.path", "must be an absolute path, starting with /");
    }
}

fn running(source: &Source, faults: &mut Faults<'_>) {
    if let Some(image) = &source.image {
        faults.unless(
            is_image(&image.uri),
            "spec.source.image.uri",
            "must be an image, such as ghcr.io/team/agent:1.2",
        );
    }
    if let Some(address) = &source.url {
        let rest = address.url.strip_prefix("http://").or(address.url.strip_prefix("https://"));
        let host = rest.and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
        let plain =
            address.url.len() <= TEXT_BYTES_MAX && address.url.bytes().all(|byte| byte.is_ascii_graphic());
        let path = "spec.source.url.url";
        faults.unless(
            !host.is_empty() && plain && !address.url.contains('#'),
            path,
            "must be an http:// or https:// URL",
        );
        faults.unless(!host.contains('@'), path, "must not contain a user name or password");
    }
}

/// A valid name of an image or registry. It never looks like a command-line option.
pub(super) fn is_image(text: &str) -> bool {
    let fine =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':' | b'@');
    !text.is_empty()
        && text.len() <= 512
        && text.bytes().all(fine)
        && !text.contains("//")
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && !text.ends_with(['/', ':', '@'])
}
