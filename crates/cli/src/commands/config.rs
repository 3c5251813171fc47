//! `config`: the configuration file with all defaults.

use klambda_server::config::DEFAULT_FILE;
use std::io::Write;

pub fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    out.write_all(DEFAULT_FILE.as_bytes())?;
    Ok(())
}
