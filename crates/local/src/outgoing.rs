//! HTTP requests of the server to other machines, except deliveries: no proxies, no redirects.

use std::error::Error;
use std::sync::OnceLock;

/// One client for all calls, so that connections are reused.
pub fn client() -> Result<&'static reqwest::Client, String> {
    static CLIENT: OnceLock<reqwest::Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // The client uses the crypto provider of the process. An error means that the same provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let built = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
    let client = built.map_err(|error| format!("could not create the HTTP client: {error}"))?;
    Ok(CLIENT.get_or_init(|| client))
}

/// The innermost cause of a failed request. The outer messages only repeat the URL.
pub fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
