//! Headers that a subscription adds to its requests: literal ones, and ones from files and environment variables.

use super::watch::Watch;
use http::{HeaderName, HeaderValue as Value};
use klambda_core::subscription::HeaderValue;
use klambda_crash::Lock;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

pub enum OwnHeaders {
    Fixed(Rendered),
    Live(Lock<Live>),
}

/// Headers ready to be sent.
#[derive(Default)]
pub struct Rendered {
    /// `name: value` lines for HTTP/1.1.
    pub block: Vec<u8>,
    /// The same for HTTP/2.
    pub pairs: Vec<(HeaderName, Value)>,
}

pub struct Live {
    headers: Vec<(String, HeaderValue)>,
    watch: Watch,
    rendered: Arc<Rendered>,
}

impl OwnHeaders {
    /// Fails if a literal header cannot be sent.
    pub fn new(headers: Vec<(String, HeaderValue)>) -> Result<OwnHeaders, String> {
        let files: Vec<String> = headers.iter().filter_map(|(_, value)| file_of(value)).collect();
        if headers.iter().all(|(_, value)| matches!(value, HeaderValue::Literal(_))) {
            return Ok(OwnHeaders::Fixed(render(&headers)?));
        }
        let live = Live { headers, watch: Watch::new(files), rendered: Arc::default() };
        Ok(OwnHeaders::Live(Lock::new(live)))
    }

    /// The current headers, if any of them can change.
    pub fn live(&self, look_every: Duration) -> Result<Option<Arc<Rendered>>, String> {
        match self {
            OwnHeaders::Fixed(_) => Ok(None),
            OwnHeaders::Live(live) => live.lock().current(look_every).map(Some),
        }
    }

    pub fn fixed(&self) -> Option<&Rendered> {
        match self {
            OwnHeaders::Fixed(rendered) => Some(rendered),
            OwnHeaders::Live(_) => None,
        }
    }
}

impl Live {
    fn current(&mut self, look_every: Duration) -> Result<Arc<Rendered>, String> {
        if self.watch.changed(look_every) {
            match render(&self.headers) {
                Ok(rendered) => self.rendered = Arc::new(rendered),
                Err(why) => {
                    self.watch.forget();
                    return Err(why);
                }
            }
        }
        Ok(self.rendered.clone())
    }
}

fn file_of(value: &HeaderValue) -> Option<String> {
    match value {
        HeaderValue::File(path) => Some(path.clone()),
        HeaderValue::Literal(_) | HeaderValue::Env(_) => None,
    }
}

fn render(headers: &[(String, HeaderValue)]) -> Result<Rendered, String> {
    let mut rendered = Rendered::default();
    for (name, value) in headers {
        let text = resolve(value).map_err(|why| format!("header {name}: {why}"))?;
        let mut value = Value::from_str(text.trim())
            .map_err(|_| format!("header {name}: the value contains invalid characters"))?;
        value.set_sensitive(true);
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("header {name}: invalid header name"))?;
        for part in [name.as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            rendered.block.extend_from_slice(part);
        }
        rendered.pairs.push((header, value));
    }
    Ok(rendered)
}

/// Returns the text, or why it is not available. The error never contains the value.
fn resolve(value: &HeaderValue) -> Result<String, String> {
    match value {
        HeaderValue::Literal(text) => Ok(text.clone()),
        HeaderValue::File(path) => fs::read_to_string(path).map_err(|error| format!("file {path}: {error}")),
        HeaderValue::Env(name) => {
            std::env::var(name).map_err(|_| format!("environment variable {name} is not set or not readable"))
        }
    }
}
