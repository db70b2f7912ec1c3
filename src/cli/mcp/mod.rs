//! `svc mcp`: child MCP servers. Commands that change files work without a daemon; a running daemon
//! reads the files again at once.

mod credentials;
mod edit;
mod search;
mod server_file;
mod show;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use svc_model::hook::HookClient;
use svc_sys::config::hook_client;

pub(super) use self::edit::AddArgs;
pub(super) use self::server_file::change_config;
use super::{Context, ExitResult};

/// `svc mcp`, which alone lists the servers.
#[derive(Debug, Args)]
pub(super) struct McpArgs {
    #[command(subcommand)]
    command: Option<McpCommand>,
}

#[derive(Debug, Subcommand)]
pub(super) enum McpCommand {
    /// List all configured servers, with their state and the entry that is used
    #[command(after_help = "Examples:\n  svc mcp\n  svc mcp list --tools\n\n\
        In a project, its own .mcp.json counts as well.")]
    List {
        /// Show the tools, resources and prompts of each server
        #[arg(long)]
        tools: bool,
    },
    /// Show a server
    #[command(after_help = "Example:\n  svc mcp get files")]
    Get(ServerName),
    /// List the tools of a server
    #[command(after_help = "Example:\n  svc mcp tools files")]
    Tools(ServerName),
    /// Add a server: a program, or a URL
    #[command(after_help = "Examples:\n  svc mcp add tickets https://tickets.example.com/mcp\n  \
        svc mcp add wiki https://wiki.example.com/mcp -H 'Authorization: Bearer ${WIKI_TOKEN}'\n  svc mcp add files -- npx -y @modelcontextprotocol/server-filesystem /srv\n  \
        svc mcp add tickets -e TOKEN='${TICKETS_TOKEN}' --scope project -- tickets-mcp\n\n\
        What stands after a program is the program's own: options of `svc mcp add` go before it.\n\
        ${VAR} and ${VAR:-default} are filled in from `svc mcp secret set`, then from the daemon's environment.")]
    Add(AddArgs),
    /// Add a server by its entry in JSON
    #[command(after_help = "Example:\n  \
        svc mcp add-json files '{\"command\": \"files-mcp\", \"sharing\": \"shared\"}'")]
    AddJson {
        /// The server's name
        name: String,
        /// The entry, as a file's `mcpServers` has it
        entry: String,
    },
    /// Remove a server's entry: the project's, else that of config.toml
    #[command(after_help = "Example:\n  svc mcp remove files")]
    Remove(ServerName),
    /// Turn a server on, whatever its entry says
    #[command(after_help = "Example:\n  svc mcp enable files")]
    Enable(ServerName),
    /// Turn a server off
    #[command(after_help = "Example:\n  svc mcp disable files")]
    Disable(ServerName),
    /// Restart a server at once
    #[command(after_help = "Example:\n  svc mcp reconnect files")]
    Reconnect(ServerName),
    /// Approve a project's .mcp.json as it is now, or the changed definitions of a server
    #[command(after_help = "Examples:\n  svc mcp approve\n  svc mcp approve tickets\n\n\
        The file starts programs: look at it first. After a change it must be approved again.\n\
        Definitions that its servers change later wait until you approve the server by its name.")]
    Approve {
        /// The file, or the name of a server [default: .mcp.json of this project]
        what: Option<PathBuf>,
    },
    /// Print the end of a server's error output
    #[command(after_help = "Example:\n  svc mcp logs files")]
    Logs(ServerName),
    /// Log in to a server at a URL, in a browser
    #[command(
        after_help = "Examples:\n  svc mcp login tickets\n  svc mcp login tickets --no-browser --port 8765\n\n\
        If the browser runs elsewhere, paste the address to which it was redirected."
    )]
    Login {
        /// The server's name
        name: String,
        /// Print the address, and open no browser
        #[arg(long)]
        no_browser: bool,
        /// The port of this machine for the redirect [default: the entry's, else any]
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
    },
    /// Log out of a server, and revoke its tokens
    #[command(after_help = "Example:\n  svc mcp logout tickets")]
    Logout(ServerName),
    /// Secrets that ${VAR} in a server's entry stands for
    #[command(
        subcommand,
        after_help = "Example:\n  pass show tickets | svc mcp secret set tickets TICKETS_TOKEN"
    )]
    Secret(SecretCommand),
    /// Copy the servers of another coding agent into config.toml, and show what changes
    #[command(
        after_help = "Examples:\n  svc mcp import claude-code\n  svc mcp import claude-code --move\n\nAn entry that starts svc is left out, and so is one whose name is in config.toml. The client goes on starting its own entries, too, unless they are moved; `svc uninstall` puts them back."
    )]
    Import {
        /// claude-code, codex, gemini or opencode
        #[arg(value_parser = hook_client)]
        client: HookClient,
        /// Remove the entries from the client's own file, so that each server starts once
        #[arg(long = "move")]
        is_move: bool,
    },
    /// Search the tools of all servers, or a registry of servers
    #[command(after_help = "Examples:\n  svc mcp search 'create an issue'\n  \
        svc mcp search --registry github")]
    Search {
        /// What you want to do; for a registry, words of a name or description
        query: String,
        /// Search the registry of `sources.registry`, whose list is kept for a day
        #[arg(long)]
        registry: bool,
    },
    /// Call a server's tool and print its result; exit code 1 if it fails
    #[command(after_help = "Example:\n  svc mcp call files read_file --arg path=/srv/notes.md")]
    Call {
        /// The server's name
        name: String,
        /// The tool, as the server calls it or as `svc mcp tools` shows it
        tool: String,
        /// One argument; repeatable. KEY=@FILE reads its value from a file, KEY=@- from standard
        /// input
        #[arg(long = "arg", value_name = "KEY=VALUE")]
        arg: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(super) struct ServerName {
    /// The server's name
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct SecretName {
    /// The server's name
    name: String,
    /// Its name: NAME where the entry says ${NAME}
    key: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// Store a secret; its value is read from standard input or from a prompt
    #[command(after_help = "Example:\n  \
        pass show tickets | svc mcp secret set tickets TICKETS_TOKEN")]
    Set(SecretName),
    /// List the names of a server's secrets
    #[command(after_help = "Example:\n  svc mcp secret list tickets")]
    List(ServerName),
    /// Delete a secret
    #[command(after_help = "Example:\n  svc mcp secret unset tickets TICKETS_TOKEN")]
    Unset(SecretName),
}

impl McpArgs {
    /// The server that is added, if that is the command.
    pub(super) fn added(&self) -> Option<&AddArgs> {
        match &self.command {
            Some(McpCommand::Add(args)) => Some(args),
            _ => None,
        }
    }
}

pub(super) async fn run(context: &Context, args: McpArgs) -> ExitResult {
    match args.command.unwrap_or(McpCommand::List { tools: false }) {
        McpCommand::List { tools } => show::list(context, tools).await,
        McpCommand::Get(server) => show::get(context, &server.name).await,
        McpCommand::Tools(server) => show::tools(context, &server.name).await,
        McpCommand::Reconnect(server) => show::reconnect(context, &server.name).await,
        McpCommand::Logs(server) => show::logs(context, &server.name).await,
        McpCommand::Call { name, tool, arg } => show::call(context, &name, &tool, arg).await,
        McpCommand::Login { name, no_browser, port } => {
            credentials::log_in(context, &name, no_browser, port).await
        }
        McpCommand::Logout(server) => credentials::log_out(context, &server.name).await,
        McpCommand::Secret(SecretCommand::Set(SecretName { name, key })) => {
            credentials::set_secret(context, &name, &key).await
        }
        McpCommand::Secret(SecretCommand::List(server)) => {
            credentials::list_secrets(context, &server.name)
        }
        McpCommand::Secret(SecretCommand::Unset(SecretName { name, key })) => {
            credentials::unset_secret(context, &name, &key).await
        }
        McpCommand::Import { client, is_move } => {
            server_file::import(context, client, is_move).await
        }
        McpCommand::Search { query, registry } => search::search(context, &query, registry).await,
        McpCommand::Add(args) => edit::add(context, args).await,
        McpCommand::AddJson { name, entry } => edit::add_json(context, &name, &entry).await,
        McpCommand::Remove(server) => edit::remove(context, &server.name).await,
        McpCommand::Enable(server) => edit::switch(context, &server.name, true).await,
        McpCommand::Disable(server) => edit::switch(context, &server.name, false).await,
        McpCommand::Approve { what } => edit::approve(context, what).await,
    }
}
