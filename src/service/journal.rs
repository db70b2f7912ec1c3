//! The journal: what each session is doing, what it predicted, what came of it.
//!
//! A change of a record, its history, the counters and its event are one write job: a crash leaves all of it or none.

use std::path::Path;

use serde_json::json;

use super::{Error, ResourceKind, Services, check, usefulness};
use crate::{
    domain::{
        Caller, GhapId, Ids, NewEvent, OutcomeId, StreamName, Timestamp, TokenId,
        journal::{
            Domain, Ghap, GhapStatus, Iteration, Lesson, Outcome, OutcomeVerdict, RootCause,
            Session, SessionSource, Strategy, Tier, ToolUse, Verdict, tier,
        },
        limits,
    },
    store::{
        CalibrationRow, Counted, GhapFilter, SessionFilter, SessionStart, StoreError, ToolCall,
        WriteTx,
    },
};

pub use super::journal_import::{Imported, OldGhap};

/// Where a call of the journal belongs: a session, and in it perhaps a sub-agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The client's own id of the session.
    pub session_id: String,
    /// The sub-agent; empty for the session itself.
    pub agent_id: String,
}

/// A session that begins.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The client's own id; one is made if there is none.
    pub session_id: Option<String>,
    /// Where it works.
    pub cwd: Option<String>,
    /// How it begins.
    pub source: SessionSource,
    /// Which program it is.
    pub client: Option<String>,
}

/// What a check-in says.
#[derive(Debug)]
pub struct CheckIn {
    /// Tool calls since the last one, this one included.
    pub tool_count: i64,
    /// Whether it is time to look at the record.
    pub due: bool,
    /// The record to look at.
    pub active: Option<Ghap>,
}

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

/// A session with its counters.
#[derive(Debug)]
pub struct SessionDetail {
    /// The session.
    pub session: Session,
    /// How often each tool was called.
    pub tools: Vec<ToolUse>,
    /// Its active record.
    pub active: Option<Ghap>,
}

/// The setting that names the session last started.
const CURRENT: &str = "current_session";
/// The session of callers that never started one.
const IMPLICIT: &str = "default";

impl Services {
    /// The session that a call is about: the one that it names, the caller's own, or the one last started here.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if a session token names another session than its own.
    pub async fn place(
        &self,
        caller: &Caller,
        own: Option<&str>,
        named: Option<&str>,
        agent_id: Option<&str>,
    ) -> Result<Place, Error> {
        let session_id = match (caller.session(), named) {
            (Some(token), Some(named)) if token != named => {
                return Err(Error::Forbidden(format!(
                    "session_id: this token speaks for session {token:?} and for no other"
                )));
            }
            (_, Some(named)) => named.to_owned(),
            (_, None) => {
                if let Some(own) = own {
                    own.to_owned()
                } else {
                    let current = self.store.setting(CURRENT).await?;
                    current.unwrap_or_else(|| IMPLICIT.to_owned())
                }
            }
        };
        check::key("session_id", Some(&session_id))?;
        check::short("agent_id", agent_id)?;
        Ok(Place { session_id, agent_id: agent_id.unwrap_or_default().to_owned() })
    }

