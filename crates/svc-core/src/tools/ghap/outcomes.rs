//! Tools for outcomes, and for the calibration of predictions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    NOT_BLANK, OutcomeId,
    journal::{Domain, OutcomeVerdict},
    limits,
};

use svc_store::CalibrationRow;

use crate::{
    service::journal::NewOutcome,
    tools::{Call, Failure, Tool, sessions::acting_session},
};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new("record_outcome", OUTCOME, record_outcome).title("Record what came of something"),
        Tool::new("ghap_calibration", CALIBRATION, calibrate)
            .title("How true predictions came")
            .read_only()
            .heavy(),
    ]
}

const OUTCOME: &str = "\
Records what came of a test run, a build or the like, for a verdict to rest on: pass its outcome_id to resolve_ghap. Clients' \
hooks do this by themselves where they see test output.";

/// What happened.
#[derive(Deserialize, JsonSchema)]
struct OutcomeInput {
    /// The command.
    #[schemars(length(max = limits::GHAP_LONG_TEXT_CHARS), regex(pattern = NOT_BLANK))]
    command: String,
    /// What came of it.
    verdict: OutcomeVerdict,
    /// A summary of its output; only the beginning is kept.
    summary: Option<String>,
    /// The client's id of the tool call; a repeat with the same id changes nothing.
    #[schemars(regex(pattern = NOT_BLANK))]
    tool_use_id: Option<String>,
    /// Session id; your own by default.
    #[schemars(regex(pattern = NOT_BLANK))]
    session_id: Option<String>,
    /// The sub-agent that saw it, if any.
    #[schemars(regex(pattern = NOT_BLANK))]
    agent_id: Option<String>,
}

/// An outcome was recorded.
#[derive(Serialize, JsonSchema)]
struct OutcomeRecorded {
    outcome_id: OutcomeId,
    verdict: OutcomeVerdict,
}

async fn record_outcome(call: Call, input: OutcomeInput) -> Result<OutcomeRecorded, Failure> {
    let acting =
        acting_session(&call, input.session_id.as_deref(), input.agent_id.as_deref()).await?;
    let new = NewOutcome {
        command: input.command,
        verdict: input.verdict,
        summary: input.summary.unwrap_or_default(),
        tool_use_id: input.tool_use_id,
    };
    let outcome = call.services.journal.record_outcome(&call.caller, acting, new).await?;
    Ok(OutcomeRecorded { outcome_id: outcome.outcome_id, verdict: outcome.verdict })
}

const CALIBRATION: &str = "\
How often predictions came true, by client and domain: the share of records that were confirmed, and for those that stated a \
probability the Brier score (mean squared error; 0 is perfect, 0.25 is what always saying one half earns).";

/// Of which records.
#[derive(Deserialize, JsonSchema)]
struct CalibrationInput {
    /// Only this project.
    project: Option<String>,
    /// Only this client.
    client: Option<String>,
    /// Only this domain.
    domain: Option<Domain>,
}

/// How true predictions came.
#[derive(Serialize, JsonSchema)]
struct CalibrationOutput {
    results: Vec<CalibrationRow>,
    count: usize,
}

async fn calibrate(call: Call, input: CalibrationInput) -> Result<CalibrationOutput, Failure> {
    let (project, client) = (input.project.as_deref(), input.client.as_deref());
    let results =
        call.services.journal.calibration(&call.caller, project, client, input.domain).await?;
    Ok(CalibrationOutput { count: results.len(), results })
}
