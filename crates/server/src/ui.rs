//! `/ui`: the page for people. Its files are part of the binary and contain no data: the page reads the REST API
//! ([why](../../../docs/decisions/0024-the-page.md)).

pub mod session;
pub mod sign_in;

use crate::extract::Path;
use crate::problem::Problem;
use axum::response::{IntoResponse, Redirect, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ring::digest::{SHA256, digest};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::LazyLock;

/// The page loads nothing from other hosts, and no other page can embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

struct Asset {
    name: &'static str,
    media: &'static str,
    text: &'static str,
    packed: Vec<u8>,
    etag: String,
}

macro_rules! assets {
    ($($media:ident $name:literal;)+) => {
        static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| vec![
            $(Asset::new($name, $media, include_str!(concat!("ui/", $name)))),+
        ]);
    };
}

assets! {
    HTML "index.html";
    CSS "app.css";
    PICTURE "icon.svg";
    SCRIPT "app.js";
    SCRIPT "api.js";
    SCRIPT "dom.js";
    SCRIPT "format.js";
    SCRIPT "dialog.js";
    SCRIPT "data.js";
    SCRIPT "table.js";
    SCRIPT "rates.js";
    SCRIPT "overview.js";
    SCRIPT "lanes.js";
    SCRIPT "lane.js";
    SCRIPT "events.js";
    SCRIPT "letters.js";
    SCRIPT "functions.js";
    SCRIPT "webhooks.js";
    SCRIPT "subscriptions.js";
    SCRIPT "settings.js";
    SCRIPT "signin.js";
}

/// The page and its sign-in: they contain no data, and are no part of the REST API.
pub fn is_page(path: &str) -> bool {
    path == "/" || path == "/ui" || path.starts_with("/ui/")
}

pub async fn forward() -> Redirect {
    Redirect::to("/ui")
}

pub async fn page(headers: HeaderMap) -> Result<Response, Problem> {
    answer("index.html", &headers)
}

pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Result<Response, Problem> {
    answer(&name, &headers)
}

fn answer(name: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    asset
        .map(|asset| asset.answer(headers))
        .ok_or_else(|| Problem::not_found(format!("the page has no file {name}")))
}

impl Asset {
    fn new(name: &'static str, media: &'static str, text: &'static str) -> Asset {
        let hash = digest(&SHA256, text.as_bytes());
        let mut etag = String::from("\"");
        for byte in hash.as_ref().iter().take(16) {
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Asset { name, media, text, packed: pack(text).unwrap_or_default(), etag }
    }

    fn answer(&'static self, headers: &HeaderMap) -> Response {
        let is_known = has(headers, header::IF_NONE_MATCH, &self.etag);
        let is_packed = has(headers, header::ACCEPT_ENCODING, "gzip") && !self.packed.is_empty();
        let mut response = match (is_known, is_packed) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => ([(header::CONTENT_ENCODING, "gzip")], self.packed.as_slice()).into_response(),
            (false, false) => self.text.into_response(),
        };
        let fixed = [
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CONTENT_TYPE, self.media),
            (header::ETAG, self.etag.as_str()),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::VARY, "accept-encoding"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        for (name, value) in fixed {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

fn has(headers: &HeaderMap, name: header::HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let mut parts = values.flat_map(|value| value.split(',')).map(str::trim);
    parts.any(|part| part.strip_prefix("W/").unwrap_or(part) == wanted)
}

fn pack(text: &str) -> std::io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes())?;
    packer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size that a browser loads, and a list without forgotten files.
    #[test]
    fn the_page_is_small_and_complete() {
        let packed: usize = ASSETS.iter().map(|asset| asset.packed.len()).sum();
        assert!(packed <= 150 << 10, "{packed} bytes");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ui");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        let mut files: Vec<_> = files.filter_map(|name| name.into_string().ok()).collect();
        files.retain(|name| !name.ends_with(".rs"));
        files.sort();
        let mut names: Vec<_> = ASSETS.iter().map(|asset| asset.name.to_owned()).collect();
        names.sort();
        assert_eq!(names, files);
    }

    /// Data must never become markup, and nothing comes from other hosts.
    #[test]
    fn the_scripts_build_no_markup_from_text() {
        for asset in ASSETS.iter() {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!asset.text.contains(word), "{} has {word}", asset.name);
            }
            let foreign = asset.text.replace("http://www.w3.org/", "");
            assert!(!foreign.contains("src=\"http") && !foreign.contains("@import"), "{}", asset.name);
        }
    }
}
