//! Tests, builds and checks that a session runs: outcomes that a prediction can be held against. They are recorded, and
//! the session is asked; the verdict is its own.

use crate::{
    domain::{
        Ids,
        hook::{Hook, Moment, Note},
        journal::{Ghap, Outcome, OutcomeVerdict},
        limits,
        outcome::RunKind,
    },
    service::{
        Error,
        journal::{NewOutcome, put_outcome},
        team::ActingSession,
    },
    store::WriteTx,
};

/// Records what a tool came to, if it was a test, a build or a check, and gives what may be said to it.
pub(super) async fn note(
    tx: &mut WriteTx,
    ids: &Ids,
    hook: &Hook,
    place: &ActingSession,
) -> Result<Option<Note>, Error> {
    let Moment::ToolEnd(using) = &hook.moment else { return Ok(None) };
    let Some(ran) = &using.ran else { return Ok(None) };
    let verdict = &ran.verdict;
    let before = tx.last_verdicts(&place.session_id, 2).await?;
    let new = NewOutcome {
        command: ran.command.chars().take(limits::GHAP_LONG_TEXT_CHARS).collect(),
        verdict: verdict.verdict,
        summary: verdict.summary.clone(),
        tool_use_id: using.use_id.clone(),
    };
    let (outcome, is_new) = put_outcome(tx, ids, place, new).await?;
    if !is_new || verdict.verdict == OutcomeVerdict::Unknown || verdict.kind == RunKind::Check {
        return Ok(None);
    }
    let active = tx.active_ghap(&place.session_id).await?;
    if let Some(ghap) = active {
        // The same again says nothing new, unless the record is another by now.
        let is_news = before
            .first()
            .is_none_or(|(last, at)| *last != outcome.verdict || *at < ghap.updated_at);
        return Ok(is_news.then(|| held_against(&ghap, &outcome)));
    }
    // The second failure in a row is when guessing begins; the first is everyday.
    let failed = |place: usize| {
        before.get(place).is_some_and(|(verdict, _)| *verdict == OutcomeVerdict::Fail)
    };
    let begins = outcome.verdict == OutcomeVerdict::Fail && failed(0) && !failed(1);
    Ok(begins.then(|| {
        Note::Suggestion(format!(
            "{}\nThat is the second failure in a row, and this session has no GHAP record. start_ghap writes down \
             a hypothesis and what it predicts, so that the next run confirms or falsifies something.",
            outcome.summary
        ))
    }))
}

fn held_against(ghap: &Ghap, outcome: &Outcome) -> Note {
    let (id, evidence) = (&ghap.id, &outcome.outcome_id);
    let (question, action) = if outcome.verdict == OutcomeVerdict::Pass {
        ("Does this confirm it?", "resolve_confirmed")
    } else {
        (
            "Does this falsify it? If so: what was surprising, what is the root cause, what was learned?",
            "resolve_falsified",
        )
    };
    let text = format!(
        "{}\nThe active GHAP record {id} predicted: {}\n{question} resolve_ghap with outcome_id {evidence} cites this run; \
         update_ghap goes on with another hypothesis.",
        outcome.summary, ghap.prediction
    );
    Note::Outcome { text, action }
}
