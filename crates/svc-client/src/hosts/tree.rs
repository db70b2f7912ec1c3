//! What a host has left running. Its reaper ends all of that, unless it was killed in the same moment.

use std::time::Duration;

use rustix::process::Signal;
use svc_model::{AgentId, agent::AGENT_MARK};
use svc_sys::process_list;
use tokio::time::{Instant, sleep};

/// How long killed processes may take to end. One that waits for a disk takes as long as the disk.
const KILL_PATIENCE: Duration = Duration::from_secs(4);
/// Time between two looks at processes that were killed.
const KILL_POLL: Duration = Duration::from_millis(5);

/// Ends all that an agent whose host is gone has started. Whoever bears its mark was started by it and by nobody else.
pub async fn end_tree(agent: &AgentId) {
    let deadline = Instant::now() + KILL_PATIENCE;
    loop {
        let mark = agent.as_str().to_owned();
        let signalled = tokio::task::spawn_blocking(move || {
            process_list::signal_marked(AGENT_MARK, &mark, Signal::KILL)
        });
        let left = signalled.await.unwrap_or(0);
        if left == 0 {
            return;
        }
        if Instant::now() >= deadline {
            tracing::error!(%agent, left, "processes of an agent whose host is gone do not end");
            return;
        }
        sleep(KILL_POLL).await;
    }
}
