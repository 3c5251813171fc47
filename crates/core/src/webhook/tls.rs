//! The TLS settings of a webhook endpoint. Certificates and keys come from secrets of its namespace. The defaults are the
//! names that Kubernetes uses in its TLS secrets.

use crate::schema::form;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Tls {
    /// The certificate that identifies this server to the endpoint (mTLS).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<ClientCertificate>,
    /// Certificates of the authorities that may issue the endpoint's certificate. They replace the ones that the machine
    /// trusts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<Ca>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientCertificate {
    /// The name of the secret.
    #[schemars(extend("pattern" = form::NAME))]
    pub secret: String,
    /// The key of the certificate chain in the secret.
    #[serde(default = "certificate")]
    #[schemars(length(min = 1, max = 253))]
    pub certificate: String,
    /// The key of the private key in the secret.
    #[serde(default = "private_key")]
    #[schemars(length(min = 1, max = 253))]
    pub private_key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Ca {
    /// The name of the secret.
    #[schemars(extend("pattern" = form::NAME))]
    pub secret: String,
    /// The key of the certificates in the secret.
    #[serde(default = "ca")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

impl Tls {
    pub fn is_default(&self) -> bool {
        *self == Tls::default()
    }
}

fn certificate() -> String {
    "tls.crt".into()
}

fn private_key() -> String {
    "tls.key".into()
}

fn ca() -> String {
    "ca.crt".into()
}
