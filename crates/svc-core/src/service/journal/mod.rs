//! The journal: GHAP records, what the team remembers, and what both put together for a prompt.

mod bounded_markdown;
mod context;
mod memories;
mod orphans;
mod outcomes;
mod premortem;
mod records;
mod room;
mod texts;
mod values;

pub use bounded_markdown::{AssembledContext, ContextSource};
pub use context::{ContextKind, ContextRequest};
pub use memories::{NewMemory, StoredMemory};
pub use outcomes::NewOutcome;
pub use premortem::PremortemRequest;
pub use records::GhapDetail;
pub use room::Journal;
pub use values::{ClusterList, StoredValue, ValueDistances, ValueValidity, too_far};

pub(super) use outcomes::put_outcome;
