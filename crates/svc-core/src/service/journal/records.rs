//! GHAP records of sessions: start, changes and end.
//!
//! A change of a record, its history, the counters and its event are one write job, so that a crash
//! leaves all of it or none.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use svc_model::{
    Caller, GhapFilter, GhapId, IdReference, LATEST, Reader,
    journal::{Domain, Ghap, GhapChange, GhapDraft, GhapStatus, Iteration, Resolution, Verdict},
    limits,
};
use svc_store::{CalibrationRow, ProbabilityBin, StoreError, VerdictWeek, WriteTx};

use super::{
    Journal,
    texts::{check_fraction, check_text},
};
use crate::service::{
    Candidate, Error, Page, PageBounds, ResourceKind,
    projects::project_of_write,
    search,
    team::{ActingSession, tell},
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
    pub async fn start_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        draft: GhapDraft,
    ) -> Result<Ghap, Error> {
        for (field, text) in [
            ("goal", &draft.goal),
            ("hypothesis", &draft.hypothesis),
            ("action", &draft.action),
            ("prediction", &draft.prediction),
        ] {
            check_text(field, text, limits::GHAP_TEXT_CHARS)?;
        }
        draft.probability.map_or(Ok(()), |share| check_fraction("probability", share))?;
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        let budget = self.core.budget.clone();
        self.core
            .store
            .on_behalf_of(&caller)
            .write(move |tx| {
                Box::pin(async move {
                    let id = &acting.session_id;
                    tx.sessions().touch(id, &caller.principal().to_string()).await?;
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
                })
            })
            .await
    }

    /// Changes the active record of a session. A change of hypothesis, action or prediction stores
    /// the earlier ones.
    pub async fn update_ghap(
        &self,
        caller: &Caller,
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
                check_text(field, text, most)?;
            }
        }
        change.probability.map_or(Ok(()), |share| check_fraction("probability", share))?;
        self.core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
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
                    tx.ghaps().update(&ghap).await?;
                    tx.tool_counts().reset(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.updated").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// Ends the active record of a session.
    pub async fn resolve_ghap(
        &self,
        caller: &Caller,
        acting: ActingSession,
        resolution: Resolution,
    ) -> Result<Ghap, Error> {
        check_text("result", &resolution.result, limits::GHAP_LONG_TEXT_CHARS)?;
        for (field, text) in [
            ("surprise", resolution.surprise.as_ref()),
            (
                "root_cause.description",
                resolution.root_cause.as_ref().map(|cause| &cause.description),
            ),
            ("lesson.what_worked", resolution.lesson.as_ref().map(|lesson| &lesson.what_worked)),
            (
                "lesson.takeaway",
                resolution.lesson.as_ref().and_then(|lesson| lesson.takeaway.as_ref()),
            ),
        ] {
            if let Some(text) = text {
                check_text(field, text, limits::GHAP_LONG_TEXT_CHARS)?;
            }
        }
        if resolution.verdict == Verdict::Falsified {
            if resolution.surprise.is_none() {
                return Err(Error::invalid(
                    "surprise",
                    "is missing: a falsified record says what was not expected",
                ));
            }
            if resolution.root_cause.is_none() {
                let why = "is missing: a falsified record says why, as {category, description}";
                return Err(Error::invalid("root_cause", why));
            }
        }
        let reader = Reader::from_caller(caller);
        self.core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = active(tx, &acting).await?;
                    if let Some(outcome) = &resolution.outcome_id {
                        let unknown = || Error::not_found(ResourceKind::Outcome, outcome);
                        let session = tx.outcomes().session(outcome).await?.ok_or_else(unknown)?;
                        if session != ghap.session_id {
                            return Err(Error::invalid(
                                "outcome_id",
                                "was seen in another session",
                            ));
                        }
                    }
                    ghap.resolve(resolution, tx.now());
                    if ghap.status == GhapStatus::Confirmed {
                        search::note_confirmed(tx, &reader, &ghap).await?;
                    }
                    tx.ghaps().update(&ghap).await?;
                    tx.tool_counts().reset(&acting.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.resolved").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    pub async fn active_ghap(&self, acting: &ActingSession) -> Result<Option<Ghap>, Error> {
        Ok(self.core.store.ghaps().active(&acting.session_id).await?)
    }

    /// A record with its history, by its id or a prefix of it.
    pub async fn ghap(&self, caller: &Caller, id: &str) -> Result<GhapDetail, Error> {
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
    ) -> Result<Page<Ghap>, Error> {
        let reader = Reader::from_caller(caller);
        let project = self.core.projects.named(filter.project.as_deref()).await?;
        let filter = GhapFilter { project, ..filter.clone() };
        let read = async |before: Option<GhapId>, limit| {
            self.core.store.ghaps().list(&reader, &filter, before.as_ref(), limit).await
        };
        Page::read(page.into(), read, |ghap: &Ghap| ghap.id.clone()).await
    }

    /// The share of confirmed predictions, by client and domain, in the records that the caller may
    /// read.
    pub async fn calibration(
        &self,
        caller: &Caller,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>, Error> {
        let project = self.core.projects.named(project).await?;
        let (reader, project) = (Reader::from_caller(caller), project.as_deref());
        Ok(self.core.store.calibration().rows(&reader, project, client, domain).await?)
    }

    /// Stated probabilities against verdicts, and their course over the weeks, in the records that
    /// the caller may read.
    pub async fn verdicts(
        &self,
        caller: &Caller,
        project: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<(Vec<ProbabilityBin>, Vec<VerdictWeek>), Error> {
        let project = self.core.projects.named(project).await?;
        let project = project.as_deref();
        let (reader, store) = (Reader::from_caller(caller), &self.core.store);
        let bins = store.calibration().probability_bins(&reader, project, domain).await?;
        let weeks = store
            .calibration()
            .verdict_weeks(&reader, project, domain, limits::VERDICT_WEEKS)
            .await?;
        Ok((bins, weeks))
    }
}

async fn active(tx: &mut WriteTx, acting: &ActingSession) -> Result<Ghap, Error> {
    let ghap = tx.ghaps().active(&acting.session_id).await?;
    ghap.ok_or_else(|| Error::not_found(ResourceKind::ActiveRecord, &acting.session_id))
}

/// Appends an event about a record, without its texts: a reader who needs those reads the record.
pub(super) async fn tell_of(
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
