//! Which project a folder is.

use svc_model::Timestamp;

/// The project of a folder of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderDecision {
    pub project: String,
    /// `None` for a folder of before projects had names.
    pub decided_at: Option<Timestamp>,
    pub used_at: Timestamp,
}
