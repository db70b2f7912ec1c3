//! Threads of Codex before their first prompt. Codex calls no hook before that, so the app-server's
//! report of a thread counts as the event of the session's start.

use serde_json::json;
use svc_model::{
    ProcessIdentity,
    hook::{self, HookClient, HookTiming},
};

use super::{event::Hooks, write_job::HookCall};
use crate::service::Result;

impl Hooks {
    /// A person has opened a thread in a process from which hooks of another session came.
    pub(in crate::service) async fn thread_opened(
        &self,
        process: &ProcessIdentity,
        id: String,
        folder: String,
    ) -> Result<()> {
        if self.core.store.sessions().owner(&id).await?.is_some() {
            return Ok(());
        }
        let client = HookClient::Codex;
        let start = json!({
            "hook_event_name": "SessionStart", "source": "startup", "session_id": id,
            "cwd": folder,
        });
        // A thread without an id is ignored.
        let Ok(event) = hook::read(client, None, &start) else { return Ok(()) };
        let report = self.access.caller_of_report(process.clone(), client.as_str(), Some(folder));
        let caller = report.await?;
        // Nobody reads the reply to this event, so it hands nothing over.
        let timing = HookTiming::Late { happened_at: self.core.now() };
        let call = HookCall { timing, is_from_hook: true, ..HookCall::default() };
        self.hook(&caller, event, call).await?;
        Ok(())
    }
}
