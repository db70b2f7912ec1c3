//! How clients run this program, and which clients a command means.

use std::path::Path;

use svc_install::{ClientCommand, KnownClient};
use svc_model::{HARMLESS_TOOLS, SHORT_LIST, ToolExposure};
use svc_sys::config::Flags;

use crate::cli::{Context, program};

/// How clients run the program that runs now, with the data folder that it uses.
pub(super) fn command(context: &Context) -> anyhow::Result<ClientCommand> {
    let path = program::own_name(&context.env)?;
    let default_home = context.env.os("HOME").map(|home| Path::new(home).join(".local/share/svc"));
    Ok(ClientCommand::new(&path, &context.paths.home, default_home.as_deref())?)
}

/// The tools of ours that models are shown.
pub(super) fn listed_tools(context: &Context) -> Vec<&'static str> {
    let config = context.config(&Flags::default());
    let shows_all = config.is_ok_and(|config| *config.sources_expose == Some(ToolExposure::All));
    if shows_all { HARMLESS_TOOLS.to_vec() } else { SHORT_LIST.to_vec() }
}

/// The clients that are named, or else those that `otherwise` accepts, in the order of all.
pub(super) fn chosen(
    named: &[KnownClient],
    otherwise: impl Fn(KnownClient) -> bool,
) -> Vec<KnownClient> {
    let is_chosen = |client: KnownClient| {
        if named.is_empty() { otherwise(client) } else { named.contains(&client) }
    };
    KnownClient::all().iter().copied().filter(|client| is_chosen(*client)).collect()
}

/// The clients' names, with commas between them.
pub(super) fn names(clients: &[KnownClient]) -> String {
    clients.iter().map(|client| client.name()).collect::<Vec<_>>().join(", ")
}
