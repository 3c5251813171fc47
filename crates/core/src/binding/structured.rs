//! The CloudEvents JSON format: a single event or a batch. The parser makes one pass over the text. The data is not
//! copied: it shares the memory of the body.

use super::draft::Draft;
use super::{Limits, Mode, Parsed, Refusal, Rejected};
use crate::event::{Data, Event, Form, Value, is_json_media};
use crate::fault::Fault;
use crate::json::{Scalar, scalar};
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(super) fn single(body: &Bytes, limits: &Limits) -> Result<Parsed, Refusal> {
    let mut draft = Draft::new(limits, None);
    let members = read_members(text(body)?, &mut draft).map_err(|error| bad_json(&error))?;
    let unversioned = Cell::new(0);
    let events = vec![judge(draft, &members, body, &unversioned)];
    Ok(Parsed { mode: Mode::Structured, events, unversioned: unversioned.get() })
}

pub(super) fn batch(body: &Bytes, limits: &Limits) -> Result<Parsed, Refusal> {
    let text = text(body)?;
    let unversioned = Cell::new(0);
    let read = |pass: Pass| {
        unversioned.set(0);
        let mut json = serde_json::Deserializer::from_str(text);
        let judged = BatchSeed { body, limits, pass, unversioned: &unversioned }.deserialize(&mut json)?;
        json.end().map(|()| judged)
    };
    // An error in the quick pass may concern only one event. The careful pass finds out which.
    let events = read(Pass::Quick).or_else(|_| read(Pass::Careful)).map_err(|error| bad_json(&error))?;
    if events.len() > limits.batch_events_max {
        return Err(Refusal::TooLarge { what: "events in a batch", limit: limits.batch_events_max });
    }
    Ok(Parsed { mode: Mode::Batch, events, unversioned: unversioned.get() })
}

fn judge(
    mut draft: Draft<'_>,
    members: &Members<'_>,
    body: &Bytes,
    unversioned: &Cell<usize>,
) -> Result<Event, Rejected> {
    let data = members.data(&mut draft, body);
    let is_assumed = draft.assume_version();
    let event = draft.finish(data);
    unversioned.set(unversioned.get() + usize::from(is_assumed && event.is_ok()));
    event
}

/// How the parser reads a batch.
#[derive(Clone, Copy)]
enum Pass {
    /// In a single pass over the body.
    Quick,
    /// Extracts the text of each event first, then parses each text separately.
    Careful,
}

fn element(index: usize, raw: &str, seed: &BatchSeed<'_>) -> Result<Event, Rejected> {
    let mut draft = Draft::new(seed.limits, Some(index));
    let members = read_members(raw, &mut draft).unwrap_or_else(|error| {
        draft.fault("", error.to_string());
        Members::default()
    });
    judge(draft, &members, seed.body, seed.unversioned)
}

fn text(body: &Bytes) -> Result<&str, Refusal> {
    std::str::from_utf8(body).map_err(|error| bad_json(&error))
}

fn bad_json(error: &dyn fmt::Display) -> Refusal {
    Refusal::BadRequest(vec![Fault::new("body", format!("not a CloudEvent in JSON: {error}"))])
}

/// Stores the attributes in the draft. Returns `data` and `data_base64`, which are not attributes.
fn read_members<'de>(json: &'de str, draft: &mut Draft<'_>) -> Result<Members<'de>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(json);
    let members = MembersSeed { draft }.deserialize(&mut json)?;
    json.end()?;
    Ok(members)
}

#[derive(Default)]
struct Members<'de> {
    data: Option<&'de str>,
    data_base64: Option<&'de str>,
}

impl Members<'_> {
    fn data(&self, draft: &mut Draft<'_>, body: &Bytes) -> Option<Data> {
        match (self.data, self.data_base64) {
            (Some(_), Some(_)) => {
                draft.fault("data_base64", "specify either data or data_base64, not both");
                None
            }
            (Some(raw), None) => plain_data(draft, body, raw),
            (None, Some(raw)) => base64_data(draft, raw),
            (None, None) => None,
        }
    }
}

fn plain_data(draft: &mut Draft<'_>, body: &Bytes, raw: &str) -> Option<Data> {
    let is_json = draft.content_type().is_none_or(is_json_media);
    if is_json || !raw.starts_with('"') {
        return Some(Data { bytes: body.slice_ref(raw.as_bytes()), form: Form::Json });
    }
    match scalar(raw) {
        Scalar::String(Cow::Borrowed(text)) => {
            Some(Data { bytes: body.slice_ref(text.as_bytes()), form: Form::Text })
        }
        Scalar::String(Cow::Owned(text)) => Some(Data { bytes: Bytes::from(text), form: Form::Text }),
        _ => {
            draft.fault("data", "the string contains an invalid escape sequence");
            None
        }
    }
}

