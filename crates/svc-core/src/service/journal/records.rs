//! GHAP records of sessions: start, changes and end; the outcomes that support a verdict; and
//! orphans, which are active records whose session has ended or is stale.
//!
//! A change of a record, its history, the counters and its event are one write job, so that a crash
//! leaves all of it or none.
//!
//! Records, memories and values come from tools, whose schemas have the bounds of their texts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use svc_model::{
    Caller, GhapFilter, GhapId, IdReference, Ids, LATEST, NOT_BLANK, OutcomeId, Reader, Timestamp,
    journal::{
        Domain, Ghap, GhapChange, GhapDraft, GhapStatus, Iteration, Outcome, OutcomeVerdict,
        Resolution, Verdict,
    },
    limits,
};
use svc_store::{CalibrationRow, ProbabilityBin, StoreError, VerdictWeek, WriteTx, job};

use super::Journal;
use crate::boxed;
use crate::service::{
    Candidate, Error, Listed, Page, PageBounds, ResourceKind, Result, check,
    projects::project_of_write,
    search,
    team::{ActingSession, tell, touch_session},
};

/// A record with its history.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GhapDetail {
    /// The record.
    #[serde(flatten)]
    pub ghap: Ghap,
    /// What it said before each change.
    pub history: Vec<Iteration>,
    /// Notes to it.
    pub notes: Vec<String>,
}

