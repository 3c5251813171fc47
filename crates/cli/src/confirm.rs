//! Asks a person before a command changes something that cannot be undone.

use crate::exit::Usage;
use anyhow::bail;
use std::io::{self, BufRead, IsTerminal};

/// Asks before a change that cannot be undone. Without a terminal the command fails unless `--yes` is given.
/// `action` continues "klambda will …", for example `delete namespace/shop`.
pub fn confirm(action: &str, yes: bool) -> anyhow::Result<()> {
    match (yes, io::stdin().is_terminal()) {
        (true, _) => Ok(()),
        (false, true) => ask(action, &mut io::stdin().lock()),
        (false, false) => Err(refusal(action).into()),
    }
}

fn refusal(action: &str) -> Usage {
    Usage(format!("refusing to {action} without confirmation: stdin is not a terminal; add --yes to confirm"))
}

fn ask(action: &str, input: &mut dyn BufRead) -> anyhow::Result<()> {
    eprint!("{}? [y/N] ", capitalized(action));
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    if !is_yes(&answer) {
        bail!("cancelled; nothing changed");
    }
    Ok(())
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_confirms() {
        for yes in ["y\n", "Y\n", " yes \n"] {
            assert!(ask("purge lane/orders/a", &mut yes.as_bytes()).is_ok(), "{yes:?}");
        }
        for no in ["\n", "", "n\n", "yess\n"] {
            assert!(ask("purge lane/orders/a", &mut no.as_bytes()).is_err(), "{no:?}");
        }
    }

    #[test]
    fn the_refusal_names_the_action_and_the_flag() {
        let text = refusal("delete namespace/shop").to_string();
        assert!(text.contains("delete namespace/shop") && text.contains("--yes"), "{text}");
        assert_eq!(capitalized("élan"), "Élan");
        assert_eq!(capitalized(""), "");
    }
}
