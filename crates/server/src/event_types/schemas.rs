//! Compiled schemas, shared by all requests. A schema is compiled when the first event needs it.

use super::catalogue::{Catalogue, Known};
use super::stored::{self, Stored};
use crate::api::blocking;
use crate::problem::Problem;
use klambda_event_schema::Schema;
use std::collections::HashMap;
use std::sync::Arc;

/// Length of the schemas that are kept compiled. A compiled schema takes several times as much.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// A schema, or why it cannot be used.
pub type Compiled = Arc<Result<Schema, String>>;

/// The compiled schemas that were used last.
#[derive(Default)]
pub struct Schemas {
    kept: HashMap<String, Kept>,
    bytes: usize,
    uses: u64,
}

struct Kept {
    version: u64,
    schema: Compiled,
    bytes: usize,
    used: u64,
}

impl Schemas {
    fn get(&mut self, key: &str, version: u64) -> Option<Compiled> {
        self.uses += 1;
        let kept = self.kept.get_mut(key).filter(|kept| kept.version == version)?;
        kept.used = self.uses;
        Some(Arc::clone(&kept.schema))
    }

    fn put(&mut self, key: String, version: u64, schema: Compiled, bytes: usize) {
        self.remove(&key);
        while self.bytes + bytes > KEPT_BYTES_MAX {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.remove(&oldest);
        }
        self.bytes += bytes;
        self.kept.insert(key, Kept { version, schema, bytes, used: self.uses });
    }

    fn remove(&mut self, key: &str) {
        self.bytes -= self.kept.remove(key).map_or(0, |kept| kept.bytes);
    }
}

impl Catalogue {
    /// The schema of an event type. `None` if it has lost its schema meanwhile.
    pub(super) async fn schema(&self, namespace: &str, known: &Known) -> Result<Option<Compiled>, Problem> {
        let key = stored::key(namespace, &known.name);
        if let Some(kept) = self.schemas.lock().get(&key, known.version) {
            return Ok(Some(kept));
        }
        let Some((version, stored)) = self.fetch(&key).await? else { return Ok(None) };
        let Some(schema) = stored.document.spec.schema else { return Ok(None) };
        let compile = move || {
            let bytes = schema.to_string().len();
            (Arc::new(Schema::compile(&schema).map_err(|fault| fault.to_string())), bytes)
        };
        let (compiled, bytes) = blocking(compile).await?;
        self.schemas.lock().put(key, version, Arc::clone(&compiled), bytes);
        Ok(Some(compiled))
    }

    async fn fetch(&self, key: &str) -> Result<Option<(u64, Stored)>, Problem> {
        let handle = self.handle.get().ok_or_else(|| Problem::not_ready("the server is starting"))?;
        let found = handle.document(stored::KIND, key).await;
        let found = found.map_err(|stopped| Problem::shutting_down(stopped.to_string()))??;
        Ok(found.and_then(|found| Some((found.version, Stored::decode(&found.content)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_used_last_are_kept() {
        let mut schemas = Schemas::default();
        let schema = || Arc::new(Schema::compile(&serde_json::json!({})).map_err(|fault| fault.to_string()));
        let quarter = KEPT_BYTES_MAX / 4;
        for n in 0..4 {
            schemas.put(format!("a/{n}"), 1, schema(), quarter);
        }
        assert!(schemas.get("a/0", 1).is_some());
        schemas.put("a/4".into(), 1, schema(), quarter);
        assert!(schemas.get("a/0", 1).is_some() && schemas.get("a/4", 1).is_some());
        assert_eq!((schemas.kept.len(), schemas.bytes), (4, KEPT_BYTES_MAX));
        assert!(schemas.get("a/0", 2).is_none(), "a changed schema is compiled again");
        schemas.put("a/0".into(), 2, schema(), 1);
        assert_eq!(schemas.bytes, 3 * quarter + 1);
    }
}
