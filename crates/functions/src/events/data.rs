//! The data of each event type, in the form in which it is sent and validated.

use crate::defaults;
use crate::resource::{Condition, Phase, ResourceKind};
use klambda_core::fault::{Fault, unknown};
use klambda_core::kinds::EventKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionData {
    pub name: String,
    pub namespace: String,
    pub kind: ResourceKind,
    pub spec: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildData {
    pub function_name: String,
    pub namespace: String,
    pub build_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_uri: Option<String>,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceData {
    pub service_name: String,
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    Healthy,
    Unhealthy,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusData {
    pub function_name: String,
    pub namespace: String,
    pub phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Condition>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_status: Option<HealthStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ParserStatus {
    Started,
    Completed,
    Failed,
}

/// A parser is a function that is called once for an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParserData {
    pub parser_id: String,
    pub function_name: String,
    pub namespace: String,
    pub execution_id: String,
    pub status: ParserStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Function(FunctionData),
    Build(BuildData),
    Service(ServiceData),
    Status(StatusData),
    Parser(ParserData),
}

/// Parses the data of a type, or returns all its faults.
pub fn parse_data(kind: EventKind, value: &Value) -> Result<Data, Vec<Fault>> {
    let mut reader = Reader::open(value);
    let data = match kind {
        EventKind::FunctionCreated | EventKind::FunctionUpdated | EventKind::FunctionDeleted => {
            Data::Function(reader.function())
        }
        EventKind::BuildStarted => Data::Build(reader.build("started")),
        EventKind::BuildCompleted => Data::Build(reader.build("completed")),
        EventKind::BuildFailed => Data::Build(reader.build("failed")),
        EventKind::BuildTimeout => Data::Build(reader.build("timeout")),
        EventKind::BuildCancelled => Data::Build(reader.build("cancelled")),
        EventKind::BuildStopped => Data::Build(reader.build("stopped")),
        EventKind::ServiceCreated | EventKind::ServiceUpdated | EventKind::ServiceDeleted => {
            Data::Service(reader.service())
        }
        EventKind::StatusUpdated | EventKind::HealthCheck => Data::Status(reader.status()),
        EventKind::ParserStarted => Data::Parser(reader.parser(ParserStatus::Started)),
        EventKind::ParserCompleted => Data::Parser(reader.parser(ParserStatus::Completed)),
        EventKind::ParserFailed => Data::Parser(reader.parser(ParserStatus::Failed)),
    };
    if reader.faults.is_empty() { Ok(data) } else { Err(reader.faults) }
}

/// Reads members one by one, so that every fault is reported.
pub(super) struct Reader<'a> {
    object: Option<&'a Map<String, Value>>,
    pub(super) faults: Vec<Fault>,
}

impl<'a> Reader<'a> {
    pub(super) fn open(value: &'a Value) -> Reader<'a> {
        let object = value.as_object();
        let faults = match object {
            Some(_) => Vec::new(),
            None => vec![Fault::new("data", "must be an object")],
        };
        Reader { object, faults }
    }

    pub(super) fn fault(&mut self, name: &str, message: impl Into<String>) {
        // If the data is not an object, report only that.
        if self.object.is_some() {
            self.faults.push(Fault::new(format!("data.{name}"), message));
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object?.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        match self.get(name)? {
            Value::String(text) => Some(text.clone()),
            _ => {
                self.fault(name, "must be a string");
                None
            }
        }
    }

    pub(super) fn required(&mut self, name: &str) -> String {
        if self.get(name).is_none() {
            self.fault(name, "missing");
        }
        let text = self.text(name);
        if text.as_deref() == Some("") {
            self.fault(name, "must not be empty");
        }
        text.unwrap_or_default()
    }

    fn number(&mut self, name: &str) -> Option<f64> {
        let value = self.get(name)?;
        if value.as_f64().is_none_or(|number| number < 0.0) {
            self.fault(name, "must be a number of at least 0");
        }
        value.as_f64()
    }

    /// If a status is given, it must match the event type.
    fn word(&mut self, expected: &str) {
        if self.text("status").is_some_and(|word| word != expected) {
            self.fault("status", format!("must be {expected} in an event of this type"));
        }
    }

    pub(super) fn namespace(&mut self) -> String {
        self.text("namespace").unwrap_or_else(|| defaults::NAMESPACE.to_owned())
    }

    pub(super) fn resource_kind(&mut self) -> ResourceKind {
        let Some(name) = self.text("kind") else { return ResourceKind::default() };
        ResourceKind::parse(&name).unwrap_or_else(|| {
            self.fault("kind", unknown("kind", &name, &ResourceKind::ALL.map(ResourceKind::name)));
            ResourceKind::default()
        })
    }

    pub(super) fn object(&mut self, name: &str) -> Option<Value> {
        let value = self.get(name)?;
        if !value.is_object() {
            self.fault(name, "must be an object");
        }
        Some(value.clone())
    }

    /// Reports unknown members. Most are typing errors, and ignoring them would ignore a request.
    pub(super) fn only(&mut self, known: &[&str]) {
        let names = self.object.into_iter().flat_map(Map::keys);
        let strange: Vec<&str> = names.map(String::as_str).filter(|name| !known.contains(name)).collect();
        for name in strange {
            self.fault(name, unknown("member", name, known));
        }
    }

    /// Checks the optional members of a build command.
    pub(super) fn build_members(&mut self, word: &str) {
        self.word(word);
        for name in ["build_id", "job_name", "image_uri", "error"] {
            self.text(name);
        }
        self.number("duration_seconds");
    }

    fn function(&mut self) -> FunctionData {
        if self.get("spec").is_none() {
            self.fault("spec", "missing");
        }
        FunctionData {
            name: self.required("name"),
            namespace: self.namespace(),
            kind: self.resource_kind(),
            spec: self.object("spec").unwrap_or_default(),
            status: self.object("status"),
        }
    }

    fn build(&mut self, word: &str) -> BuildData {
        self.word(word);
        BuildData {
            function_name: self.required("function_name"),
            namespace: self.namespace(),
            build_id: self.required("build_id"),
            job_name: self.text("job_name"),
            image_uri: self.text("image_uri"),
            status: word.to_owned(),
            error: self.text("error"),
            duration_seconds: self.number("duration_seconds"),
        }
    }

    fn service(&mut self) -> ServiceData {
        ServiceData {
            service_name: self.required("service_name"),
            namespace: self.namespace(),
            url: self.text("url"),
            status: self.object("status"),
        }
    }

    fn status(&mut self) -> StatusData {
        let phase = self.required("phase");
        let known = Phase::ALL.into_iter().find(|known| known.name() == phase);
        if known.is_none() && !phase.is_empty() {
            self.fault("phase", unknown("phase", &phase, &Phase::ALL.map(Phase::name)));
        }
        StatusData {
            function_name: self.required("function_name"),
            namespace: self.namespace(),
            phase: known.unwrap_or_default(),
            conditions: self.typed("conditions", "must be a list of conditions"),
            health_status: self.typed("health_status", "must be healthy, unhealthy or unknown"),
        }
    }

    fn typed<T: serde::de::DeserializeOwned>(&mut self, name: &str, message: &str) -> Option<T> {
        let read = serde_json::from_value(self.get(name)?.clone());
        if read.is_err() {
            self.fault(name, message);
        }
        read.ok()
    }

    pub(super) fn parser(&mut self, status: ParserStatus) -> ParserData {
        self.word(match status {
            ParserStatus::Started => "started",
            ParserStatus::Completed => "completed",
            ParserStatus::Failed => "failed",
        });
        ParserData {
            parser_id: self.required("parser_id"),
            function_name: self.required("function_name"),
            namespace: self.namespace(),
            execution_id: self.required("execution_id"),
            status,
            error: self.text("error"),
            duration_ms: self.number("duration_ms"),
        }
    }
}
