//! The journal: GHAP records, memories and values, and the context that they give a prompt.

mod bounded_markdown;
mod context;
mod memories;
mod orphans;
mod outcomes;
mod premortem;
mod records;
mod texts;
mod values;

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::service::{core::Core, search::Search, team::Team};

pub use bounded_markdown::{AssembledContext, ContextSource};
pub use context::{ContextKind, ContextRequest};
pub use memories::{NewMemory, StoredMemory};
pub use outcomes::NewOutcome;
pub use premortem::PremortemRequest;
pub use records::GhapDetail;
pub use values::{ClusterList, StoredValue, ValueDistances, ValueValidity, distance_error};

pub(super) use outcomes::put_outcome;

/// The service of GHAP records, memories and values.
#[derive(Debug, Clone)]
pub struct Journal {
    core: Core,
    team: Team,
    search: Search,
    /// Held while records are clustered: that keeps a core busy, and should not do so twice.
    grouping: Arc<Mutex<()>>,
}

impl Journal {
    pub(in crate::service) fn new(core: Core, team: Team, search: Search) -> Self {
        Self { core, team, search, grouping: Arc::default() }
    }
}
