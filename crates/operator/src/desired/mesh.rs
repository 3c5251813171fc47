//! Policies of Linkerd: only Knative, the namespace of the function and the dispatcher may call a function.

use super::Owned;
use crate::child::Child;
use crate::kinds::Kind;
use serde_json::json;

pub const KINDS: [Kind; 3] = [Kind::MeshServer, Kind::MeshAuthentication, Kind::MeshAuthorization];

/// Requests reach the queue-proxy of Knative, not the container of the function.
const QUEUE_PROXY_PORT: u16 = 8012;
const OPERATOR_NAMESPACE: &str = "knative-lambda-operator";

pub(super) fn policies(owned: &Owned<'_>) -> Vec<Child> {
    let (name, group) = (owned.name(), "policy.linkerd.io");
    let server = json!({ "spec": {
        "podSelector": { "matchLabels": { "serving.knative.dev/service": name } },
        "port": QUEUE_PROXY_PORT,
        "proxyProtocol": "HTTP/1",
    } });
    let namespaces = [owned.namespace(), "knative-serving", OPERATOR_NAMESPACE];
    let identities = namespaces.map(|namespace| json!({ "kind": "Namespace", "name": namespace }));
    let authorization = json!({ "spec": {
        "targetRef": { "group": group, "kind": "Server", "name": name },
        "requiredAuthenticationRefs": [{ "group": group, "kind": "MeshTLSAuthentication", "name": name }],
    } });
    vec![
        owned.child(Kind::MeshServer, name, json!({}), server),
        owned.child(
            Kind::MeshAuthentication,
            name,
            json!({}),
            json!({ "spec": { "identityRefs": identities } }),
        ),
        owned.child(Kind::MeshAuthorization, name, json!({}), authorization),
    ]
}
