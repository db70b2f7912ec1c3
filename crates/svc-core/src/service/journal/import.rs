//! Records of earlier systems, taken in as they are.

use std::{collections::HashMap, iter::Peekable, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, GhapId, Ids, RowReader, Timestamp,
    journal::{
        Domain, Ghap, GhapDraft, GhapState, Iteration, Lesson, ResolvedGhap, RootCause,
        RootCauseCategory, SessionSource, Strategy, Tier, Verdict, tier,
    },
    json_bytes, limits,
};
use svc_store::{SessionStart, WriteTx};

use super::room::Journal;
use crate::service::{Error, Page, PageLimit, check, project::project_root};

/// A record as earlier systems wrote it, a line each, and as `svc ghap export` does.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OldGhap {
    /// Its id there. Once more with the same is known.
    pub id: String,
    /// The session that it belongs to.
    pub session_id: String,
    /// Root of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// When it began.
    pub created_at: Timestamp,
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
    /// How sure its maker is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// What it said before it was changed.
    #[serde(default)]
    pub history: Vec<OldIteration>,
    /// How often it was changed, and once.
    #[serde(default)]
    pub iteration_count: Option<i64>,
    /// What came of it.
    #[serde(default)]
    pub outcome: Option<OldOutcome>,
    /// What was not expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub surprise: Option<String>,
    /// Why the prediction was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_cause: Option<OldRootCause>,
    /// What is to be remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lesson: Option<OldLesson>,
    /// How far it can be trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence_tier: Option<Tier>,
    /// Notes to it.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What a record said before it was changed.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OldIteration {
    /// When it was changed.
    pub timestamp: Timestamp,
    /// What was believed.
    pub hypothesis: String,
    /// What was done about it.
    pub action: String,
    /// What was predicted.
    pub prediction: String,
}

/// What came of a record.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OldOutcome {
    /// The verdict.
    pub status: Verdict,
    /// What was seen.
    #[serde(default)]
    pub result: String,
    /// When.
    pub captured_at: Timestamp,
    /// Whether a test run showed it.
    #[serde(default)]
    pub auto_captured: bool,
}

/// Why a prediction was wrong. Earlier systems wrote half of it at times.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OldRootCause {
    /// In a word.
    pub category: RootCauseCategory,
    /// In a sentence.
    #[serde(default)]
    pub description: String,
}

/// What is to be remembered.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OldLesson {
    /// What worked in the end.
    #[serde(default)]
    pub what_worked: String,
    /// What holds beyond this case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeaway: Option<String>,
}

/// What became of records that were taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Imported {
    /// New ones.
    pub imported: usize,
    /// Those that were here already.
    pub known: usize,
}

impl Journal {
    /// Imports records of earlier systems; none of them if one breaks a rule. One that was active there is abandoned here:
    /// nobody is at it.
    ///
    /// It takes a write job for each few records. After a failure some are here; a repeat knows them and imports the rest.
    pub async fn import_ghaps(
        &self,
        caller: &Caller,
        all: Vec<OldGhap>,
    ) -> Result<Imported, Error> {
        if !caller.is_operator() {
            return Err(Error::Forbidden("only the operator token may do this".to_owned()));
        }
        if all.len() > limits::EVENTS_PER_REQUEST {
            let most = limits::EVENTS_PER_REQUEST;
            return Err(Error::invalid("ghap", format!("must have at most {most} records")));
        }
        for (index, old) in all.iter().enumerate() {
            check_old(old)
                .map_err(|(field, why)| Error::invalid(format!("ghap[{index}].{field}"), why))?;
        }
        // This looks at the disk, which a write job does not.
        let folders = all.iter().filter_map(|old| old.project.clone());
        let roots: HashMap<String, String> =
            folders.map(|folder| (folder.clone(), project_root(&folder))).collect();
        let roots = Arc::new(roots);
        let subject = caller.principal().to_string();
        let (mut rest, mut became) = (all.into_iter().peekable(), Imported::default());
        while let Some(batch) = next_batch(&mut rest) {
            let (subject, ids, roots) =
                (subject.clone(), self.core.ids.clone(), Arc::clone(&roots));
            let done = self
                .core
                .store
                .on_behalf_of(caller)
                .write(move |tx| {
                    Box::pin(async move { import_batch(tx, &ids, &subject, &roots, batch).await })
                })
                .await?;
            became.imported += done.imported;
            became.known += done.known;
        }
        Ok(became)
    }
}

/// The records for one write job: few, and of few rows.
fn next_batch(rest: &mut Peekable<std::vec::IntoIter<OldGhap>>) -> Option<Vec<OldGhap>> {
    let mut batch = vec![rest.next()?];
    let mut rows = batch[0].rows();
    while batch.len() < limits::IMPORTS_PER_JOB {
        let fits = |next: &OldGhap| rows + next.rows() <= limits::IMPORT_ROWS_PER_JOB;
        let Some(next) = rest.next_if(fits) else { break };
        rows += next.rows();
        batch.push(next);
    }
    Some(batch)
}

