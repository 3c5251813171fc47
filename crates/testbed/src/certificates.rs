//! The certificates of a control plane: one authority, a server certificate, and a client certificate per user.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use std::path::Path;

/// A user of the API server, as its client certificate names it.
#[derive(Debug, Clone, Copy)]
pub struct User<'a> {
    pub name: &'a str,
    pub group: Option<&'a str>,
}

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = named("klambda-testbed", None)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server that is reached under these names and addresses.
    pub fn server(&self, names: &[&str]) -> Result<Pair> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    pub fn client(&self, user: User<'_>) -> Result<Pair> {
        let mut params = named(user.name, user.group)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Pair> {
        let key = KeyPair::generate()?;
        Ok(Pair { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

impl Pair {
    /// Writes `NAME.crt` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) -> Result<()> {
        write(&folder.join(format!("{name}.crt")), &self.certificate)?;
        write(&folder.join(format!("{name}.key")), &self.key)
    }
}

/// Writes the key that signs tokens of service accounts: `tokens.key` and `tokens.pub`.
pub fn write_token_key(folder: &Path) -> Result<()> {
    let key = KeyPair::generate()?;
    write(&folder.join("tokens.key"), &key.serialize_pem())?;
    write(&folder.join("tokens.pub"), &key.public_key_pem())
}

pub fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

fn named(name: &str, group: Option<&str>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    Ok(params)
}
