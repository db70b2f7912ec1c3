//! The tools that the daemon has by itself.

use std::sync::Arc;

use super::{
    Catalogue, Tool, context, events, ghap, hooks, memory, peers, search, sessions, tasks, values,
};

/// All tools: the built-in ones, and the one that searches among all.
pub fn catalogue() -> Arc<Catalogue> {
    Arc::new_cyclic(|weak| {
        Catalogue::new(builtin().into_iter().chain([search::tool(weak.clone())]))
    })
}

/// The built-in tools without the search, which needs the catalogue that it is in.
pub fn builtin() -> Vec<Tool> {
    [
        peers::tools(),
        tasks::tools(),
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
