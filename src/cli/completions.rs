//! `svc completions`: a completion script for a shell.

use std::process::ExitCode;

use clap::{Args, Command};

use super::output;

/// Arguments of `svc completions`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub(super) fn run(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "svc", &mut script);
    output::exact(&script)?;
    Ok(ExitCode::SUCCESS)
}
