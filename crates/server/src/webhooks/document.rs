//! The document of an endpoint in a request: a manifest, or a flat body.

use crate::api::Api;
use crate::problem::{Fault, Problem};
use crate::request_body;
use crate::secrets::vault::is_signing;
use klambda_core::schema::API_VERSION;
use klambda_core::webhook::{Document, KIND, needed};
use serde_json::{Value, json};

/// A manifest at the address of the endpoint.
pub fn manifest(namespace: &str, name: &str, mut body: Value) -> Result<Document, Problem> {
    let misplaced = request_body::place(&mut body, &[("namespace", namespace), ("name", name)]);
    read(&body, misplaced).map_err(invalid)
}

/// `name` beside the members of `spec`. `workflowKey` may be the name of an attribute or a JSON pointer.
pub fn flat(namespace: &str, body: Value) -> Result<Document, Problem> {
    let Value::Object(mut spec) = body else {
        return Err(invalid(vec![Fault::new("", "must be an object with name and url")]));
    };
    let name = spec.remove("name").unwrap_or_default();
    if name.is_null() {
        let faults = vec![Fault::new("name", "is missing")];
        return Err(invalid(faults));
    }
    if let Some(Value::String(key)) = spec.get("workflowKey") {
        let form = if key.starts_with('/') { "pointer" } else { "attribute" };
        let key = json!({ form: key });
        spec.insert("workflowKey".to_owned(), key);
    }
    let metadata = json!({ "namespace": namespace, "name": name });
    let document = json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec });
    read(&document, Vec::new()).map_err(|faults| {
        let flat = |path: &str| {
            let inner = path.strip_prefix("spec.").or_else(|| path.strip_prefix("metadata."));
            inner.unwrap_or(path).to_owned()
        };
        invalid(faults.into_iter().map(|fault| Fault::new(flat(&fault.path), fault.message)).collect())
    })
}

/// Refuses an address that is certainly forbidden. A name is checked again at every connection.
pub fn may_be_called(api: &Api, document: &Document, path: &str) -> Result<(), Problem> {
    let checked = api.control.outbound().reach(&document.namespace).check_url(&document.spec.url);
    checked.map_err(|why| invalid(vec![Fault::new(path, why.to_string())]))
}

fn read(body: &Value, mut faults: Vec<Fault>) -> Result<Document, Vec<Fault>> {
    let parsed = Document::parse(body);
    faults.splice(0..0, parsed.as_ref().err().into_iter().flatten().cloned());
    faults.extend(foreign_keys(&body["spec"]));
    match parsed {
        Ok(document) if faults.is_empty() => Ok(document),
        _ => Err(faults),
    }
}

/// Otherwise an endpoint could send the signing keys of another one to its own URL.
fn foreign_keys(spec: &Value) -> impl Iterator<Item = Fault> {
    let mut paths: Vec<String> = needed(spec)
        .into_iter()
        .filter(|needed| is_signing(needed.secret))
        .map(|needed| needed.path)
        .collect();
    paths.dedup();
    paths
        .into_iter()
        .map(|path| Fault::new(format!("spec.{path}.secret"), "must not be a signing secret (webhook.…)"))
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("the webhook endpoint has {} errors", many.len()),
    };
    Problem::invalid_endpoint(detail).faults(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(result: Result<Document, Problem>) -> String {
        String::from_utf8(result.expect_err("refused").to_json()).expect("text")
    }

    #[test]
    fn a_flat_body_is_the_same_as_a_manifest() {
        let spec = json!({"url": "https://p.example/", "types": ["order.*"], "workflowKey": {"attribute": "subject"}});
        let manifest =
            json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "partner"}, "spec": spec});
        let manifest = super::manifest("shop", "partner", manifest).expect("valid");
        let body = json!({"name": "partner", "url": "https://p.example/", "types": ["order.*"], "workflowKey": "subject"});
        assert_eq!(flat("shop", body).expect("valid"), manifest);
        let pointer =
            flat("shop", json!({"name": "p", "url": "https://p.example/", "workflowKey": "/order/id"}));
        assert_eq!(pointer.expect("valid").to_json()["spec"]["workflowKey"], json!({"pointer": "/order/id"}));
    }

    #[test]
    fn faults_name_the_members_of_the_body() {
        let wrong = told(flat("shop", json!({"name": "Partner", "url": "ftp://x", "type": 1})));
        for path in ["\"name\"", "\"url\"", "\"type\""] {
            assert!(wrong.contains(&format!("\"path\":{path}")), "{path} is not in {wrong}");
        }
        assert!(told(flat("shop", json!({"url": "https://p.example/"}))).contains("is missing"));
        assert!(told(flat("shop", json!([]))).contains("must be an object"));
    }

    #[test]
    fn nothing_takes_the_signing_keys_of_an_endpoint() {
        let other = json!({"secret": "webhook.other", "key": "current"});
        for (path, more) in [
            ("headers.x-key", json!({"headers": {"x-key": other}})),
            ("tls.ca", json!({"tls": {"ca": other}})),
            ("tls.clientCertificate", json!({"tls": {"clientCertificate": {"secret": "webhook.other"}}})),
        ] {
            let mut body = json!({"name": "partner", "url": "https://p.example/"});
            body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let said = told(flat("shop", body));
            let fault = format!("\"path\":\"{path}.secret\",\"message\":\"must not be a signing secret");
            assert!(said.contains(&fault), "{said}");
        }
    }
}
