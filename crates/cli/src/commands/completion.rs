//! `completion`: the script that teaches a shell this grammar.

use crate::args::{Cli, Completion};
use clap::CommandFactory;
use std::io::Write;

pub fn run(out: &mut dyn Write, args: &Completion) -> anyhow::Result<()> {
    // Into memory first: the generator panics if its writer fails, and ours may be a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "klambda", &mut script);
    out.write_all(&script)?;
    Ok(())
}
