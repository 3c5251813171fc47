//! The source of a function: code to build, or something that already runs. Secrets are referenced, never included.

use crate::defaults;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceType {
    #[default]
    Minio,
    S3,
    Gcs,
    Git,
    Inline,
    Folder,
    Image,
    Url,
}

/// A source: `type` selects the member that is used, and only that member may be set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "has(self.minio) == (self.type == 'minio')", "message": "minio must be set if and only if type is minio", "fieldPath": ".minio" },
    { "rule": "has(self.s3) == (self.type == 's3')", "message": "s3 must be set if and only if type is s3", "fieldPath": ".s3" },
    { "rule": "has(self.gcs) == (self.type == 'gcs')", "message": "gcs must be set if and only if type is gcs", "fieldPath": ".gcs" },
    { "rule": "has(self.git) == (self.type == 'git')", "message": "git must be set if and only if type is git", "fieldPath": ".git" },
    { "rule": "has(self.inline) == (self.type == 'inline')", "message": "inline must be set if and only if type is inline", "fieldPath": ".inline" },
    { "rule": "has(self.folder) == (self.type == 'folder')", "message": "folder must be set if and only if type is folder", "fieldPath": ".folder" },
    { "rule": "has(self.image) == (self.type == 'image')", "message": "image must be set if and only if type is image", "fieldPath": ".image" },
    { "rule": "has(self.url) == (self.type == 'url')", "message": "url must be set if and only if type is url", "fieldPath": ".url" },
]))]
pub struct Source {
    /// Selects the member that is used.
    #[serde(rename = "type")]
    pub kind: SourceType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minio: Option<Box<Minio>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<Box<S3>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gcs: Option<Box<Gcs>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git: Option<Box<Git>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<Box<Inline>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<Box<Folder>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Box<Image>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<Box<UrlSource>>,
}

/// The folder on the server that a document, or a change of one, names as its source.
pub fn folder_of(document: &Value) -> Option<String> {
    let folder = &document["spec"]["source"]["folder"];
    (!folder.is_null()).then(|| folder["path"].as_str().unwrap_or_default().to_owned())
}

/// An archive (zip or tar.gz) in a MinIO bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["bucket", "key"]))]
pub struct Minio {
    pub endpoint: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bucket: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The secret with `accessKey` and `secretKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// An archive (zip or tar.gz) in an S3 bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["bucket", "key"]))]
pub struct S3 {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bucket: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    pub region: String,
    /// The endpoint of an S3-compatible store other than Amazon S3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The secret with `accessKey` and `secretKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// An archive (zip or tar.gz) in a bucket of Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["bucket", "key"]))]
pub struct Gcs {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bucket: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The secret with the `key.json` of the service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// A folder of a git repository at a branch, tag or commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["url"]))]
pub struct Git {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// A branch, tag or commit. The default is the default branch of the repository.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// A folder in the repository. The default is its root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The secret with `username` and `password`, or `sshKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Code in one file, inside the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["code"]))]
pub struct Inline {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// The content of `package.json`, `requirements.txt` or `go.mod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<String>,
}

/// A folder on the server. Works only on a single machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["path"]))]
pub struct Folder {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// A container image that serves CloudEvents over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["uri"]))]
pub struct Image {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uri: String,
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The secret with the credentials of the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// A service at a URL that accepts CloudEvents over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["url"]))]
pub struct UrlSource {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
}

/// A secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct SecretRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl SourceType {
    pub const ALL: [SourceType; 8] = [
        SourceType::Minio,
        SourceType::S3,
        SourceType::Gcs,
        SourceType::Git,
        SourceType::Inline,
        SourceType::Folder,
        SourceType::Image,
        SourceType::Url,
    ];

    pub fn name(self) -> &'static str {
        match self {
            SourceType::Minio => "minio",
            SourceType::S3 => "s3",
            SourceType::Gcs => "gcs",
            SourceType::Git => "git",
            SourceType::Inline => "inline",
            SourceType::Folder => "folder",
            SourceType::Image => "image",
            SourceType::Url => "url",
        }
    }

    /// Whether there is code to build. Images and URLs are not built.
    pub fn is_built(self) -> bool {
        !matches!(self, SourceType::Image | SourceType::Url)
    }

    /// Whether the code must be fetched before its content is known.
    pub fn is_fetched(self) -> bool {
        self.is_built() && self != SourceType::Inline
    }
}

impl Source {
    pub fn has(&self, member: SourceType) -> bool {
        match member {
            SourceType::Minio => self.minio.is_some(),
            SourceType::S3 => self.s3.is_some(),
            SourceType::Gcs => self.gcs.is_some(),
            SourceType::Git => self.git.is_some(),
            SourceType::Inline => self.inline.is_some(),
            SourceType::Folder => self.folder.is_some(),
            SourceType::Image => self.image.is_some(),
            SourceType::Url => self.url.is_some(),
        }
    }

    /// The secrets that a fetch needs, each with the member that names it.
    pub fn secret_refs(&self) -> Vec<(&'static str, &SecretRef)> {
        let refs = [
            ("minio", self.minio.as_ref().and_then(|minio| minio.secret_ref.as_ref())),
            ("s3", self.s3.as_ref().and_then(|s3| s3.secret_ref.as_ref())),
            ("gcs", self.gcs.as_ref().and_then(|gcs| gcs.secret_ref.as_ref())),
            ("git", self.git.as_ref().and_then(|git| git.secret_ref.as_ref())),
            ("image", self.image.as_ref().and_then(|image| image.secret_ref.as_ref())),
        ];
        refs.into_iter().filter_map(|(member, secret)| Some((member, secret?))).collect()
    }
}

impl Default for Minio {
    fn default() -> Minio {
        Minio {
            endpoint: defaults::MINIO_ENDPOINT.to_owned(),
            bucket: String::new(),
            key: String::new(),
            secret_ref: None,
        }
    }
}

impl Default for S3 {
    fn default() -> S3 {
        S3 {
            bucket: String::new(),
            key: String::new(),
            region: defaults::S3_REGION.to_owned(),
            endpoint: None,
            secret_ref: None,
        }
    }
}

impl Default for Image {
    fn default() -> Image {
        Image { uri: String::new(), port: defaults::IMAGE_PORT, secret_ref: None }
    }
}
