//! Hides values that only developers may read: headers of targets and variables of functions.

use crate::auth::Who;
use klambda_access::{Reach, Role};
use serde_json::Value;

const REDACTED: &str = "***";

/// Hides these values in a spec, unless the caller is a developer of its namespace.
pub fn redact(spec: &mut Value, namespace: &str, who: &Who) {
    if who.allows(Role::Developer, Reach::In(namespace)) {
        return;
    }
    let headers = spec.pointer_mut("/target/headers").and_then(Value::as_object_mut);
    headers.into_iter().flatten().for_each(|(_, value)| redact_text(value));
    let variables = spec.get_mut("env").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        variable.get_mut("value").into_iter().for_each(redact_text);
    }
}

fn redact_text(value: &mut Value) {
    if value.is_string() {
        *value = REDACTED.into();
    }
}
