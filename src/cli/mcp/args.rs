//! What `svc mcp add` takes.

use clap::{Args, ValueEnum};

/// Arguments of `svc mcp add`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AddArgs {
    /// The server's name
    pub(super) name: String,
    /// How it is reached; the default follows from what is named
    #[arg(
        short,
        long,
        value_enum,
        hide_possible_values = true,
        help = "How it is reached: stdio, http or sse [default: http for a URL, else stdio]"
    )]
    pub(super) transport: Option<EntryTransport>,
    /// A header of each request, as in `X-Key: value`; repeatable
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(super) header: Vec<String>,
    /// A variable of its environment; repeatable
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    pub(super) env: Vec<String>,
    /// Which file: config.toml (user), or this project's .mcp.json, which is approved
    #[arg(long, value_enum, default_value_t = EntryScope::User, hide_possible_values = true, hide_default_value = true, help = "Where: user (config.toml) or project (this project's .mcp.json, which is approved) [default: user]")]
    pub(super) scope: EntryScope,
    /// The program and its arguments, or the URL
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND_OR_URL")]
    pub(super) command: Vec<String>,
}

/// Which file an entry goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EntryScope {
    User,
    Project,
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EntryTransport {
    Stdio,
    Http,
    Sse,
}
