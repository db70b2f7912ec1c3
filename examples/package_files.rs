//! What a package holds beside the program: a page of the manual for each command, and completion
//! scripts. `packaging/release` runs it: `cargo run --example package_files FOLDER`. It is no
//! command of `svc`, which then need not know how to write a page.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// The shells whose scripts packages have, and the names by which these look for them.
const COMPLETIONS: [(Shell, &str); 3] =
    [(Shell::Bash, "svc.bash"), (Shell::Zsh, "_svc"), (Shell::Fish, "svc.fish")];

fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    write_package_files(&folder.ok_or_else(|| io::Error::other("name a folder"))?)
}

/// Writes the folders `man` and `completions` into `folder`.
pub(crate) fn write_package_files(folder: &Path) -> io::Result<()> {
    let mut command = svc::cli::command();
    command.build();
    let (pages, scripts) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&scripts)?;
    for (shell, name) in COMPLETIONS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "svc", &mut script);
        fs::write(scripts.join(name), script)?;
    }
    write_page(&pages, &command, "svc")
}

/// Writes the page of a command that is called `name`, and those of its own commands.
fn write_page(folder: &Path, command: &Command, name: &str) -> io::Result<()> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    fs::write(folder.join(format!("{}.1", name.replace(' ', "-"))), page)?;
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help")
        .try_for_each(|command| {
            write_page(folder, command, &format!("{name} {}", command.get_name()))
        })
}
