//! Parsers: functions that are called once for a received event. Another event reports the result.

use crate::commands::done;
use crate::control::Control;
use crate::invoke::{Error, FAILED_RETRY, FunctionResponse};
use bytes::Bytes;
use klambda_core::event::{Attributes as _, Event};
use klambda_core::kinds::EventKind;
use klambda_core::outcome::CallOutcome;
use klambda_dispatch::documents::DocumentEvent;
use klambda_functions::events::{Identity, Named, ParserData, ParserStatus, build_event};
use klambda_functions::hash;
use klambda_functions::name::Name;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long to wait for a function that is not ready, and how often to check.
const READY_WITHIN: Duration = Duration::from_secs(60);
const READY_LOOK: Duration = Duration::from_millis(200);
/// Longer error messages are truncated.
const ERROR_CHARS_MAX: usize = 1000;

impl Control {
    /// A redelivered event calls the function again, but the result is reported only once.
    pub(crate) async fn run_parser(&self, named: &Named, parser: &ParserData, event: &Event) -> CallOutcome {
        let name = Name::new(&named.namespace, &named.name);
        if let Err(error) = self.find(named.kind, &name) {
            return CallOutcome::Invalid(error.to_string());
        }
        let began = Instant::now();
        let body = event.json_data().map(Bytes::copy_from_slice).unwrap_or_default();
        let error = match self.call_when_ready(named, &name, body).await {
            Ok(answer) if matches!(answer.status, 200..=299) => None,
            Ok(answer) => Some(refusal(&answer)),
            Err(error) => Some(error.to_string()),
        };
        let (kind, status) = match error {
            None => (EventKind::ParserCompleted, ParserStatus::Completed),
            Some(_) => (EventKind::ParserFailed, ParserStatus::Failed),
        };
        let duration_ms = Some(began.elapsed().as_secs_f64() * 1000.0);
        let ended = ParserData { status, error, duration_ms, ..parser.clone() };
        self.tell(&name, event, kind, &ended).await
    }

    /// Waits here while the function is being built. Reporting "not ready" would delay the events of all other functions.
    async fn call_when_ready(
        &self,
        named: &Named,
        name: &Name,
        body: Bytes,
    ) -> Result<FunctionResponse, Error> {
        let until = Instant::now() + READY_WITHIN;
        loop {
            let invocation = self.prepare(named.kind, name.clone(), std::iter::empty(), body.clone())?;
            match self.invoke(invocation).await {
                Err(Error::Unavailable { retry_after, .. })
                    if retry_after < FAILED_RETRY && Instant::now() < until =>
                {
                    tokio::time::sleep(READY_LOOK).await;
                }
                other => return other,
            }
        }
    }

    async fn tell(&self, name: &Name, cause: &Event, kind: EventKind, data: &ParserData) -> CallOutcome {
        let identity = Identity {
            uid: hash::of(&(&cause.source, &cause.id)),
            generation: 0,
            transition: 0,
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
        };
        let data = serde_json::to_value(data).unwrap_or_default();
        let event = build_event(&identity, kind, &data, self.clock.now());
        let Ok(handle) = self.handle() else { return failed("the server is starting") };
        let told = DocumentEvent { namespace: name.namespace().to_owned(), event };
        match handle.put_documents(Vec::new(), vec![told]).await {
            Ok(Ok(_)) => done(),
            Ok(Err(error)) => failed(&error.to_string()),
            Err(stopped) => failed(&stopped.to_string()),
        }
    }
}

/// Describes an unsuccessful response, with the error message if the wrapper sent one.
fn refusal(answer: &FunctionResponse) -> String {
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    match said.pointer("/error/message").and_then(Value::as_str) {
        Some(message) => {
            let message: String = message.chars().take(ERROR_CHARS_MAX).collect();
            format!("the function returned status {}: {message}", answer.status)
        }
        None => format!("the function returned status {}", answer.status),
    }
}

fn failed(why: &str) -> CallOutcome {
    CallOutcome::Status { code: 503, retry_after_ms: Some(1000), detail: why.to_owned() }
}