/// Stores records that are not here yet, with their sessions. `roots` has the root of each folder.
async fn import_batch(
    tx: &mut WriteTx,
    ids: &Ids,
    subject: &str,
    roots: &HashMap<String, String>,
    batch: Vec<OldGhap>,
) -> Result<Imported, Error> {
    let mut became = Imported::default();
    for old in batch {
        let from = format!("{}/{}", old.session_id, old.id);
        if tx.is_imported(&from).await? || is_ours(tx, &old.id).await? {
            became.known += 1;
            continue;
        }
        if tx.session(&old.session_id).await?.is_none() {
            let start = SessionStart {
                session_id: old.session_id.clone(),
                project: old.project.as_ref().and_then(|folder| roots.get(folder).cloned()),
                client: Some("import".to_owned()),
                source: SessionSource::Startup,
                created_by: subject.to_owned(),
            };
            tx.begin_session(&start).await?;
            tx.end_session(&old.session_id, Some("imported")).await?;
        }
        let (history, notes) = (old.history.clone(), old.notes.clone());
        let ghap = record(GhapId::new(ids, old.created_at), old);
        tx.insert_ghap(&ghap, Some(&from)).await?;
        for (iteration, former) in (1..).zip(history) {
            let former = Iteration {
                iteration,
                hypothesis: former.hypothesis,
                action: former.action,
                prediction: former.prediction,
                at: former.timestamp,
            };
            tx.insert_iteration(&ghap.id, &former).await?;
        }
        for note in notes {
            tx.insert_note(&ghap.id, &note, ghap.updated_at).await?;
        }
        became.imported += 1;
    }
    Ok(became)
}

impl Journal {
    /// A page of the records that the caller may read with their history, in the order in which they were made, so that an import makes them in
    /// the same.
    pub async fn export_ghaps(
        &self,
        caller: &Caller,
        cursor: Option<&str>,
        limit: impl Into<PageLimit>,
    ) -> Result<Page<OldGhap>, Error> {
        let reader = RowReader::of(caller);
        let read = async |after: Option<GhapId>, limit| {
            self.core.store.ghaps_after(&reader, after.as_ref(), limit).await
        };
        let limit = limit.into();
        let bound = limit.size()?.bytes;
        let page = Page::read(cursor, limit, read, |ghap: &Ghap| ghap.id.clone()).await?;
        let mut items = Vec::with_capacity(page.items.len());
        let (mut bytes, mut last) = (0_usize, None);
        for ghap in page.items {
            let id = ghap.id.clone();
            let history = self.core.store.iterations(&ghap.id).await?;
            let notes = self.core.store.notes(&ghap.id).await?;
            let record = OldGhap::of(ghap, history, notes);
            // History and notes may be longer than the record.
            bytes = bytes.saturating_add(json_bytes(&record));
            if bytes > bound && !items.is_empty() {
                return Ok(Page {
                    items,
                    next_cursor: last.map(|id: GhapId| check::make_cursor(&id)),
                });
            }
            items.push(record);
            last = Some(id);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    }
}

/// A record that this very daemon exported.
async fn is_ours(tx: &mut WriteTx, id: &str) -> Result<bool, Error> {
    match GhapId::parse(id) {
        Some(id) => Ok(tx.ghap(&id).await?.is_some()),
        None => Ok(false),
    }
}

fn check_old(old: &OldGhap) -> Result<(), (&'static str, String)> {
    for (field, text) in [
        ("id", &old.id),
        ("session_id", &old.session_id),
        ("goal", &old.goal),
        ("hypothesis", &old.hypothesis),
        ("action", &old.action),
        ("prediction", &old.prediction),
    ] {
        if text.trim().is_empty() {
            return Err((field, "must not be blank".to_owned()));
        }
        // Earlier systems cut at ten thousand characters.
        if text.chars().count() > limits::IMPORT_TEXT_CHARS {
            let most = limits::IMPORT_TEXT_CHARS;
            return Err((field, format!("must have at most {most} characters")));
        }
    }
    if old.probability.is_some_and(|probability| !(0.0..=1.0).contains(&probability)) {
        return Err(("probability", "must be from 0 to 1".to_owned()));
    }
    for (field, entries) in [("history", old.history.len()), ("notes", old.notes.len())] {
        if entries > limits::IMPORT_NOTES {
            return Err((field, format!("must have at most {} entries", limits::IMPORT_NOTES)));
        }
    }
    Ok(())
}

fn record(id: GhapId, old: OldGhap) -> Ghap {
    let ended = old.outcome.as_ref().map(|outcome| outcome.captured_at);
    let verdict = old.outcome.as_ref().map_or(Verdict::Abandoned, |outcome| outcome.status);
    let auto = old.outcome.as_ref().is_some_and(|outcome| outcome.auto_captured);
    let given = old.confidence_tier.filter(|_| old.outcome.is_some());
    let confidence_tier = given.unwrap_or_else(|| tier(verdict, auto, &old.goal, &old.hypothesis));
    let changes = i64::try_from(old.history.len()).unwrap_or(i64::MAX);
    let at = ended.unwrap_or(old.created_at);
    let resolved = ResolvedGhap {
        verdict,
        result: old.outcome.map(|outcome| outcome.result),
        surprise: old.surprise.filter(|text| !text.trim().is_empty()),
        root_cause: old
            .root_cause
            .map(|cause| RootCause { category: cause.category, description: cause.description }),
        lesson: old
            .lesson
            .filter(|lesson| !lesson.what_worked.trim().is_empty() || lesson.takeaway.is_some())
            .map(|lesson| Lesson { what_worked: lesson.what_worked, takeaway: lesson.takeaway }),
        tier: confidence_tier,
        outcome_id: None,
        at,
    };
    let draft = GhapDraft {
        domain: old.domain,
        strategy: old.strategy,
        goal: old.goal,
        hypothesis: old.hypothesis,
        action: old.action,
        prediction: old.prediction,
        probability: old.probability,
    };
    let ghap = Ghap::begin(id, old.session_id, old.project, draft, old.created_at);
    Ghap {
        iteration_count: old.iteration_count.unwrap_or(1).max(changes + 1),
        state: GhapState::Resolved(Box::new(resolved)),
        updated_at: at,
        ..ghap
    }
}

impl OldGhap {
    /// Rows that it takes.
    fn rows(&self) -> usize {
        1 + self.history.len() + self.notes.len()
    }