    /// Begins a session, or begins it again: what it left open it has back.
    pub async fn start_session(
        &self,
        caller: &Caller,
        own: Option<&str>,
        new: NewSession,
    ) -> Result<Session, Error> {
        for (field, text) in [("cwd", &new.cwd), ("client", &new.client)] {
            check::key(field, text.as_deref())?;
        }
        let named = new.session_id.as_deref().or(own);
        let session_id = match named {
            Some(_) => self.place(caller, own, new.session_id.as_deref(), None).await?.session_id,
            None => uuid::Builder::from_random_bytes(random()).into_uuid().to_string(),
        };
        let start = SessionStart {
            session_id,
            project: new.cwd.as_deref().map(project_root),
            client: new.client,
            source: new.source,
            created_by: caller.subject(),
        };
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    tx.put_setting(CURRENT, &start.session_id).await?;
                    begin(tx, &start).await
                })
            })
            .await
    }

    /// Ends a session. Its open record is an orphan from then on; answers its id.
    pub async fn end_session(
        &self,
        place: Place,
        reason: Option<String>,
    ) -> Result<(Session, Option<GhapId>), Error> {
        check::short("reason", reason.as_deref())?;
        let (session, left) = self
            .store
            .write(move |tx| {
                Box::pin(async move {
                    let id = &place.session_id;
                    let unknown = || Error::not_found(ResourceKind::Session, id);
                    tx.session(id).await?.ok_or_else(unknown)?;
                    let left = end(tx, id, reason.as_deref()).await?;
                    Ok::<_, Error>((tx.session(id).await?.ok_or_else(unknown)?, left))
                })
            })
            .await?;
        self.tokens.forget(&left.tokens);
        Ok((session, left.record))
    }

    /// The project that a session works in.
    pub async fn project_of(&self, place: &Place) -> Result<Option<String>, Error> {
        Ok(self.store.session(&place.session_id).await?.and_then(|session| session.project))
    }

    /// A session with its counters.
    pub async fn session_detail(&self, session_id: &str) -> Result<SessionDetail, Error> {
        let session = self.store.session(session_id).await?;
        let session = session.ok_or_else(|| Error::not_found(ResourceKind::Session, session_id))?;
        let tools = self.store.tool_uses(session_id).await?;
        let active = self.store.active_ghap(session_id).await?;
        Ok(SessionDetail { session, tools, active })
    }

    /// A page of sessions, those heard of last first.
    pub async fn sessions(
        &self,
        filter: &SessionFilter,
        cursor: Option<&str>,
        limit: Option<u32>,
    ) -> Result<(Vec<Session>, Option<String>), Error> {
        let limit = check::limit(limit)?;
        let before: Option<(i64, String)> = check::cursor(cursor)?;
        let before = before.as_ref().map(|(at, id)| (Timestamp::from_millis(*at), id.as_str()));
        let mut sessions = self.store.sessions(filter, before, limit + 1).await?;
        let more = sessions.len() > limit as usize;
        sessions.truncate(limit as usize);
        let next = sessions.last().filter(|_| more).map(|session| {
            check::make_cursor(&(session.last_seen_at.as_millis(), &session.session_id))
        });
        Ok((sessions, next))
    }

    /// Counts a tool call.
    pub async fn count_tool(
        &self,
        caller: &Caller,
        place: Place,
        tool_name: Option<String>,
    ) -> Result<i64, Error> {
        Ok(self.counted(caller, place, tool_name, None).await?.since)
    }

    async fn counted(
        &self,
        caller: &Caller,
        place: Place,
        tool_name: Option<String>,
        frequency: Option<i64>,
    ) -> Result<Counted, Error> {
        check::key("tool_name", tool_name.as_deref())?;
        let Place { session_id, agent_id } = place;
        let created_by = caller.subject();
        let call = ToolCall { session_id, agent_id, tool_name, created_by, frequency };
        Ok(self.store.count_tool(call).await?)
    }

    /// Tool calls since the last reset.
    pub async fn tool_count(&self, place: Place) -> Result<i64, Error> {
        let session = self.store.session(&place.session_id).await?;
        Ok(session.map_or(0, |session| session.tool_count))
    }

    /// Counts from zero again.
    pub async fn reset_tool_count(&self, caller: &Caller, place: Place) -> Result<(), Error> {
        let subject = caller.subject();
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    tx.touch_session(&place.session_id, &subject).await?;
                    tx.reset_tool_count(&place.session_id, &place.agent_id).await?;
                    Ok(())
                })
            })
            .await
    }

    /// Counts a tool call, tells whether it is time to look at the record, and if so counts from zero again: in one
    /// step, so that of many calls at one moment exactly one is told.
    pub async fn check_in(
        &self,
        caller: &Caller,
        place: Place,
        tool_name: Option<String>,
        frequency: i64,
    ) -> Result<CheckIn, Error> {
        let counted = self.counted(caller, place, tool_name, Some(frequency)).await?;
        let Counted { since: tool_count, due, active } = counted;
        Ok(CheckIn { tool_count, due, active: active.map(|ghap| *ghap) })
    }

    /// Begins a record. A session has one at a time.
    ///
    /// # Errors
    /// [`Error::ActiveGhap`] with the id of the one that there is.
    pub async fn start_ghap(
        &self,
        caller: &Caller,
        place: Place,
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
        let (subject, ids) = (caller.subject(), self.ids.clone());
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let id = &place.session_id;
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
    pub async fn update_ghap(&self, place: Place, change: GhapChange) -> Result<Ghap, Error> {
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
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = active(tx, &place).await?;
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
                    tx.reset_tool_count(&place.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.updated").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// Ends the active record of a session.
    pub async fn resolve_ghap(&self, place: Place, end: Resolution) -> Result<Ghap, Error> {
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
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    let mut ghap = active(tx, &place).await?;
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
                        usefulness::note(tx, &ghap).await?;
                    }
                    tx.update_ghap(&ghap).await?;
                    tx.reset_tool_count(&place.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.resolved").await?;
                    Ok(ghap)
                })
            })
            .await
    }

    /// The active record of a session.
    pub async fn active_ghap(&self, place: &Place) -> Result<Option<Ghap>, Error> {
        Ok(self.store.active_ghap(&place.session_id).await?)
    }

    /// A record with its history.
    pub async fn ghap(&self, id: &str) -> Result<GhapDetail, Error> {
        let unknown = || Error::not_found(ResourceKind::GhapRecord, id);
        let id = GhapId::parse(id).ok_or_else(unknown)?;
        let ghap = self.store.ghap(&id).await?.ok_or_else(unknown)?;
        let history = self.store.iterations(&id).await?;
        let notes = self.store.notes(&id).await?;
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
        let mut ghaps = self.store.ghaps(filter, before.as_ref(), limit + 1).await?;
        let more = ghaps.len() > limit as usize;
        ghaps.truncate(limit as usize);
        let next = ghaps.last().filter(|_| more).map(|ghap| check::make_cursor(&ghap.id));
        Ok((ghaps, next))
    }

    /// Records that were left open in the project of a session, by sessions that are over or long silent; the one that
    /// was changed last first.
    pub async fn orphans(&self, place: &Place) -> Result<Vec<Ghap>, Error> {
        let session = self.store.session(&place.session_id).await?;
        let project = session.and_then(|session| session.project).unwrap_or_default();
        let stale = self.now().minus(limits::SESSION_STALE);
        Ok(self.store.orphans(&project, &place.session_id, stale).await?)
    }

    /// Takes over a record that was left open: it keeps its id and its history.
    pub async fn adopt_ghap(
        &self,
        caller: &Caller,
        place: Place,
        id: Option<&str>,
    ) -> Result<(Ghap, String), Error> {
        let orphan = self.one_orphan(&place, id).await?;
        let subject = caller.subject();
        let stale = self.now().minus(limits::SESSION_STALE);
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    tx.touch_session(&place.session_id, &subject).await?;
                    if let Some(active) = tx.active_ghap(&place.session_id).await? {
                        return Err(Error::ActiveGhap { id: active.id });
                    }
                    let mut ghap = still_orphan(tx, &orphan, stale).await?;
                    let from = std::mem::replace(&mut ghap.session_id, place.session_id.clone());
                    ghap.updated_at = tx.now();
                    tx.update_ghap(&ghap).await?;
                    tx.reset_tool_count(&place.session_id, "").await?;
                    tell_of(tx, &ghap, "ghap.adopted").await?;
                    Ok((ghap, from))
                })
            })
            .await
    }

    /// Ends a record that was left open, under the session that left it.
    pub async fn abandon_orphan(
        &self,
        place: Place,
        id: Option<&str>,
        reason: String,
    ) -> Result<Ghap, Error> {
        text_of("reason", &reason, limits::GHAP_LONG_TEXT_CHARS)?;
        let orphan = self.one_orphan(&place, id).await?;
        let stale = self.now().minus(limits::SESSION_STALE);
        self.store
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

    async fn one_orphan(&self, place: &Place, id: Option<&str>) -> Result<GhapId, Error> {
        let mut orphans = self.orphans(place).await?;
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
        place: Place,
        new: NewOutcome,
    ) -> Result<Outcome, Error> {
        text_of("command", &new.command, limits::GHAP_LONG_TEXT_CHARS)?;
        check::key("tool_use_id", new.tool_use_id.as_deref())?;
        let (subject, ids) = (caller.subject(), self.ids.clone());
        self.store
            .write(move |tx| {
                Box::pin(async move {
                    tx.touch_session(&place.session_id, &subject).await?;
                    Ok(put_outcome(tx, &ids, &place, new).await?.0)
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
        Ok(self.store.outcomes(session_id, check::limit(limit)?).await?)
    }

    /// How well predictions came true, by client and domain.
    pub async fn calibration(
        &self,
        project: Option<&str>,
        client: Option<&str>,
        domain: Option<Domain>,
    ) -> Result<Vec<CalibrationRow>, Error> {
        Ok(self.store.calibration(project, client, domain).await?)
    }
}

fn random() -> [u8; 16] {
    let mut bytes = [0_u8; 16];
    crate::domain::random_bytes(&mut bytes);
    bytes
}

/// Root of the project that a folder belongs to: the nearest folder above it that is a repository, else the folder.
/// The folder may be on another machine; then it is taken as it is.
pub(super) fn project_root(cwd: &str) -> String {
    let path = Path::new(cwd);
    let root = path.ancestors().find(|folder| folder.join(".git").exists()).unwrap_or(path);
    let root = root.to_string_lossy();
    let trimmed = root.trim_end_matches('/');
    if trimmed.is_empty() { root.into_owned() } else { trimmed.to_owned() }
}

pub(super) fn text_of(field: &'static str, text: &str, most: usize) -> Result<(), Error> {
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

async fn active(tx: &mut WriteTx, place: &Place) -> Result<Ghap, Error> {
    let ghap = tx.active_ghap(&place.session_id).await?;
    ghap.ok_or_else(|| Error::not_found(ResourceKind::ActiveRecord, &place.session_id))
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
pub(super) async fn put_outcome(
    tx: &mut WriteTx,
    ids: &Ids,
    place: &Place,
    new: NewOutcome,
) -> Result<(Outcome, bool), Error> {
    let session = tx.session(&place.session_id).await?;
    let project = session.and_then(|session| session.project).unwrap_or_default();
    let outcome = Outcome {
        outcome_id: OutcomeId::new(ids, tx.now()),
        session_id: place.session_id.clone(),
        command: new.command,
        verdict: new.verdict,
        summary: new.summary.chars().take(limits::OUTCOME_SUMMARY_CHARS).collect(),
        at: tx.now(),
    };
    let made = outcome.outcome_id.clone();
    let tool_use = new.tool_use_id.as_deref();
    let outcome = tx.insert_outcome(&outcome, &place.agent_id, &project, tool_use).await?;
    let is_new = outcome.outcome_id == made;
    if is_new {
        let data = json!({ "outcome_id": made, "verdict": outcome.verdict });
        tell(tx, &place.session_id, "outcome.recorded", &data).await?;
    }
    Ok((outcome, is_new))
}

/// What an ended session leaves.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The record that it did not end.
    pub(super) record: Option<GhapId>,
    /// Its tokens. They are good for nothing any more, and after the commit whoever ended it has them forgotten.
    pub(super) tokens: Vec<TokenId>,
}

/// Ends a session that there is, takes its tokens back, and says so in its stream.
pub(super) async fn end(
    tx: &mut WriteTx,
    id: &str,
    reason: Option<&str>,
) -> Result<Left, StoreError> {
    tx.end_session(id, reason).await?;
    let tokens = tx.revoke_tokens_of(id).await?;
    tx.reset_tool_count(id, "").await?;
    let record = tx.active_ghap(id).await?.map(|ghap| ghap.id);
    let data = json!({ "session_id": id, "reason": reason, "orphan": record });
    tell(tx, id, "session.ended", &data).await?;
    Ok(Left { record, tokens })
}

/// Begins a session, or begins it again, and says so in its stream.
pub(super) async fn begin(tx: &mut WriteTx, start: &SessionStart) -> Result<Session, Error> {
    tx.begin_session(start).await?;
    // A session that goes on keeps its count.
    if matches!(start.source, SessionSource::Startup | SessionSource::Clear) {
        tx.reset_tool_count(&start.session_id, "").await?;
    }
    // Of what it was given it has nothing left, or a summary at best.
    if matches!(start.source, SessionSource::Clear | SessionSource::Compact) {
        tx.forget_seen(&start.session_id).await?;
    }
    let session = tx.session(&start.session_id).await?;
    let session =
        session.ok_or_else(|| Error::not_found(ResourceKind::Session, &start.session_id))?;
    let data = json!({
        "session_id": session.session_id, "source": session.source,
        "client": session.client, "project": session.project,
    });
    tell(tx, &start.session_id, "session.started", &data).await?;
    Ok(session)
}

pub(super) async fn tell(
    tx: &mut WriteTx,
    session_id: &str,
    kind: &'static str,
    data: &serde_json::Value,
) -> Result<(), StoreError> {
    let stream = stream_of(session_id);
    tx.open_stream(&stream).await?;
    tx.append(&stream, vec![NewEvent::new(kind, data)]).await?;
    Ok(())
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

/// The stream of a session. A client's own id may hold what a stream's name may not.
fn stream_of(session_id: &str) -> StreamName {
    let name = format!("session/{session_id}");
    let fits = session_id.len() <= limits::ID_BYTES;
    StreamName::parse(&name).filter(|_| fits).unwrap_or_else(|| {
        use sha2::{Digest as _, Sha256};
        StreamName::of("session", check::hex(&Sha256::digest(session_id)[..16]))
    })
}
