//! The tools: what a model may ask of the daemon. Each is declared once; its schema, the validation
//! of its arguments, the form of its errors, its entries in `tools/list`, in `GET /v1/tools` and in
//! the search, and the generated tests follow from the declaration.
//!
//! Reading order: `tool` is a declaration, `output` a result, `schema` what is derived from the
//! types, `check` the validation of arguments, `call` the signals of a running tool to its client,
//! `error` its failures, `catalogue` all tools. Then one file for each family, `search`,
//! `delegate`, which calls an unlisted tool, and `called`, which names that tool in the result;
//! `builtin` lists the families.

mod agents;
mod builtin;
mod call;
mod called;
mod catalogue;
mod check;
mod context;
mod conversations;
mod delegate;
mod error;
mod events;
#[cfg(test)]
mod every;
mod ghap;
mod hooks;
mod memory;
mod output;
mod peers;
mod schema;
mod search;
mod sessions;
mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tool;
mod values;

pub use builtin::{builtin, catalogue};
pub use call::{
    Call, CancelReason, ClientAnswers, ClientNote, ClientQuestion, LogLevel, QuestionReply,
    RequestTrace, ToolClient, ToolProgress, ToolSignal,
};
pub use catalogue::{Catalogue, ChildTools, Descriptor};
pub use delegate::DelegatedCall;
pub use error::{ErrorType, Failure, ToolError};
pub use output::Output;
pub use schema::{HeaderParam, ParamKind};
pub use tool::{Annotations, ForeignDeclaration, ForeignEntry, Pace, Tool};
