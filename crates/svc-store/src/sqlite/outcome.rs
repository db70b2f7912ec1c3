//! Outcomes: what was seen to happen in a session, such as a test run.

use svc_model::{
    Timestamp,
    journal::{Outcome, OutcomeVerdict},
};

use super::{db::Store, tx::WriteTx};
use crate::StoreError;

struct RawOutcome {
    outcome_id: String,
    session_id: String,
    command: String,
    verdict: OutcomeVerdict,
    summary: String,
    at: Timestamp,
}

impl From<RawOutcome> for Outcome {
    fn from(raw: RawOutcome) -> Self {
        Self {
            outcome_id: raw.outcome_id.into(),
            session_id: raw.session_id,
            command: raw.command,
            verdict: raw.verdict,
            summary: raw.summary,
            at: raw.at,
        }
    }
}

impl WriteTx {
    /// The verdicts of a session's last outcomes, the latest first, and when they came.
    pub async fn last_verdicts(
        &mut self,
        session_id: &str,
        limit: u32,
    ) -> Result<Vec<(OutcomeVerdict, Timestamp)>, StoreError> {
        let rows = sqlx::query!(
            r#"select verdict as "verdict: OutcomeVerdict", at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        )
        .fetch_all(self.checked()?)
        .await?;
        Ok(rows.into_iter().map(|row| (row.verdict, row.at)).collect())
    }

    /// Stores an outcome, or finds the one that was stored for the same tool call.
    pub async fn insert_outcome(
        &mut self,
        outcome: &Outcome,
        agent_id: &str,
        project: &str,
        tool_use_id: Option<&str>,
    ) -> Result<Outcome, StoreError> {
        if let Some(tool_use_id) = tool_use_id {
            let known = sqlx::query_as!(
                RawOutcome,
                r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                    at as "at: Timestamp"
                from outcome where session_id = ? and tool_use_id = ?"#,
                outcome.session_id,
                tool_use_id
            )
            .fetch_optional(self.checked()?)
            .await?;
            if let Some(known) = known {
                return Ok(known.into());
            }
        }
        let id = outcome.outcome_id.as_str();
        sqlx::query!(
            "insert into outcome (outcome_id, session_id, agent_id, project, tool_use_id, command, verdict, summary, at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            id,
            outcome.session_id,
            agent_id,
            project,
            tool_use_id,
            outcome.command,
            outcome.verdict,
            outcome.summary,
            self.now
        )
        .execute(self.checked()?)
        .await?;
        Ok(Outcome { at: self.now, ..outcome.clone() })
    }

    /// The session that an outcome was seen in.
    pub async fn outcome_session(&mut self, id: &str) -> Result<Option<String>, StoreError> {
        let session =
            sqlx::query_scalar!("select session_id from outcome where outcome_id = ?", id)
                .fetch_optional(self.checked()?)
                .await?;
        Ok(session)
    }
}

impl Store {
    /// Outcomes of a session, the latest first.
    pub async fn outcomes(&self, session_id: &str, limit: u32) -> Result<Vec<Outcome>, StoreError> {
        let rows = sqlx::query_as!(
            RawOutcome,
            r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        )
        .fetch_all(&self.readers)
        .await?;
        Ok(rows.into_iter().map(Outcome::from).collect())
    }
}
