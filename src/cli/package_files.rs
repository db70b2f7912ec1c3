//! `svc package-files`: what a package holds beside the program. Hidden: packages are made by `packaging/release`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::output;

/// The shells whose scripts packages have, and the names by which these look for them.
const COMPLETIONS: [(Shell, &str); 3] =
    [(Shell::Bash, "svc.bash"), (Shell::Zsh, "_svc"), (Shell::Fish, "svc.fish")];

/// Arguments of `svc package-files`.
#[derive(Debug, Clone, Args)]
pub(super) struct PackageFilesArgs {
    /// The folder that they are written into
    folder: PathBuf,
}

/// Writes a page of the manual for each command, and completion scripts.
pub(super) fn run(args: &PackageFilesArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    command.build();
    let (pages, scripts) = (args.folder.join("man"), args.folder.join("completions"));
    for folder in [&pages, &scripts] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for (shell, name) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "svc", &mut script);
        write(&scripts.join(name), &script)?;
    }
    write_page(&pages, &command, "svc")?;
    output::line(&format!("{} has the pages and scripts", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command that is called `name`, and those of its own commands.
fn write_page(folder: &Path, command: &Command, name: &str) -> anyhow::Result<()> {
    let page_name = name.replace(' ', "-");
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    write(&folder.join(format!("{page_name}.1")), &page)?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .try_for_each(|command| {
            write_page(folder, command, &format!("{name} {}", command.get_name()))
        })
}

fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
