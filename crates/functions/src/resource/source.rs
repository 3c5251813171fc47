//! Where a function's code comes from, or what already runs. Secrets are named, never written.

use crate::defaults;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// One source: `type` says which member is read, and only that one is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "has(self.minio) == (self.type == 'minio')", "message": "minio is given when type is minio, and only then" },
    { "rule": "has(self.s3) == (self.type == 's3')", "message": "s3 is given when type is s3, and only then" },
    { "rule": "has(self.gcs) == (self.type == 'gcs')", "message": "gcs is given when type is gcs, and only then" },
    { "rule": "has(self.git) == (self.type == 'git')", "message": "git is given when type is git, and only then" },
    { "rule": "has(self.inline) == (self.type == 'inline')", "message": "inline is given when type is inline, and only then" },
    { "rule": "has(self.folder) == (self.type == 'folder')", "message": "folder is given when type is folder, and only then" },
    { "rule": "has(self.image) == (self.type == 'image')", "message": "image is given when type is image, and only then" },
    { "rule": "has(self.url) == (self.type == 'url')", "message": "url is given when type is url, and only then" },
]))]
pub struct Source {
    /// Which of the members says where the code is.
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
    pub url: Option<Box<Address>>,
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
    /// Another address than Amazon's, for stores that speak the same language.
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
    /// The secret with the service account's `key.json`.
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
    /// A branch, tag or commit; the repository's default branch where it is not named.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The folder in the repository; its root where it is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The secret with `username` and `password`, or `sshKey`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// The code itself, in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["code"]))]
pub struct Inline {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub code: String,
    /// What `package.json`, `requirements.txt` or `go.mod` would hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<String>,
}

/// A folder of the machine itself; only there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["path"]))]
pub struct Folder {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// A container image that is built already and serves CloudEvents over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["uri"]))]
pub struct Image {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uri: String,
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The secret with the registry's credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Something that runs elsewhere and takes CloudEvents over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["url"]))]
pub struct Address {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
}

/// A secret of the same namespace, by its name.
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

    /// Whether there is code to build. An image is built already, and what runs elsewhere is not ours to build.
    pub fn is_built(self) -> bool {
        !matches!(self, SourceType::Image | SourceType::Url)
    }

    /// Whether the code must be brought here before its content is known.
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

    /// The secrets that fetching it needs, each with where it is named.
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
