//! Names, labels and annotations of the objects that belong to a function.

use klambda_functions::hash;
use klambda_functions::resource::Resource;
use serde_json::{Value, json};

/// The owner of the fields that the operator applies.
pub const MANAGER: &str = "klambda-operator";
/// Keeps a function until everything that the garbage collector cannot remove is gone.
pub const FINALIZER: &str = "lambda.knative.io/cleanup";

/// The name of the function that an object belongs to. The watches select by it.
pub const FUNCTION: &str = "lambda.knative.io/function";
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Of pods and their Jobs: the name of the build.
pub const BUILD: &str = "lambda.knative.io/build";

/// Hash of the applied manifest. A difference means that the object is out of date.
pub const HASH: &str = "lambda.knative.io/hash";
/// Of a Job: the inputs, the artifact, the number of the try, and the repository of the image.
pub const INPUTS: &str = "lambda.knative.io/inputs";
pub const ARTIFACT: &str = "lambda.knative.io/artifact";
pub const TRY: &str = "lambda.knative.io/try";
pub const IMAGE: &str = "lambda.knative.io/image";
/// Of a Knative Service and its revisions: the version of the function.
pub const VERSION: &str = "lambda.knative.io/version";
/// Of a Knative Service: the applied scaling, as JSON.
pub const SCALING: &str = "lambda.knative.io/scaling";
/// Of a Subscription: the hash of the document that the planner asked for.
pub const DOCUMENT: &str = "lambda.knative.io/document";

/// The account that builds run as, one for each namespace. It has no rights and no token.
pub const BUILD_ACCOUNT: &str = "klambda-build";

/// Containers of a build.
pub const FETCH_CONTAINER: &str = "fetch";
pub const BUILD_CONTAINER: &str = "build";

/// Labels of every object of a function.
pub fn labels(function: &str) -> Value {
    json!({ FUNCTION: function, MANAGED_BY: MANAGER })
}

/// Makes the garbage collector remove an object after its function.
pub fn owner(resource: &Resource, api_version: &str) -> Value {
    json!([{
        "apiVersion": api_version,
        "kind": resource.kind.name(),
        "name": resource.metadata.name,
        "uid": resource.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    }])
}

/// A name that changes with its content, so that immutable objects are replaced instead of changed.
pub fn with_hash(name: &str, content: &Value) -> String {
    let hash = hash::of(content);
    format!("{}-{}", name.get(..52).unwrap_or(name).trim_end_matches('-'), &hash[..10])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_labels() {
        let name = with_hash(&"a".repeat(63), &json!({ "type": "x" }));
        assert_eq!(name.len(), 63);
        assert_ne!(with_hash("a", &json!(1)), with_hash("a", &json!(2)));
    }
}