impl Journal {
    /// Starts a record. A session has at most one active record.
    ///
    /// # Errors
    /// [`Error::ActiveGhap`] with the id of the active one.
    #[boxed]
    pub async fn start_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        draft: GhapDraft,
    ) -> Result<Ghap> {
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        let budget = self.core.budget.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let id = &acting.session_id;
            touch_session(tx, &budget, &caller, id).await?;
            budget.check_rows(tx, &caller, 1).await?;
            if let Some(active) = tx.ghaps().active(id).await? {
                return Err(Error::ActiveGhap { id: active.id });
            }
            let project = project_of_write(&caller, tx.sessions().get(id).await?);
            let now = tx.now();
            let ghap_id = GhapId::new(&ids, now);
            let ghap = Ghap::begin(ghap_id, id.clone(), project, draft, now);
            tx.ghaps().insert(&ghap).await?;
            tx.tool_counts().reset(id, "").await?;
            tell_of(tx, &ghap, "ghap.started").await?;
            Ok(ghap)
        }));
        write.await
    }

    /// Changes the active record of a session. A change of hypothesis, action or prediction stores
    /// the earlier ones.
    #[boxed]
    pub async fn update_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        change: GhapChange,
    ) -> Result<Ghap> {
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let mut ghap = active(tx, &acting).await?;
            let now = tx.now();
            let before = ghap.clone();
            let note = change.note.clone();
            ghap.apply(change);
            if ghap == before && note.is_none() {
                return Err(Error::invalid("arguments", "there is nothing to change"));
            }
            let turned = (&ghap.hypothesis, &ghap.action, &ghap.prediction)
                != (&before.hypothesis, &before.action, &before.prediction);
            if turned {
                let earlier = Iteration {
                    iteration: before.iteration_count,
                    hypothesis: before.hypothesis,
                    action: before.action,
                    prediction: before.prediction,
                    at: now,
                };
                tx.ghaps().insert_iteration(&ghap.id, &earlier).await?;
                ghap.iteration_count += 1;
            }
            if let Some(note) = note {
                tx.ghaps().insert_note(&ghap.id, &note, now).await?;
            }
            ghap.updated_at = now;
            update(tx, &ghap, "ghap.updated").await?;
            Ok(ghap)
        }));
        write.await
    }

    #[boxed]
    pub async fn resolve_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        resolution: Resolution,
    ) -> Result<Ghap> {
        if resolution.verdict == Verdict::Falsified {
            if resolution.surprise.is_none() {
                let why = "is missing: a falsified record says what was not expected";
                return Err(Error::invalid("surprise", why));
            }
            if resolution.root_cause.is_none() {
                let why = "is missing: a falsified record says why, as {category, description}";
                return Err(Error::invalid("root_cause", why));
            }
        }
        let reader = Reader::from_caller(caller);
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let mut ghap = active(tx, &acting).await?;
            if let Some(outcome) = &resolution.outcome_id {
                let unknown = || Error::not_found(ResourceKind::Outcome, outcome);
                let session = tx.outcomes().session(outcome).await?.ok_or_else(unknown)?;
                if session != ghap.session_id {
                    return Err(Error::invalid("outcome_id", "was seen in another session"));
                }
            }
            ghap.resolve(resolution, tx.now());
            if ghap.status == GhapStatus::Confirmed {
                search::note_confirmed(tx, &reader, &ghap).await?;
            }
            update(tx, &ghap, "ghap.resolved").await?;
            Ok(ghap)
        }));
        write.await
    }

    #[boxed]
    pub async fn active_ghap(&self, acting: &ActingSession) -> Result<Option<Ghap>> {
        Ok(self.core.store.ghaps().active(&acting.session_id).await?)
    }

    /// A record with its history, by its id or a prefix of it.
    #[boxed]
    pub async fn ghap(&self, caller: &Caller, id: &str) -> Result<GhapDetail> {
        let unknown = || Error::not_found(ResourceKind::GhapRecord, id);
        let (reader, store) = (Reader::from_caller(caller), &self.core.store);
        let ghap = if id == LATEST {
            let page =
                self.ghaps(caller, &GhapFilter::default(), PageBounds::new(None, Some(1))).await?;
            page.items.into_iter().next().ok_or_else(unknown)?
        } else if let Some(IdReference::Prefix(prefix)) = IdReference::parse(id, GhapId::PREFIX) {
            let ghaps = store.ghaps().with_prefix(&reader, &prefix, limits::PAGE_DEFAULT).await?;
            Error::only_one(ResourceKind::GhapRecord, id, ghaps, candidate)?
        } else {
            let id = GhapId::parse(id).ok_or_else(unknown)?;
            store.ghaps().get(&reader, &id).await?.ok_or_else(unknown)?
        };
        let history = store.ghaps().iterations(&ghap.id).await?;
        let notes = store.ghaps().notes(&ghap.id).await?;
        Ok(GhapDetail { ghap, history, notes })
    }

    /// A page of records that the caller may read, the latest made first.
    pub async fn ghaps(
        &self,
        caller: &Caller,
        filter: &GhapFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<Ghap>> {
        let reader = Reader::from_caller(caller);
        let project = self.core.projects.named(filter.project.as_deref()).await?;
        let filter = GhapFilter { project, ..filter.clone() };
        let read = async |before: Option<GhapId>, limit| {
            self.core.store.ghaps().list(&reader, &filter, before.as_ref(), limit).await
        };
        Page::read("ghap", page.into(), read, |ghap: &Ghap| ghap.id.clone()).await
    }

    /// The share of confirmed predictions, by client and domain, in the records that the caller may
    /// read.
    #[boxed]
    pub async fn calibration(
        &self,
        caller: &Caller,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>> {
        let project = self.core.projects.named(project).await?;
        let (reader, project) = (Reader::from_caller(caller), project.as_deref());
        Ok(self.core.store.calibration().rows(&reader, project, client, domain).await?)
    }

    /// Stated probabilities against verdicts, and their course over the weeks, in the records that
    /// the caller may read.
    #[boxed]
    pub async fn verdicts(
        &self,
        caller: &Caller,
        project: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<(Vec<ProbabilityBin>, Vec<VerdictWeek>)> {
        let project = self.core.projects.named(project).await?;
        let project = project.as_deref();
        let (reader, store) = (Reader::from_caller(caller), &self.core.store);
        let bins = store.calibration().probability_bins(&reader, project, domain).await?;
        let (calibration, most) = (store.calibration(), limits::VERDICT_WEEKS);
        Ok((bins, calibration.verdict_weeks(&reader, project, domain, most).await?))
    }
}

async fn active(tx: &mut WriteTx, acting: &ActingSession) -> Result<Ghap> {
    let ghap = tx.ghaps().active(&acting.session_id).await?;
    ghap.ok_or_else(|| Error::not_found(ResourceKind::ActiveRecord, &acting.session_id))
}

/// Stores a change of a session's active record. The count of the session's tool calls, which leads
/// to a reminder, starts again.
async fn update(tx: &mut WriteTx, ghap: &Ghap, event: &'static str) -> Result<(), StoreError> {
    tx.ghaps().update(ghap).await?;
    tx.tool_counts().reset(&ghap.session_id, "").await?;
    tell_of(tx, ghap, event).await
}

/// Appends an event about a record, without its texts: a reader who needs those reads the record.
async fn tell_of(
    tx: &mut WriteTx,
    ghap: &Ghap,
    event_kind: &'static str,
) -> Result<(), StoreError> {
    let data = json!({
        "id": ghap.id, "session_id": ghap.session_id, "domain": ghap.domain, "strategy": ghap.strategy,
        "status": ghap.status, "iteration_count": ghap.iteration_count,
        "confidence_tier": ghap.tier(),
    });
    tell(tx, &ghap.session_id, event_kind, &data).await
}

fn candidate(ghap: &Ghap) -> Candidate {
    let about = format!("{}, {}, since {}", ghap.status, ghap.goal, ghap.created_at);
    Candidate { id: ghap.id.as_str().to_owned(), about }
}

impl Journal {
    /// Orphaned records in the project of a session, the one that was changed last first.
    #[boxed]
    pub async fn orphans(&self, caller: &Caller, acting: &ActingSession) -> Result<Vec<Ghap>> {
        let session = self.core.store.sessions().get(&acting.session_id).await?;
        let project = match project_of_write(caller, session) {
            Some(project) => project,
            // Sessions without a project have nothing in common.
            None if !caller.is_operator() => return Ok(Vec::new()),
            None => String::new(),
        };
        let stale = self.core.now().minus(limits::SESSION_STALE);
        Ok(self.core.store.ghaps().orphans(&project, &acting.session_id, stale).await?)
    }

    /// Moves an orphaned record to the caller's session: it keeps its id and its history.
    #[boxed]
    pub async fn adopt_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: Option<&str>,
    ) -> Result<(Ghap, String)> {
        let orphan = self.one_orphan(caller, &acting, id).await?;
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let stale = self.core.now().minus(limits::SESSION_STALE);
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            touch_session(tx, &budget, &caller, &acting.session_id).await?;
            if let Some(active) = tx.ghaps().active(&acting.session_id).await? {
                return Err(Error::ActiveGhap { id: active.id });
            }
            let mut ghap = read_orphan(tx, &orphan, stale).await?;
            let from = std::mem::replace(&mut ghap.session_id, acting.session_id.clone());
            ghap.updated_at = tx.now();
            update(tx, &ghap, "ghap.adopted").await?;
            Ok((ghap, from))
        }));
        write.await
    }

    /// Abandons an orphaned record, under the session that left it. The operator may abandon one of
    /// any project, by its id or a prefix of it.
    #[boxed]
    pub async fn abandon_orphan(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: Option<&str>,
        reason: String,
    ) -> Result<Ghap> {
        check::text("reason", &reason, limits::GHAP_LONG_TEXT_CHARS)?;
        let orphan = match id {
            Some(id) if caller.is_operator() => self.ghap(caller, id).await?.ghap.id,
            _ => self.one_orphan(caller, &acting, id).await?,
        };
        let stale = self.core.now().minus(limits::SESSION_STALE);
        let write = self.core.store.on_behalf_of(caller).write(job!(|tx| {
            let mut ghap = read_orphan(tx, &orphan, stale).await?;
            ghap.resolve(Resolution::abandoned(reason), tx.now());
            tx.ghaps().update(&ghap).await?;
            tell_of(tx, &ghap, "ghap.resolved").await?;
            Ok(ghap)
        }));
        write.await
    }

    async fn one_orphan(
        &self,
        caller: &Caller,
        acting: &ActingSession,
        id: Option<&str>,
    ) -> Result<GhapId> {
        let mut orphans = self.orphans(caller, acting).await?;
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
}

