//! The journal: GHAP records, memories and values, and the context that they give a prompt.

mod bounded_markdown;
mod context;
mod memories;
mod orphans;
mod outcomes;
mod premortem;
mod records;
mod state;
mod texts;
mod values;

pub use bounded_markdown::{AssembledContext, ContextSource};
pub use context::{ContextKind, ContextRequest};
pub use memories::{NewMemory, StoredMemory};
pub use outcomes::NewOutcome;
pub use premortem::PremortemRequest;
pub use records::GhapDetail;
pub use state::Journal;
pub use values::{ClusterList, StoredValue, ValueDistances, ValueValidity, distance_error};

pub(super) use outcomes::put_outcome;
