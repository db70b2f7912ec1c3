//! The flags that every command takes.

use std::path::PathBuf;

use clap::Args;

use super::output::ColorChoice;

#[derive(Debug, Default, Args)]
pub(super) struct GlobalFlags {
    /// Print JSON: one document, or one line per item where the output is endless
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Print exact times instead of how long ago
    #[arg(long, global = true)]
    pub(super) utc: bool,
    /// When to use colours [default: auto]
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true,
        help = "Use colours: auto, always or never [default: auto; NO_COLOR is never]"
    )]
    pub(super) color: ColorChoice,
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