fn base64_data(draft: &mut Draft<'_>, raw: &str) -> Option<Data> {
    let decoded = match scalar(raw) {
        Scalar::String(text) => BASE64.decode(text.as_bytes()).ok(),
        _ => None,
    };
    if decoded.is_none() {
        draft.fault("data_base64", "must be a base64 string");
    }
    decoded.map(|bytes| Data { bytes: Bytes::from(bytes), form: Form::Binary })
}

struct MembersSeed<'d, 'l> {
    draft: &'d mut Draft<'l>,
}

impl<'de> DeserializeSeed<'de> for MembersSeed<'_, '_> {
    type Value = Members<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Members<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MembersSeed<'_, '_> {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a CloudEvent object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Members::default();
        while let Some(name) = map.next_key::<&'de RawValue>()? {
            let raw = map.next_value::<&'de RawValue>()?.get();
            // Parses names the same way as values, so that a name that is not valid text is an ordinary fault.
            let Scalar::String(name) = scalar(name.get()) else {
                self.draft.fault("", "a member name contains an invalid escape sequence");
                continue;
            };
            match &*name {
                _ if raw == "null" => {}
                "data" => set_once(self.draft, &mut members.data, "data", raw),
                "data_base64" => set_once(self.draft, &mut members.data_base64, "data_base64", raw),
                name => set_attribute(self.draft, name, raw),
            }
        }
        Ok(members)
    }
}

fn set_once<'de>(draft: &mut Draft<'_>, member: &mut Option<&'de str>, name: &str, raw: &'de str) {
    if member.replace(raw).is_some() {
        draft.fault(name, "must not appear more than once");
    }
}

fn set_attribute(draft: &mut Draft<'_>, name: &str, raw: &str) {
    let number = |text: &str| text.parse::<i32>().ok();
    match scalar(raw) {
        Scalar::String(text) => draft.set(name, Value::String(text.into_owned())),
        Scalar::Boolean(flag) => draft.set(name, Value::Boolean(flag)),
        Scalar::Number(text) => match number(text) {
            Some(number) => draft.set(name, Value::Integer(number.into())),
            None => draft.fault(name, "a number must be a 32-bit integer; send other numbers as strings"),
        },
        Scalar::Unreadable => draft.fault(name, "the string contains an invalid escape sequence"),
        Scalar::Compound | Scalar::Null => draft.fault(name, "must be a string, a boolean or an integer"),
    }
}

/// Deserializes the events of a batch and checks each one on its own. Stops at one event more than the limit.
struct BatchSeed<'b> {
    body: &'b Bytes,
    limits: &'b Limits,
    pass: Pass,
    unversioned: &'b Cell<usize>,
}

impl BatchSeed<'_> {
    fn next<'de, A: SeqAccess<'de>>(
        &self,
        seq: &mut A,
        index: usize,
    ) -> Result<Option<Result<Event, Rejected>>, A::Error> {
        if let Pass::Careful = self.pass {
            let raw = seq.next_element::<&RawValue>()?;
            return Ok(raw.map(|raw| element(index, raw.get(), self)));
        }
        let mut draft = Draft::new(self.limits, Some(index));
        let members = seq.next_element_seed(ElementSeed { draft: &mut draft })?;
        Ok(members.map(|members| judge(draft, &members, self.body, self.unversioned)))
    }
}

impl<'de> DeserializeSeed<'de> for BatchSeed<'_> {
    type Value = Vec<Result<Event, Rejected>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BatchSeed<'_> {
    type Value = Vec<Result<Event, Rejected>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of CloudEvents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut judged = Vec::new();
        while judged.len() <= self.limits.batch_events_max {
            let Some(event) = self.next(&mut seq, judged.len())? else { return Ok(judged) };
            judged.push(event);
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(judged)
    }
}

/// Deserializes one element of a batch. An element that is not an object becomes a fault of that event.
struct ElementSeed<'d, 'l> {
    draft: &'d mut Draft<'l>,
}

impl<'de> DeserializeSeed<'de> for ElementSeed<'_, '_> {
    type Value = Members<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Members<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl ElementSeed<'_, '_> {
    fn no_event<'de>(self, what: &str) -> Members<'de> {
        self.draft.fault("", format!("must be a CloudEvent object, not {what}"));
        Members::default()
    }
}

impl<'de> Visitor<'de> for ElementSeed<'_, '_> {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a CloudEvent object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Members<'de>, A::Error> {
        MembersSeed { draft: self.draft }.visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Members<'de>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.no_event("an array"))
    }

    fn visit_str<E>(self, _: &str) -> Result<Members<'de>, E> {
        Ok(self.no_event("a string"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Members<'de>, E> {
        Ok(self.no_event("a boolean"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Members<'de>, E> {
        Ok(self.no_event("a number"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Members<'de>, E> {
        Ok(self.no_event("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Members<'de>, E> {
        Ok(self.no_event("a number"))
    }

    fn visit_unit<E>(self) -> Result<Members<'de>, E> {
        Ok(self.no_event("null"))
    }
}
