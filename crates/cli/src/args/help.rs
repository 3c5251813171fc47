//! The help of the whole program, on one screen.

use super::{Cli, Global};
use clap::{Args, CommandFactory};
use std::fmt::Write;

const GROUPS: [(&str, &[&str]); 3] = [
    ("Resource commands", &["get", "describe", "apply", "diff", "edit", "delete", "wait", "explain"]),
    (
        "Function and delivery commands",
        &[
            "init",
            "dev",
            "run",
            "invoke",
            "logs",
            "history",
            "rollback",
            "event",
            "lane",
            "dlq",
            "subscription",
            "webhook",
        ],
    ),
    (
        "Server commands",
        &["serve", "status", "top", "namespace", "token", "secret", "context", "backup", "check", "demo"],
    ),
];
/// Named on two lines, so that the whole help fits on a screen.
const OTHERS: [&[&str]; 2] = [
    &["rebuild", "cost", "bench", "alerts", "dashboards", "crd", "operator", "fetch"],
    &["config", "upgrade-check", "completion", "version", "options"],
];

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the operation failed: the server refused it, or a check, diff or replay found a problem
  2  the command line or an input file is wrong
  3  the server is not reachable
  4  not found
  5  conflict
 10  `fetch` only: the source cannot be fetched, and a retry cannot help
 70  `serve` only: a panic ended the server
 74  `serve` only: the store failed";

/// The grammar, with its commands in groups.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let groups = groups(&command);
    command.help_template(format!(
        "{{about}}\n\nUsage: klambda [OPTIONS] <COMMAND>\n\n{groups}\
         `klambda COMMAND --help` explains a command.\n\
         `klambda options` lists the global options and the exit codes."
    ))
}

fn groups(command: &clap::Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "{title}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let _ = writeln!(text, "  {name:<15}{}", about.map(ToString::to_string).unwrap_or_default());
        }
        text.push('\n');
    }
    let others = OTHERS.map(|names| names.join(", ")).join(",\n        ");
    let _ = writeln!(text, "Others: {others}\n");
    text
}

/// What `klambda options` prints.
pub fn options() -> String {
    let command = Global::augment_args(clap::Command::new("klambda"));
    let mut command = command.max_term_width(110).help_template("{all-args}").disable_help_flag(true);
    format!("{}\n\n{EXIT_CODES}\n", command.render_help().to_string().trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Cli::command();
        let mut visible: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.extend(OTHERS.concat());
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(visible, grouped);
    }

    #[test]
    fn the_help_fits_on_one_screen() {
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 45, "{} lines", help.lines().count());
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