    /// The form in which a record leaves: what `svc ghap import` takes.
    pub fn of(ghap: Ghap, history: Vec<Iteration>, notes: Vec<String>) -> Self {
        let resolved = ghap.state.into_resolved();
        let confidence_tier = resolved.as_ref().map(|resolved| resolved.tier);
        let (outcome, surprise, root_cause, lesson) = match resolved {
            None => (None, None, None, None),
            Some(resolved) => {
                let outcome = OldOutcome {
                    status: resolved.verdict,
                    result: resolved.result.unwrap_or_default(),
                    captured_at: resolved.at,
                    auto_captured: resolved.outcome_id.is_some(),
                };
                (Some(outcome), resolved.surprise, resolved.root_cause, resolved.lesson)
            }
        };
        Self {
            id: ghap.id.as_str().to_owned(),
            session_id: ghap.session_id,
            project: ghap.project,
            created_at: ghap.created_at,
            domain: ghap.domain,
            strategy: ghap.strategy,
            goal: ghap.goal,
            hypothesis: ghap.hypothesis,
            action: ghap.action,
            prediction: ghap.prediction,
            probability: ghap.probability,
            history: history
                .into_iter()
                .map(|earlier| OldIteration {
                    timestamp: earlier.at,
                    hypothesis: earlier.hypothesis,
                    action: earlier.action,
                    prediction: earlier.prediction,
                })
                .collect(),
            iteration_count: Some(ghap.iteration_count),
            outcome,
            surprise,
            root_cause: root_cause.map(|cause| OldRootCause {
                category: cause.category,
                description: cause.description,
            }),
            lesson: lesson.map(|lesson| OldLesson {
                what_worked: lesson.what_worked,
                takeaway: lesson.takeaway,
            }),
            confidence_tier,
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::testing::services;

    fn old(number: usize, notes: usize) -> OldGhap {
        serde_json::from_value(serde_json::json!({
            "id": format!("old_{number}"), "session_id": "s", "created_at": "2024-01-02T03:04:05Z",
            "domain": "debugging", "strategy": "read-the-error", "goal": "the build is green",
            "hypothesis": "a lock file is stale", "action": "remove it", "prediction": "it builds",
            "notes": vec!["a note"; notes],
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn a_large_import_is_many_small_jobs() {
        let test = TestStore::open().await;
        let services = services(&test);
        let mut all: Vec<OldGhap> = (0..70).map(|number| old(number, 3)).collect();
        all.push(old(70, limits::IMPORT_NOTES));
        let import = async |all: Vec<OldGhap>| {
            let before = test.store.stats().jobs;
            let became = services.journal.import_ghaps(&Caller::Operator, all).await;
            (became, test.store.stats().jobs - before)
        };
        let (became, jobs) = import(all.clone()).await;
        assert_eq!(became.unwrap(), Imported { imported: 71, known: 0 });
        assert_eq!(jobs, 6, "sixteen records each, and one alone that has many notes");
        let (became, _) = import(all.clone()).await;
        assert_eq!(became.unwrap(), Imported { imported: 0, known: 71 });
        all.push(old(71, limits::IMPORT_NOTES + 1));
        let (refused, jobs) = import(all).await;
        assert!(matches!(refused, Err(Error::Invalid { field, .. }) if field == "ghap[71].notes"));
        assert_eq!(jobs, 0, "none of them is imported");
    }
}
