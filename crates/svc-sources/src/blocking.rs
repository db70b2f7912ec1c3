//! Runs blocking work on a thread of the runtime.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that blocks or takes long, while another thread takes over the tasks of this one.
pub(super) fn run_blocking<R>(work: impl FnOnce() -> R) -> R {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}
