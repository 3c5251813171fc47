//! Which secrets a function would get now, without reading their values.
//!
//! A stored secret has a version. Of secrets in the folder only the names of keys count: a change of a file there starts
//! no new version.

use super::super::Options;
use super::folder::Folder;
use klambda_functions::resource::{Resource, Spec};
use klambda_functions::secrets::Revisions;

pub fn revisions(resource: &Resource, options: &Options) -> Revisions {
    let (spec, namespace) = (&resource.spec, resource.metadata.namespace.as_str());
    let of = |name: &str, of_files: &dyn Fn(&Folder) -> String| {
        let known = options.stored_secrets.as_ref().and_then(|reader| reader.known(namespace, name));
        if let Some(known) = known {
            return format!("{name}={};", known.revision());
        }
        let folder = options.secrets.as_deref().and_then(|root| Folder::of(root, namespace, name));
        folder.map_or_else(|| format!("{name}?;"), |folder| of_files(&folder))
    };
    Revisions {
        run: spec
            .run_secrets()
            .into_iter()
            .map(|name| of(name, &|folder| lacking(spec, name, folder)))
            .collect(),
        source: spec.source_secrets().into_iter().map(|name| of(name, &|folder| all(name, folder))).collect(),
    }
}

/// Keys that variables need and the folder does not have.
fn lacking(spec: &Spec, name: &str, folder: &Folder) -> String {
    let keys = spec.secret_key_refs().filter(|key| key.name == name && !folder.has(&key.key));
    keys.map(|key| format!("{name}/{}?;", key.key)).collect()
}

fn all(name: &str, folder: &Folder) -> String {
    format!("{name}:{};", folder.keys().join(","))
}
