//! Checks the addresses that a document names before it is stored. Names are looked up only when they are called.

use crate::control::Control;
use crate::writes::Error;
use klambda_core::fault::Fault;
use klambda_functions::resource::{Resource, Source};
use klambda_outbound::{self as outbound, Forbidden, Reach, split_authority};

impl Control {
    pub fn outbound(&self) -> &outbound::Guard {
        &self.options.outbound
    }

    /// A source that did not change passes, so that other changes of an older document do.
    pub(crate) fn check_addresses(
        &self,
        resource: &Resource,
        before: Option<&Resource>,
    ) -> Result<(), Error> {
        let Some(source) = &resource.spec.source else { return Ok(()) };
        if before.is_some_and(|before| before.spec.source.as_ref() == Some(source)) {
            return Ok(());
        }
        let reach = self.outbound().reach(&resource.metadata.namespace);
        let faults: Vec<Fault> = addresses(source)
            .filter_map(|(field, text)| Some((field, check(&reach, text).err()?)))
            .map(|(field, forbidden)| Fault::new(format!("spec.source.{field}"), forbidden.to_string()))
            .collect();
        if faults.is_empty() { Ok(()) } else { Err(Error::Invalid(faults)) }
    }
}

/// The addresses that the server calls for this source, with their fields.
fn addresses(source: &Source) -> impl Iterator<Item = (&'static str, &str)> {
    let url = source.url.as_ref().map(|source| ("url.url", source.url.as_str()));
    let git = source.git.as_ref().map(|source| ("git.url", source.url.as_str()));
    let minio = source.minio.as_ref().map(|source| ("minio.endpoint", source.endpoint.as_str()));
    let s3 = source.s3.as_ref().and_then(|source| Some(("s3.endpoint", source.endpoint.as_deref()?)));
    [url, git, minio, s3].into_iter().flatten()
}

fn check(reach: &Reach, text: &str) -> Result<(), Forbidden> {
    match text.split_once("://") {
        Some(("http" | "https", rest)) if !rest.contains('@') => reach.check_url(text),
        Some((scheme, rest)) => {
            let authority = rest.split('/').next().unwrap_or_default();
            let port = match scheme {
                "http" => 80,
                "https" => 443,
                _ => 22,
            };
            check_authority(reach, authority, port)
        }
        // An endpoint without a scheme is `host[:port]`; a repository is `user@host:path`.
        None => match text.split_once('@') {
            Some((_, place)) => check_authority(reach, place.split(':').next().unwrap_or_default(), 22),
            None => check_authority(reach, text.trim_end_matches('/'), 80),
        },
    }
}

fn check_authority(reach: &Reach, authority: &str, port: u16) -> Result<(), Forbidden> {
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let invalid = || Forbidden::Url(format!("{authority:?} has an invalid port"));
    let (host, port) = split_authority(authority, port).ok_or_else(invalid)?;
    reach.check(host, port)
}
