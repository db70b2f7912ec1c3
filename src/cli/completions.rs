//! `svc completions`: a script for the user's shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory as _};

use super::{args::Cli, output};

/// Arguments of `svc completions`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "svc", &mut script);
    output::raw(&script)?;
    Ok(ExitCode::SUCCESS)
}
