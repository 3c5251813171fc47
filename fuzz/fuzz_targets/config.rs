//! The configuration: files, and single settings. A file and the environment must give the same result.
#![no_main]

use klambda_fuzz::input::Input;
use klambda_server::config::{Config, Error, Overrides, names};
use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    match mode % 2 {
        0 => check(&read(Some(rest), &[])),
        _ => setting(&mut Input::new(rest)),
    };
});

/// One setting, as text in a file and in the environment.
fn setting(input: &mut Input<'_>) {
    let all: Vec<(&str, String)> = names().collect();
    let (name, variable) = &all[input.below(all.len())];
    let Ok(value) = std::str::from_utf8(input.rest()) else { return };
    // YAML does not allow control characters, not even in quotes.
    if value.is_empty() || value.contains(|c: char| c.is_control() || !is_yaml(c)) {
        return;
    }
    let quoted = serde_json::Value::from(value).to_string();
    let nested = name.rsplit('.').fold(quoted, |inner, part| format!("{{\"{part}\": {inner}}}"));
    let from_file = read(Some(nested.as_bytes()), &[]);
    let from_environment = read(None, &[(variable, value)]);
    check(&from_file);
    check(&from_environment);
    match (from_file, from_environment) {
        (Ok(file), Ok(environment)) => assert_eq!(file, environment, "{name}: {value:?}"),
        (Err(_), Err(_)) => {}
        (file, environment) => {
            panic!("{name} = {value:?}: {file:?} from the file, {environment:?} from {variable}")
        }
    }
}

/// The characters that YAML calls printable.
fn is_yaml(c: char) -> bool {
    !matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}' | '\u{2028}' | '\u{2029}')
}

fn read(file: Option<&[u8]>, variables: &[(&str, &str)]) -> Result<Config, Error> {
    let path = file.map(|bytes| {
        let path = scratch();
        std::fs::write(&path, bytes).expect("the temporary file is writable");
        path
    });
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_sources(path.as_deref(), variables, Overrides::default())
}

fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("config-{}", std::process::id()))
}

fn check(read: &Result<Config, Error>) {
    match read {
        Ok(config) => {
            let limits = &config.limits;
            assert!(limits.event_bytes <= limits.body_bytes && limits.body_bytes <= limits.held_bytes / 4);
            assert!(config.store.segment_bytes >= limits.body_bytes as u64);
            assert!(limits.connections > 0 && limits.concurrency > 0 && limits.batch_events > 0);
            assert!(config.delivery.breaker.ratio > 0.0 && config.delivery.breaker.ratio <= 1.0);
            assert_eq!(config.tls.cert.is_some(), config.tls.key.is_some());
            let _ = config.exposure();
        }
        Err(Error::Invalid(wrong)) => {
            assert!(!wrong.is_empty(), "rejected without a reason");
            assert!(wrong.iter().all(|wrong| !wrong.name.is_empty() && !wrong.message.is_empty()));
        }
        Err(other) => assert!(!other.to_string().is_empty()),
    }
}
