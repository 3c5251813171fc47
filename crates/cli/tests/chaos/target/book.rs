//! The record of a call: one line of text.

use std::time::{SystemTime, UNIX_EPOCH};

/// One call, as it came in.
#[derive(Clone, Debug)]
pub struct Call {
    /// When, in microseconds since 1970.
    pub at: u64,
    /// Of the server that made it, which says so in `x-epoch`.
    pub epoch: u64,
    /// The path of the target's URL, without its slash.
    pub subscription: String,
    pub key: String,
    pub id: String,
    pub lane_sequence: Option<u64>,
    pub previous_id: Option<String>,
    pub order_status: Option<String>,
    pub verdict: Verdict,
    /// Another call of its lane was open.
    pub overlaps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Acknowledged,
    /// Answered 503.
    Refused,
    /// Never answered.
    Hung,
    /// Its caller was gone before it could be answered.
    Abandoned,
}

const VERDICTS: [(Verdict, &str); 4] = [
    (Verdict::Acknowledged, "acknowledged"),
    (Verdict::Refused, "refused"),
    (Verdict::Hung, "hung"),
    (Verdict::Abandoned, "abandoned"),
];

impl Call {
    /// A call without a place in a lane is in order with no other.
    pub fn lane(&self) -> (String, String) {
        let name = if self.lane_sequence.is_some() { &self.key } else { &self.id };
        (self.subscription.clone(), name.clone())
    }

    pub fn line(&self) -> String {
        let verdict = VERDICTS.iter().find(|(verdict, _)| *verdict == self.verdict).expect("one of four").1;
        let number = self.lane_sequence.map(|number| number.to_string()).unwrap_or_default();
        let previous = self.previous_id.as_deref().unwrap_or_default();
        let status = self.order_status.as_deref().unwrap_or_default();
        let Call { at, epoch, subscription, key, id, overlaps, .. } = self;
        format!(
            "{at}\t{epoch}\t{subscription}\t{key}\t{id}\t{number}\t{previous}\t{status}\t{verdict}\t{overlaps}\n"
        )
    }

    pub fn parse(line: &str) -> Call {
        let fields: Vec<&str> = line.split('\t').collect();
        let [at, epoch, subscription, key, id, number, previous, status, verdict, overlaps] = fields[..]
        else {
            panic!("not a call: {line:?}");
        };
        let text = |field: &str| (!field.is_empty()).then(|| field.to_owned());
        let number_of = |field: &str| field.parse::<u64>().expect("a number");
        Call {
            at: number_of(at),
            epoch: number_of(epoch),
            subscription: subscription.to_owned(),
            key: key.to_owned(),
            id: id.to_owned(),
            lane_sequence: text(number).map(|number| number_of(&number)),
            previous_id: text(previous),
            order_status: text(status),
            verdict: VERDICTS.iter().find(|(_, name)| *name == verdict).expect("one of four").0,
            overlaps: overlaps == "true",
        }
    }
}

/// The clock that all processes share.
pub fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}
