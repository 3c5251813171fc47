//! `version`: of this program and of the server.

use super::Context;
use crate::output::{Sheet, text, write_raw};
use crate::route::Route;
use serde_json::json;

const CLIENT: &str = env!("CARGO_PKG_VERSION");

/// A server that does not answer is no error: the version of the client is known anyway.
pub fn run(context: &mut Context) -> anyhow::Result<()> {
    let server = context.client.get(&Route::new(&["status"]));
    let version = server.as_ref().ok().and_then(|status| text(status, "/version"));
    let value = json!({ "clientVersion": CLIENT, "serverVersion": version });
    if write_raw(context.out, context.format, &value)? {
        return Ok(());
    }
    let mut sheet = Sheet::default();
    sheet.line("Client", CLIENT);
    sheet.line(
        "Server",
        match (version, server) {
            (Some(version), _) => format!("{version} ({})", context.client.base()),
            (None, Err(error)) => format!("unknown ({error})"),
            (None, Ok(_)) => "unknown".to_owned(),
        },
    );
    sheet.write(context.out)?;
    Ok(())
}
