//! What is wrong with a record.

/// Why a record that is there does not count.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Others could have written it, or it cannot be read.
    #[error("{0}")]
    Untrusted(String),
    /// It is not as the versions write it that are known.
    #[error("it has another format")]
    Form,
}
