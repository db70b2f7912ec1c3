//! The arguments of `svc mcp add`.

use clap::{Args, Parser, ValueEnum};

use super::super::UsageError;

/// Arguments of `svc mcp add`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AddArgs {
    /// The server's name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) options: AddOptions,
    /// The program and its arguments, or the URL
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND_OR_URL")]
    pub(super) command: Vec<String>,
}

/// Options of `svc mcp add`.
#[derive(Debug, Args)]
pub(super) struct AddOptions {
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
    #[arg(
        long,
        value_enum,
        hide_possible_values = true,
        help = "Where: user (config.toml) or project (this project's .mcp.json, which is approved) [default: user]"
    )]
    pub(super) scope: Option<EntryScope>,
}

/// What stands behind the URL.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct OptionsBehind {
    #[command(flatten)]
    options: AddOptions,
}

impl AddOptions {
    /// Parses options that follow a URL: a URL has no arguments that could be meant.
    pub(super) fn with_those_behind(mut self, arguments: &[String]) -> Result<Self, UsageError> {
        let OptionsBehind { options } =
            OptionsBehind::try_parse_from(arguments).map_err(|error| {
                let text = error.to_string();
                let first = text.lines().next().unwrap_or_default();
                let first = first.trim_start_matches("error: ");
                UsageError(format!("behind the URL: {first}; a server at a URL takes no arguments"))
            })?;
        self.transport = options.transport.or(self.transport);
        self.scope = options.scope.or(self.scope);
        self.header.extend(options.header);
        self.env.extend(options.env);
        Ok(self)
    }

    /// The first argument of the program that looks like an option of `svc mcp add`.
    pub(super) fn among(arguments: &[String]) -> Option<&String> {
        let own = ["-t", "--transport", "-H", "--header", "-e", "--env", "--scope"];
        arguments.iter().find(|argument| {
            let name = argument.split_once('=').map_or(argument.as_str(), |(name, _)| name);
            own.contains(&name)
        })
    }
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
