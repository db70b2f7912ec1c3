//! The daemon's own tools.

use std::sync::Arc;

use super::{
    Catalogue, Tool, agents, context, conversations, delegate, events, ghap, hooks, memory, peers,
    search, sessions, tasks, values,
};

/// All tools: the built-in ones, `ToolSearch` and `ToolCall`.
pub fn catalogue() -> Arc<Catalogue> {
    Arc::new_cyclic(|weak| {
        let of_all = [search::tool(weak.clone()), delegate::tool(weak.clone())];
        Catalogue::new(builtin().into_iter().chain(of_all))
    })
}

/// The built-in tools without those that refer to the catalogue.
pub fn builtin() -> Vec<Tool> {
    [
        peers::tools(),
        tasks::tools(),
        agents::tools(),
        conversations::tools(),
        events::tools(),
        sessions::tools(),
        ghap::tools(),
        context::tools(),
        hooks::tools(),
        memory::tools(),
        values::tools(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
