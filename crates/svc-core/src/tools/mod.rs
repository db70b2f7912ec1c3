//! The tools: what a model may ask of the daemon. Each tool is declared once. The declaration
//! determines its schema, the validation of its arguments, the form of its errors, its entries in
//! `tools/list`, in `GET /v1/tools` and in the search, and the generated tests.
//!
//! Reading order: `tool` is a declaration; `schema` derives schemas from types and checks
//! arguments; `call` has the signals of a running tool to its client, results and failures;
//! `catalogue` has all tools. Then there is one file for each family, and `search`, which
//! finds tools and calls tools that are not listed.

mod agents;
mod call;
mod catalogue;
mod context;
mod conversations;
mod events;
mod ghap;
mod hooks;
mod memory;
mod peers;
mod schema;
mod search;
mod sessions;
mod tasks;
#[cfg(test)]
mod tests;
mod tool;
mod values;

use std::sync::Arc;

pub use call::{
    Call, CancelReason, ClientAnswers, ClientNote, ClientQuestion, ErrorType, Failure, LogLevel,
    Output, QuestionReply, RequestTrace, ToolClient, ToolError, ToolProgress, ToolSignal,
    UnhandedAnswers,
};
pub use catalogue::{Catalogue, ChildTools, DelegatedCall, Descriptor};
pub use hooks::HOOK_EVENT;
pub use schema::{HeaderParam, ParamKind};
pub use tool::{Annotations, ForeignDeclaration, ForeignEntry, Pace, Tool};

/// All tools: the built-in ones, `ToolSearch` and `ToolCall`.
pub fn catalogue() -> Arc<Catalogue> {
    Arc::new_cyclic(|weak| {
        let of_all = [search::tool_search(weak.clone()), search::tool_call(weak.clone())];
        Catalogue::new(builtin().into_iter().chain(of_all))
    })
}

/// The built-in tools, except those that refer to the catalogue.
pub fn builtin() -> Vec<Tool> {
    let families = [
        ("peers", peers::tools()),
        ("tasks", tasks::tools()),
        ("agents", agents::tools()),
        ("conversations", conversations::tools()),
        ("events", events::tools()),
        ("sessions", sessions::tools()),
        ("ghap", ghap::tools()),
        ("learning", context::tools()),
        ("hooks", hooks::tools()),
        ("learning", memory::tools()),
        ("learning", values::tools()),
    ];
    let named =
        |(name, tools): (_, Vec<Tool>)| tools.into_iter().map(move |tool| tool.family(name));
    families.into_iter().flat_map(named).collect()
}
