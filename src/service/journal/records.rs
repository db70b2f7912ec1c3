//! The journal: what each session is doing, what it predicted, what came of it.
//!
//! A change of a record, its history, the counters and its event are one write job: a crash leaves all of it or none.

use serde_json::json;

use super::Journal;
use crate::{
    domain::{
        Caller, GhapId, Ids, OutcomeId, Timestamp,
        journal::{
            Domain, Ghap, GhapStatus, Iteration, Lesson, Outcome, OutcomeVerdict, RootCause,
            Strategy, Tier, Verdict, tier,
        },
        limits,
    },
    service::{
        Error, ResourceKind, check, search,
        team::{ActingSession, tell},
    },
    store::{CalibrationRow, GhapFilter, StoreError, WriteTx},
};

/// A record that begins.
#[derive(Debug, Clone)]
pub struct NewGhap {
    /// What it is about.
    pub domain: Domain,
    /// How it goes about it.
    pub strategy: Strategy,
    /// What is to be reached.
    pub goal: String,
    /// What is believed.
    pub hypothesis: String,
    /// What is done about it.
    pub action: String,
    /// What will be seen if the belief is right.
    pub prediction: String,
    /// How sure its maker is of the prediction.
    pub probability: Option<f64>,
}

/// Changes of a record. What is not there stays as it is.
#[derive(Debug, Clone, Default)]
pub struct GhapChange {
    /// What it is about.
    pub domain: Option<Domain>,
    /// How it goes about it.
    pub strategy: Option<Strategy>,
    /// What is to be reached.
    pub goal: Option<String>,
    /// What is believed.
    pub hypothesis: Option<String>,
    /// What is done about it.
    pub action: Option<String>,
    /// What will be seen if the belief is right.
    pub prediction: Option<String>,
    /// How sure its maker is of the prediction.
    pub probability: Option<f64>,
    /// Something to keep with it.
    pub note: Option<String>,
}

/// How a record ends.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// The verdict.
    pub verdict: Verdict,
    /// What was seen.
    pub result: String,
    /// What was not expected.
    pub surprise: Option<String>,
    /// Why the prediction was wrong.
    pub root_cause: Option<RootCause>,
    /// What is to be remembered.
    pub lesson: Option<Lesson>,
    /// The outcome that the verdict rests on.
    pub outcome_id: Option<String>,
}

/// Something that was seen to happen.
#[derive(Debug, Clone)]
pub struct NewOutcome {
    /// What was run.
    pub command: String,
    /// What came of it.
    pub verdict: OutcomeVerdict,
    /// What it said, in short.
    pub summary: String,
    /// The client's id of the tool call.
    pub tool_use_id: Option<String>,
}

/// A record with its history.
#[derive(Debug)]
pub struct GhapDetail {
    /// The record.
    pub ghap: Ghap,
    /// What it said before it was changed.
    pub history: Vec<Iteration>,
    /// Notes to it.
    pub notes: Vec<String>,
}

