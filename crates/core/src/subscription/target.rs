//! The target of a subscription: its URL, protocol and certificates.

use super::{FunctionName, Target, Tls, UrlTarget};
use crate::schema::WANTED;
use crate::webhook;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};
use std::borrow::Cow;

pub(super) const URL_BYTES_MAX: usize = 4096;

impl JsonSchema for Target {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Target".into()
    }

    /// All members on one level, as a structural schema requires, with rules for the allowed combinations.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = UrlTarget::json_schema(generator);
        let function = generator.subschema_for::<FunctionName>();
        schema.remove("required");
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert("function".into(), function.to_value());
            // Checked as a document of its own, and rejected in documents of users.
            let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
            properties.insert("endpoint".into(), any);
        }
        schema.insert(WANTED.into(), "an object with at least a url".into());
        schema.insert("x-kubernetes-validations".into(), json!([
            { "rule": "!has(self.endpoint)", "message": "use a WebhookEndpoint instead" },
            { "rule": "has(self.url) != has(self.function)", "message": "specify either url or function, not both" },
            // CEL does not know `headers`, because their values have no single type.
            { "rule": "!has(self.function) || !(has(self.protocol) || has(self.tls))",
              "message": "protocol and tls cannot be combined with function" },
            { "rule": "!has(self.tls) || !has(self.url) || self.url.lowerAscii().startsWith('https://')",
              "message": "tls requires an https:// URL" },
            { "rule": "!has(self.protocol) || self.protocol != 'h2c' || !has(self.url) || self.url.lowerAscii().startsWith('http://')",
              "message": "h2c is HTTP/2 without TLS and requires an http:// URL" },
        ]));
        schema
    }
}

impl Tls {
    pub(super) fn is_default(&self) -> bool {
        *self == Tls::default()
    }
}

impl Target {
    pub fn url(&self) -> Option<&UrlTarget> {
        match self {
            Target::Url(target) => Some(target),
            Target::Function(_) | Target::Endpoint(_) => None,
        }
    }

    pub fn function(&self) -> Option<&FunctionName> {
        match self {
            Target::Function(function) => Some(function),
            Target::Url(_) | Target::Endpoint(_) => None,
        }
    }

    pub fn endpoint(&self) -> Option<&webhook::Spec> {
        match self {
            Target::Endpoint(endpoint) => Some(endpoint),
            Target::Url(_) | Target::Function(_) => None,
        }
    }

    /// The name of the target: its URL, or `function://<namespace>.<name>`.
    pub fn address(&self) -> Cow<'_, str> {
        match self {
            Target::Url(target) => Cow::Borrowed(&target.url),
            Target::Endpoint(endpoint) => Cow::Borrowed(&endpoint.url),
            Target::Function(FunctionName { namespace, name }) => {
                Cow::Owned(format!("function://{namespace}.{name}"))
            }
        }
    }
}

/// Checks whether events can be sent to this URL.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    if url.len() > URL_BYTES_MAX {
        return Err(format!("must not be longer than {URL_BYTES_MAX} bytes"));
    }
    if url.contains('#') {
        return Err("must not have a fragment (#…)".to_owned());
    }
    let uri: http::Uri = url.parse().map_err(|error| format!("not a valid URL: {error}"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("must begin with http:// or https://".to_owned());
    }
    let authority = uri.authority().ok_or("must contain a host")?;
    if authority.as_str().contains('@') {
        return Err(
            "must not contain a user or password; send them in a header from a file or the environment"
                .to_owned(),
        );
    }
    if authority.host().is_empty() || authority.host() == "[]" {
        return Err("must contain a host".to_owned());
    }
    let port = authority.as_str()[authority.host().len()..].strip_prefix(':');
    match port.map(str::parse::<u16>) {
        Some(Err(_) | Ok(0)) => Err("the port must be between 1 and 65535".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check_url;

    #[test]
    fn urls_are_checked() {
        for good in
            ["http://127.0.0.1:9000/", "https://h", "http://[::1]:80/a?b=c", "http://a-b.example:1/x%20y"]
        {
            assert!(check_url(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "h",
            "/path",
            "ftp://h/",
            "http://",
            "http:///x",
            "http://u:p@h/",
            "http://h/#f",
            "http://h:0/",
            "http://h:99999/",
            "http://h:x/",
            "http://h:/",
            "http://a b/",
            "http://h/\n",
            "http://[]/",
            "mailto:a@b",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
