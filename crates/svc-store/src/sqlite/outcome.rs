//! Outcomes: results of commands in a session, such as a test run.

use svc_model::{
    Timestamp,
    journal::{Outcome, OutcomeVerdict},
};

use super::{
    families::{OutcomeReads, OutcomeWrites},
    statement::{change, direct_row, find_value, query_rows, select_fields, select_one},
};
use crate::StoreError;

direct_row! {
    struct RawOutcome {
        outcome_id: String,
        session_id: String,
        command: String,
        verdict: OutcomeVerdict,
        summary: String,
        at: Timestamp,
    }
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

impl OutcomeWrites<'_> {
    /// The verdicts and times of a session's last outcomes, the latest first.
    pub async fn last_verdicts(
        &mut self,
        session_id: &str,
        limit: u32,
    ) -> Result<Vec<(OutcomeVerdict, Timestamp)>, StoreError> {
        let rows = select_fields!(
            select_all,
            self.tx,
            { verdict: OutcomeVerdict, at: Timestamp },
            r#"select verdict as "verdict: OutcomeVerdict", at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        );
        Ok(rows.into_iter().map(|row| (row.verdict, row.at)).collect())
    }

    /// Stores an outcome, or returns the one that was stored for the same tool call.
    pub async fn insert(
        &mut self,
        outcome: &Outcome,
        agent_id: &str,
        project: &str,
        tool_use_id: Option<&str>,
    ) -> Result<Outcome, StoreError> {
        if let Some(tool_use_id) = tool_use_id {
            let known = select_one!(
                r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                    at as "at: Timestamp"
                from outcome where session_id = ? and tool_use_id = ?"#,
                RawOutcome,
                self.tx,
                "",
                outcome.session_id,
                tool_use_id
            );
            if let Some(known) = known {
                return Ok(known.into());
            }
        }
        let id = outcome.outcome_id.as_str();
        change!(
            self.tx,
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
            self.tx.now
        );
        Ok(Outcome { at: self.tx.now, ..outcome.clone() })
    }

    /// The session of an outcome.
    pub async fn session(&mut self, id: &str) -> Result<Option<String>, StoreError> {
        let session =
            find_value!(self.tx, "select session_id from outcome where outcome_id = ?", id);
        Ok(session)
    }
}

impl OutcomeReads<'_> {
    pub async fn list(self, session_id: &str, limit: u32) -> Result<Vec<Outcome>, StoreError> {
        let rows = query_rows!(
            RawOutcome,
            r#"select outcome_id as "outcome_id!", session_id, command, verdict as "verdict: OutcomeVerdict", summary,
                at as "at: Timestamp"
            from outcome where session_id = ? order by at desc, outcome_id desc limit ?"#,
            session_id,
            limit
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows.into_iter().map(Outcome::from).collect())
    }
}
