//! `crd`: the custom resource definitions for a Kubernetes cluster.

use crate::exit::Usage;
use crate::output::Format;
use klambda_functions::crd;
use std::io::Write;

pub fn run(out: &mut dyn Write, format: Format) -> anyhow::Result<()> {
    let definitions = crd::definitions();
    match format {
        Format::Json => {
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": definitions });
            writeln!(out, "{list:#}")?;
        }
        Format::Table | Format::Yaml => {
            for definition in definitions {
                write!(out, "---\n{}", serde_saphyr::to_string(&definition)?)?;
            }
        }
        Format::Wide | Format::Name | Format::Extract(_) => {
            return Err(Usage("crd prints -o yaml or -o json".to_owned()).into());
        }
    }
    Ok(())
}