impl Journal {
    /// Begins a record. A session has one at a time.
    ///
    /// # Errors
    /// [`Error::ActiveGhap`] with the id of the one that there is.
    pub async fn start_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        new: NewGhap,
    ) -> Result<Ghap, Error> {
        for (field, text) in [
            ("goal", &new.goal),
            ("hypothesis", &new.hypothesis),
            ("action", &new.action),
            ("prediction", &new.prediction),
        ] {
            text_of(field, text, limits::GHAP_TEXT_CHARS)?;
        }
        check_probability(new.probability)?;
        let (subject, ids) = (caller.principal().to_string(), self.core.ids.clone());
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let id = &acting.session_id;
                    tx.touch_session(id, &subject).await?;
                    if let Some(active) = tx.active_ghap(id).await? {
                        return Err(Error::ActiveGhap { id: active.id });
                    }
                    let project = tx.session(id).await?.and_then(|session| session.project);
                    let now = tx.now();
                    let ghap = Ghap {
                        id: GhapId::new(&ids, now),
                        session_id: id.clone(),
                        project,
                        domain: new.domain,
                        strategy: new.strategy,
                        goal: new.goal,
                        hypothesis: new.hypothesis,
                        action: new.action,
                        prediction: new.prediction,
                        probability: new.probability,
                        iteration_count: 1,
                        status: GhapStatus::Active,
                        result: None,
                        surprise: None,
                        root_cause: None,
                        lesson: None,
                        confidence_tier: None,
                        outcome_id: None,
                        confirmed_again: 0,
                        created_at: now,
                        updated_at: now,
                        resolved_at: None,
                    };
                    tx.insert_ghap(&ghap, None).await?;
                    tx.reset_tool_count(id, "").await?;
                    tell_of(tx, &ghap, "ghap.started").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// Changes the active record of a session. What it said before is kept if hypothesis, action or prediction change.
    pub async fn update_ghap(
        &self,
        acting: ActingSession,
        change: GhapChange,
    ) -> Result<Ghap, Error> {
        for (field, text, most) in [
            ("goal", &change.goal, limits::GHAP_TEXT_CHARS),
            ("hypothesis", &change.hypothesis, limits::GHAP_TEXT_CHARS),
            ("action", &change.action, limits::GHAP_TEXT_CHARS),
            ("prediction", &change.prediction, limits::GHAP_TEXT_CHARS),
            ("note", &change.note, limits::GHAP_LONG_TEXT_CHARS),
        ] {
            if let Some(text) = text {
                text_of(field, text, most)?;
            }
        }
        check_probability(change.probability)?;
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = active(tx, &acting).await?;
                    let now = tx.now();
                    let before = ghap.clone();
                    let GhapChange {
                        domain,
                        strategy,
                        goal,
                        hypothesis,
                        action,
                        prediction,
                        probability,
                        note,
                    } = change;
                    ghap.domain = domain.unwrap_or(ghap.domain);
                    ghap.strategy = strategy.unwrap_or(ghap.strategy);
                    ghap.goal = goal.unwrap_or(ghap.goal);
                    ghap.hypothesis = hypothesis.unwrap_or(ghap.hypothesis);
                    ghap.action = action.unwrap_or(ghap.action);
                    ghap.prediction = prediction.unwrap_or(ghap.prediction);
                    ghap.probability = probability.or(ghap.probability);
                    if ghap == before && note.is_none() {
                        return Err(Error::invalid("arguments", "there is nothing to change"));
                    }
                    let turned = (&ghap.hypothesis, &ghap.action, &ghap.prediction)
                        != (&before.hypothesis, &before.action, &before.prediction);
                    if turned {
                        let said = Iteration {
                            iteration: before.iteration_count,
                            hypothesis: before.hypothesis,
                            action: before.action,
                            prediction: before.prediction,
                            at: now,
                        };
                        tx.insert_iteration(&ghap.id, &said).await?;
                        ghap.iteration_count += 1;
                    }
                    if let Some(note) = note {
                        tx.insert_note(&ghap.id, &note, now).await?;
                    }
                    ghap.updated_at = now;
                    tx.update_ghap(&ghap).await?;
                    tx.reset_tool_count(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.updated").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// Ends the active record of a session.
    pub async fn resolve_ghap(
        &self,
        acting: ActingSession,
        end: Resolution,
    ) -> Result<Ghap, Error> {
        text_of("result", &end.result, limits::GHAP_LONG_TEXT_CHARS)?;
        for (field, text) in [
            ("surprise", end.surprise.as_ref()),
            ("root_cause.description", end.root_cause.as_ref().map(|cause| &cause.description)),
            ("lesson.what_worked", end.lesson.as_ref().map(|lesson| &lesson.what_worked)),
            ("lesson.takeaway", end.lesson.as_ref().and_then(|lesson| lesson.takeaway.as_ref())),
        ] {
            if let Some(text) = text {
                text_of(field, text, limits::GHAP_LONG_TEXT_CHARS)?;
            }
        }
        if end.verdict == Verdict::Falsified {
            if end.surprise.is_none() {
                return Err(Error::invalid(
                    "surprise",
                    "is missing: a falsified record says what was not expected",
                ));
            }
            if end.root_cause.is_none() {
                let why = "is missing: a falsified record says why, as {category, description}";
                return Err(Error::invalid("root_cause", why));
            }
        }
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = active(tx, &acting).await?;
                    if let Some(outcome) = &end.outcome_id {
                        let unknown = || Error::not_found(ResourceKind::Outcome, outcome);
                        let session = tx.outcome_session(outcome).await?.ok_or_else(unknown)?;
                        if session != ghap.session_id {
                            return Err(Error::invalid(
                                "outcome_id",
                                "was seen in another session",
                            ));
                        }
                    }
                    let now = tx.now();
                    let cites = end.outcome_id.is_some();
                    ghap.status = end.verdict.status();
                    ghap.confidence_tier =
                        Some(tier(end.verdict, cites, &ghap.goal, &ghap.hypothesis));
                    ghap.result = Some(end.result);
                    ghap.surprise = end.surprise;
                    ghap.root_cause = end.root_cause;
                    ghap.lesson = end.lesson;
                    ghap.outcome_id = end.outcome_id.map(OutcomeId::from);
                    ghap.updated_at = now;
                    ghap.resolved_at = Some(now);
                    if ghap.status == GhapStatus::Confirmed {
                        search::note_confirmed(tx, &ghap).await?;
                    }
                    tx.update_ghap(&ghap).await?;
                    tx.reset_tool_count(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.resolved").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// The active record of a session.
    pub async fn active_ghap(&self, acting: &ActingSession) -> Result<Option<Ghap>, Error> {
        Ok(self.core.store.active_ghap(&acting.session_id).await?)
    }

    /// A record with its history.
    pub async fn ghap(&self, id: &str) -> Result<GhapDetail, Error> {
        let unknown = || Error::not_found(ResourceKind::GhapRecord, id);
        let id = GhapId::parse(id).ok_or_else(unknown)?;
        let ghap = self.core.store.ghap(&id).await?.ok_or_else(unknown)?;
        let history = self.core.store.iterations(&id).await?;
        let notes = self.core.store.notes(&id).await?;
        Ok(GhapDetail { ghap, history, notes })
    }

    /// A page of records, the latest made first.
    pub async fn ghaps(
        &self,
        filter: &GhapFilter,
        cursor: Option<&str>,
        limit: Option<u32>,
    ) -> Result<(Vec<Ghap>, Option<String>), Error> {
        let limit = check::limit(limit)?;
        let before: Option<String> = check::cursor(cursor)?;
        let before = before.map(GhapId::from);
        let mut ghaps = self.core.store.ghaps(filter, before.as_ref(), limit + 1).await?;
        let more = ghaps.len() > limit as usize;
        ghaps.truncate(limit as usize);
        let next = ghaps.last().filter(|_| more).map(|ghap| check::make_cursor(&ghap.id));
        Ok((ghaps, next))
    }

    /// Records that were left open in the project of a session, by sessions that are over or long silent; the one that
    /// was changed last first.
    pub async fn orphans(&self, acting: &ActingSession) -> Result<Vec<Ghap>, Error> {
        let session = self.core.store.session(&acting.session_id).await?;
        let project = session.and_then(|session| session.project).unwrap_or_default();
        let stale = self.core.now().minus(limits::SESSION_STALE);
        Ok(self.core.store.orphans(&project, &acting.session_id, stale).await?)
    }

    /// Takes over a record that was left open: it keeps its id and its history.
    pub async fn adopt_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: Option<&str>,
    ) -> Result<(Ghap, String), Error> {
        let orphan = self.one_orphan(&acting, id).await?;
        let subject = caller.principal().to_string();
        let stale = self.core.now().minus(limits::SESSION_STALE);
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    tx.touch_session(&acting.session_id, &subject).await?;
                    if let Some(active) = tx.active_ghap(&acting.session_id).await? {
                        return Err(Error::ActiveGhap { id: active.id });
                    }
                    let mut ghap = still_orphan(tx, &orphan, stale).await?;
                    let from = std::mem::replace(&mut ghap.session_id, acting.session_id.clone());
                    ghap.updated_at = tx.now();
                    tx.update_ghap(&ghap).await?;
                    tx.reset_tool_count(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.adopted").await?;
                    Ok((ghap, from))
                })
            })
            .await
    }

    /// Ends a record that was left open, under the session that left it.
    pub async fn abandon_orphan(
        &self,
        acting: ActingSession,
        id: Option<&str>,
        reason: String,
    ) -> Result<Ghap, Error> {
        text_of("reason", &reason, limits::GHAP_LONG_TEXT_CHARS)?;
        let orphan = self.one_orphan(&acting, id).await?;
        let stale = self.core.now().minus(limits::SESSION_STALE);
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = still_orphan(tx, &orphan, stale).await?;
                    let now = tx.now();
                    ghap.status = GhapStatus::Abandoned;
                    ghap.confidence_tier = Some(Tier::Abandoned);
                    ghap.result = Some(reason);
                    ghap.updated_at = now;
                    ghap.resolved_at = Some(now);
                    tx.update_ghap(&ghap).await?;
                    tell_of(tx, &ghap, "ghap.resolved").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    async fn one_orphan(&self, acting: &ActingSession, id: Option<&str>) -> Result<GhapId, Error> {
        let mut orphans = self.orphans(acting).await?;
        match id {
            None if orphans.is_empty() => {
                Err(Error::not_found(ResourceKind::OrphanedRecord, "in this project"))
            }
            None => Ok(orphans.swap_remove(0).id),
            Some(id) => orphans
                .into_iter()
                .map(|ghap| ghap.id)
                .find(|known| known.as_str() == id)
                .ok_or_else(|| Error::not_found(ResourceKind::OrphanOfProject, id)),
        }
    }

    /// Records something that was seen to happen. Once more for the same tool call changes nothing.
    pub async fn record_outcome(
        &self,
        caller: &Caller,
        acting: ActingSession,
        new: NewOutcome,
    ) -> Result<Outcome, Error> {
        text_of("command", &new.command, limits::GHAP_LONG_TEXT_CHARS)?;
        check::key("tool_use_id", new.tool_use_id.as_deref())?;
        let (subject, ids) = (caller.principal().to_string(), self.core.ids.clone());
        self.core
            .store
            .write(move |tx| {
                Box::pin(async move {
                    tx.touch_session(&acting.session_id, &subject).await?;
                    Ok(put_outcome(tx, &ids, &acting, new).await?.0)
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
        Ok(self.core.store.outcomes(session_id, check::limit(limit)?).await?)
    }

    /// How well predictions came true, by client and domain.
    pub async fn calibration(
        &self,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>, Error> {
        Ok(self.core.store.calibration(project, client, domain).await?)
    }
}

pub(in crate::service) fn text_of(
    field: &'static str,
    text: &str,
    most: usize,
) -> Result<(), Error> {
    check::not_blank(field, text)?;
    let chars = text.chars().count();
    if chars > most {
        return Err(Error::invalid(
            field,
            format!("must have at most {most} characters, has {chars}"),
        ));
    }
    Ok(())
}

fn check_probability(probability: Option<f64>) -> Result<(), Error> {
    if probability.is_some_and(|probability| !(0.0..=1.0).contains(&probability)) {
        return Err(Error::invalid("probability", "must be from 0 to 1"));
    }
    Ok(())
}

async fn active(tx: &mut WriteTx, acting: &ActingSession) -> Result<Ghap, Error> {
    let ghap = tx.active_ghap(&acting.session_id).await?;
    ghap.ok_or_else(|| Error::not_found(ResourceKind::ActiveRecord, &acting.session_id))
}

/// An orphan that was found a moment ago, if it is one still: its session may have come back.
async fn still_orphan(tx: &mut WriteTx, id: &GhapId, stale: Timestamp) -> Result<Ghap, Error> {
    let unknown = || Error::not_found(ResourceKind::GhapRecord, id.as_str());
    let ghap = tx.ghap(id).await?.ok_or_else(unknown)?;
    let session = tx.session(&ghap.session_id).await?;
    let left = session.is_none_or(|it| it.ended_at.is_some() || it.last_seen_at < stale);
    if ghap.status != GhapStatus::Active || !left {
        return Err(Error::Conflict(format!("record {id} is not left open any more")));
    }
    Ok(ghap)
}

/// Records an outcome; tells also whether it is a new one.
pub(in crate::service) async fn put_outcome(
    tx: &mut WriteTx,
    ids: &Ids,
    acting: &ActingSession,
    new: NewOutcome,
) -> Result<(Outcome, bool), Error> {
    let session = tx.session(&acting.session_id).await?;
    let project = session.and_then(|session| session.project).unwrap_or_default();
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
    let outcome = tx.insert_outcome(&outcome, &acting.agent_id, &project, tool_use).await?;
    let is_new = outcome.outcome_id == made;
    if is_new {
        let data = json!({ "outcome_id": made, "verdict": outcome.verdict });
        tell(tx, &acting.session_id, "outcome.recorded", &data).await?;
    }
    Ok((outcome, is_new))
}

/// Without its texts: whoever wants to read them asks for the record.
async fn tell_of(tx: &mut WriteTx, ghap: &Ghap, kind: &'static str) -> Result<(), StoreError> {
    let data = json!({
        "id": ghap.id, "session_id": ghap.session_id, "domain": ghap.domain, "strategy": ghap.strategy,
        "status": ghap.status, "iteration_count": ghap.iteration_count,
        "confidence_tier": ghap.confidence_tier,
    });
    tell(tx, &ghap.session_id, kind, &data).await
}
