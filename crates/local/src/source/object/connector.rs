//! Gives the bucket library our HTTP client: guarded, without redirects, and with bounded responses.

use http_body_util::{BodyExt, Limited};
use klambda_outbound::Reach;
use klambda_outbound::client::Client;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use reqwest::Method;
use std::future::Future;
use std::pin::Pin;

/// The library reads every response into memory, except an object. That one is counted while it is written.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct Connector(Client);

impl Connector {
    pub fn new(reach: &Reach) -> Result<Connector, reqwest::Error> {
        Ok(Connector(reach.client()?))
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let checked = self.0.check(&request.uri().to_string());
        checked.map_err(|forbidden| HttpError::new(HttpErrorKind::Unknown, forbidden))?;
        let is_get = request.method() == Method::GET;
        let response = self.0.http().call(request).await?;
        Ok(if is_get && response.status().is_success() { response } else { bounded(response) })
    }
}

fn bounded(response: HttpResponse) -> HttpResponse {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MESSAGE_BYTES_MAX);
    let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Decode, error));
    HttpResponse::from_parts(head, HttpResponseBody::new(body))
}

impl HttpConnector for Connector {
    /// The options of the library do not matter: its users share one client.
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Connector {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}
