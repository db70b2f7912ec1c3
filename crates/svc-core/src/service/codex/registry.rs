//! Who makes sessions of threads.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use svc_model::ProcessIdentity;

use crate::service::Error;

/// A thread that its app-server has loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedThread {
    pub(in crate::service) id: String,
    /// Where it works.
    pub(in crate::service) folder: String,
}

/// Makes sessions of threads of which no hook has told yet: Codex calls none before the first
/// prompt.
pub trait ThreadRegistry: Debug + Send + Sync {
    /// A person has opened a thread in a process from which hooks of another session came.
    fn opened<'a>(
        &'a self,
        process: &'a ProcessIdentity,
        thread: OpenedThread,
    ) -> BoxFuture<'a, Result<(), Error>>;
}
