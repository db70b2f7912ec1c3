//! Outcomes that a session observed, such as of a test run. They support a verdict.

use serde_json::json;
use svc_model::{
    Caller, Ids, OutcomeId,
    journal::{Outcome, OutcomeVerdict},
    limits,
};
use svc_store::WriteTx;

use super::{Journal, texts::check_text};
use crate::service::{
    Error, check,
    projects::project_of_write,
    team::{ActingSession, tell},
};

#[derive(Debug, Clone)]
pub struct NewOutcome {
    pub command: String,
    pub verdict: OutcomeVerdict,
    pub summary: String,
    /// The client's id of the tool call.
    pub tool_use_id: Option<String>,
}

impl Journal {
    /// Records an outcome. Idempotent by the tool call's id.
    pub async fn record_outcome(
        &self,
        caller: &Caller,
        acting: ActingSession,
        new: NewOutcome,
    ) -> Result<Outcome, Error> {
        check_text("command", &new.command, limits::GHAP_LONG_TEXT_CHARS)?;
        check::key("tool_use_id", new.tool_use_id.as_deref())?;
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        self.core
            .store
            .on_behalf_of(&caller)
            .write(move |tx| {
                Box::pin(async move {
                    tx.sessions()
                        .touch(&acting.session_id, &caller.principal().to_string())
                        .await?;
                    Ok(put_outcome(tx, &ids, &caller, &acting, new).await?.0)
                })
            })
            .await
    }

    /// Outcomes of a session, the latest first.
    pub async fn outcomes(
        &self,
        session_id: &str,
        limit: Option<u32>,
    ) -> Result<Vec<Outcome>, Error> {
        Ok(self.core.store.outcomes().list(session_id, check::limit(limit)?).await?)
    }
}

/// Records an outcome; returns also whether it is new.
pub(in crate::service) async fn put_outcome(
    tx: &mut WriteTx,
    ids: &Ids,
    caller: &Caller,
    acting: &ActingSession,
    new: NewOutcome,
) -> Result<(Outcome, bool), Error> {
    let session = tx.sessions().get(&acting.session_id).await?;
    let project = project_of_write(caller, session).unwrap_or_default();
    let outcome = Outcome {
        outcome_id: OutcomeId::new(ids, tx.now()),
        session_id: acting.session_id.clone(),
        command: new.command,
        verdict: new.verdict,
        summary: new.summary.chars().take(limits::OUTCOME_SUMMARY_CHARS).collect(),
        at: tx.now(),
    };
    let made = outcome.outcome_id.clone();
    let tool_use = new.tool_use_id.as_deref();
    let outcome = tx.outcomes().insert(&outcome, &acting.agent_id, &project, tool_use).await?;
    let is_new = outcome.outcome_id == made;
    if is_new {
        let data = json!({ "outcome_id": made, "verdict": outcome.verdict });
        tell(tx, &acting.session_id, "outcome.recorded", &data).await?;
    }
    Ok((outcome, is_new))
}