/// Reads a record that was an orphan; an error if its session has returned since.
async fn read_orphan(tx: &mut WriteTx, id: &GhapId, stale: Timestamp) -> Result<Ghap> {
    let unknown = || Error::not_found(ResourceKind::GhapRecord, id.as_str());
    let ghap = tx.ghaps().get(id).await?.ok_or_else(unknown)?;
    let session = tx.sessions().get(&ghap.session_id).await?;
    let left =
        session.is_none_or(|session| session.ended_at.is_some() || session.last_seen_at < stale);
    if ghap.status != GhapStatus::Active {
        return Err(Error::Conflict(format!("record {id} has ended: it is {}", ghap.status)));
    }
    if !left {
        return Err(Error::Conflict(format!(
            "record {id} is not left open: session {} still works on it",
            ghap.session_id
        )));
    }
    Ok(ghap)
}

#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NewOutcome {
    /// The command.
    #[schemars(length(max = limits::GHAP_LONG_TEXT_CHARS), regex(pattern = NOT_BLANK))]
    pub command: String,
    /// Result of the command.
    pub verdict: OutcomeVerdict,
    /// A summary of its output; only the beginning is kept.
    pub summary: Option<String>,
    /// The client's id of the tool call; a repeat with the same id changes nothing.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    pub tool_use_id: Option<String>,
}

impl Listed for CalibrationRow {
    const NAME: &'static str = "results";
}

impl Journal {
    /// Records an outcome. Idempotent by the tool call's id.
    #[boxed]
    pub async fn record_outcome(
        &self,
        caller: &Caller,
        acting: ActingSession,
        new: NewOutcome,
    ) -> Result<Outcome> {
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        let budget = self.core.budget.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            touch_session(tx, &budget, &caller, &acting.session_id).await?;
            Ok(put_outcome(tx, &ids, &caller, &acting, new).await?.0)
        }));
        write.await
    }

    #[boxed]
    pub async fn outcomes(&self, session_id: &str, limit: Option<u32>) -> Result<Vec<Outcome>> {
        Ok(self.core.store.outcomes().list(session_id, check::limit(limit)?).await?)
    }
}

pub(in crate::service) async fn put_outcome(
    tx: &mut WriteTx,
    ids: &Ids,
    caller: &Caller,
    acting: &ActingSession,
    new: NewOutcome,
) -> Result<(Outcome, bool)> {
    let session = tx.sessions().get(&acting.session_id).await?;
    let project = project_of_write(caller, session).unwrap_or_default();
    let outcome = Outcome {
        outcome_id: OutcomeId::new(ids, tx.now()),
        session_id: acting.session_id.clone(),
        command: new.command,
        verdict: new.verdict,
        summary: new
            .summary
            .unwrap_or_default()
            .chars()
            .take(limits::OUTCOME_SUMMARY_CHARS)
            .collect(),
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
