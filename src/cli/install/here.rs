//! The command with which clients run this program, and the clients that a command selects.

use std::path::Path;

use svc_install::{ClientCommand, KnownClient};
use svc_model::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
use svc_sys::config::Flags;

use crate::cli::{Context, program};

/// The command with which clients run this program and its data folder.
pub(super) fn command(context: &Context) -> anyhow::Result<ClientCommand> {
    let path = program::own_name(&context.env)?;
    let default_home = context.env.os("HOME").map(|home| Path::new(home).join(".local/share/svc"));
    Ok(ClientCommand::new(&path, &context.paths.home, default_home.as_deref())?)
}

/// The tools of svc that models are shown.
pub(super) fn listed_tools(context: &Context) -> Vec<&'static str> {
    let config = context.config(&Flags::default());
    let shows_all = config.is_ok_and(|config| *config.sources_expose == Some(ToolExposure::All));
    if shows_all { HARMLESS_TOOLS.to_vec() } else { SHORT_LIST.to_vec() }
}

/// The clients that are named, or else those that `otherwise` accepts, in the order of all clients.
pub(super) fn chosen(
    named: &[KnownClient],
    otherwise: impl Fn(KnownClient) -> bool,
) -> Vec<KnownClient> {
    let is_chosen = |client: KnownClient| {
        if named.is_empty() { otherwise(client) } else { named.contains(&client) }
    };
    KnownClient::all().iter().copied().filter(|client| is_chosen(*client)).collect()
}

/// The clients' names, separated by commas.
pub(super) fn names(clients: &[KnownClient]) -> String {
    clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ")
}
