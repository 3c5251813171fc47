//! The wrappers follow their contract: `runtimes/test` checks every rule over real HTTP.

use std::path::Path;
use std::process::Command;

#[test]
fn every_wrapper_keeps_the_contract() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runtimes/test");
    let output = Command::new("python3").arg(script).output().expect("python3 is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.ends_with("rules hold")).count(), 3, "{text}");
}
