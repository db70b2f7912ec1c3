//! The flags that every command takes.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(super) struct GlobalFlags {
    /// Print JSON: one document, or one line per item where the output is endless
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// The data folder
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help = "The data folder [env: SVC_HOME] [default: ~/.local/share/svc]"
    )]
    pub(super) home: Option<PathBuf>,
    /// The daemon's URL
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help = "The daemon's URL [env: SVC_URL] [default: the socket in the data folder]"
    )]
    pub(super) url: Option<String>,
}
