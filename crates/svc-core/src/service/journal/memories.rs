//! Memories: texts that are kept for a project.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use svc_model::{
    Caller, NOT_BLANK, Reader, TAG,
    fit::{self, Fit, WeighedPrompt},
    learning::{Memory, MemoryCategory, MemoryId},
    limits,
    text::{self, Prompt},
};
use svc_store::{MemoryFilter, PageSize, SoughtTerm, StoreError, job};

use super::Journal;
use crate::boxed;
use crate::service::{
    Error, ResourceKind, Result,
    projects::project_of_write,
    search::confirmation_factor,
    team::{ActingSession, owns_session, tell, touch_session},
};

const ELSEWHERE: f64 = 0.7;

/// Something to remember.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NewMemory {
    /// What to remember, understandable without the context.
    #[schemars(length(max = limits::MEMORY_CHARS), regex(pattern = NOT_BLANK))]
    pub content: String,
    /// What it is.
    pub category: MemoryCategory,
    /// Its importance.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.5))]
    pub importance: Option<f64>,
    /// Tags of letters, digits, `_`, `-` and `.`.
    #[schemars(
        length(max = limits::MEMORY_TAGS),
        inner(length(max = limits::MEMORY_TAG_CHARS), regex(pattern = TAG))
    )]
    pub tags: Option<Vec<String>>,
    /// For all projects, not only that of the session; only the operator may set it.
    pub global: Option<bool>,
}

#[derive(Debug)]
pub struct StoredMemory {
    pub memory: Memory,
    /// Whether it existed already; then it is unchanged.
    pub is_known: bool,
}

impl Journal {
    /// Stores a memory. Idempotent: the same content in the same project and category returns the
    /// existing one. Only the operator may store one for all projects.
    #[boxed]
    pub async fn store_memory(
        &self,
        caller: &Caller,
        acting: ActingSession,
        new: NewMemory,
    ) -> Result<StoredMemory> {
        let (importance, global) = (new.importance.unwrap_or(0.5), new.global.unwrap_or(false));
        let mut known_tags = HashSet::new();
        let mut tags = new.tags.unwrap_or_default();
        tags.retain(|tag| known_tags.insert(tag.clone()));
        let digest = hex::encode(Sha256::digest(&new.content));
        let terms = text::terms(&new.content);
        if global && !caller.is_operator() {
            let why = "global: a memory for every project is the operator's to give";
            return Err(Error::Forbidden(why.to_owned()));
        }
        let (caller, ids) = (caller.clone(), self.core.ids.clone());
        let budget = self.core.budget.clone();
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let session_id = &acting.session_id;
            touch_session(tx, &budget, &caller, session_id).await?;
            let project = project_of_write(&caller, tx.sessions().get(session_id).await?);
            let memory = Memory {
                id: MemoryId::new(&ids, tx.now()),
                project: project.filter(|_| !global),
                category: new.category,
                content: new.content,
                importance,
                tags,
                confirmed_again: 0,
                created_at: tx.now(),
            };
            budget.check_rows(tx, &caller, 1).await?;
            let known = tx.memories().insert(&memory, &digest, &terms, session_id, global).await?;
            if let Some(memory) = known {
                return Ok(StoredMemory { memory, is_known: true });
            }
            let data = json!({ "id": memory.id, "category": memory.category });
            tell(tx, session_id, "memory.stored", &data).await?;
            Ok(StoredMemory { memory, is_known: false })
        }));
        write.await
    }

    /// The memories that match a text and that the caller may read, the best first, each with its
    /// match.
    #[boxed]
    pub async fn find_memories(
        &self,
        caller: &Caller,
        query: &str,
        project: Option<&str>,
        filter: &MemoryFilter,
        limit: usize,
    ) -> Result<Vec<(Memory, Fit)>> {
        let prompt = Prompt::read(query);
        let count = self.core.store.memories().count().await?;
        if prompt.groups.is_empty() || count == 0 {
            return Ok(Vec::new());
        }
        let members = as_json(&fit::members(&prompt));
        let frequencies: HashMap<String, i64> =
            self.core.store.memories().frequencies(&members).await?.into_iter().collect();
        let prompt =
            WeighedPrompt::new(prompt, usize::try_from(count).unwrap_or(usize::MAX), &frequencies);
        let most = u32::try_from(limits::SEARCH_CANDIDATES.max(limit)).unwrap_or(u32::MAX);
        let sought = |(term, weight)| {
            let memories = frequencies.get(term).copied().unwrap_or(0);
            SoughtTerm { term, weight, memories }
        };
        let terms: Vec<SoughtTerm<'_>> = prompt.terms().into_iter().map(sought).collect();
        let (reader, memories) = (Reader::from_caller(caller), self.core.store.memories());
        let candidates = memories.candidates(&reader, &terms, filter, most).await?;
        let now = self.core.now();
        let mut ranked: Vec<(Memory, Fit)> = candidates
            .into_iter()
            .filter_map(|(memory, terms)| {
                let mut fit = prompt.fit(&terms)?;
                let is_near = memory.project.is_none() || memory.project.as_deref() == project;
                fit.score *= (0.75 + 0.5 * memory.importance)
                    * fit::age(now.since(memory.created_at).as_secs_f64() / 86_400.0)
                    * if is_near { 1.0 } else { ELSEWHERE }
                    * confirmation_factor(memory.confirmed_again);
                Some((memory, fit))
            })
            .collect();
        // Candidates come in order of their match, then latest first. The sort is stable, so equal
        // scores keep that order.
        ranked.sort_by(|a, b| b.1.score.total_cmp(&a.1.score));
        ranked.truncate(limit);
        Ok(ranked)
    }

    /// A page of memories that the caller may read, the latest first, and the number of all of
    /// them.
    #[boxed]
    pub async fn memories(
        &self,
        caller: &Caller,
        filter: &MemoryFilter,
        offset: u32,
        limit: u32,
    ) -> Result<(Vec<Memory>, i64)> {
        let project = self.core.projects.named(filter.project.as_deref()).await?;
        let filter = &MemoryFilter { project, ..filter.clone() };
        let (reader, size) = (Reader::from_caller(caller), PageSize::rows(limit));
        Ok(self.core.store.memories().list(&reader, filter, offset, size).await?)
    }

    /// Removes a memory: one of the caller's own session, or any for the operator.
    #[boxed]
    pub async fn delete_memory(
        &self,
        caller: &Caller,
        acting: ActingSession,
        id: &str,
    ) -> Result<MemoryId> {
        let id = MemoryId::parse(id).ok_or_else(|| {
            Error::invalid("memory_id", "must be a UUID, as store_memory gives it")
        })?;
        let (caller, budget) = (caller.clone(), self.core.budget.clone());
        let write = self.core.store.on_behalf_of(&caller).write(job!(|tx| {
            let unknown = || Error::not_found(ResourceKind::Memory, id.as_str());
            let maker = tx.memories().maker(&Reader::from_caller(&caller), &id).await?;
            let (session, is_readable) = maker.ok_or_else(unknown)?;
            if !owns_session(tx, &caller, &session).await? {
                return Err(if is_readable {
                    let why =
                        format!("memory {} is another's: its maker may remove it", id.as_str());
                    Error::Forbidden(why)
                } else {
                    unknown()
                });
            }
            if !tx.memories().delete(&id).await? {
                return Err(unknown());
            }
            touch_session(tx, &budget, &caller, &acting.session_id).await?;
            let data = json!({ "id": id });
            tell(tx, &acting.session_id, "memory.deleted", &data).await?;
            Ok(id)
        }));
        write.await
    }

    /// The most important memories of a project that the caller may read.
    pub(super) async fn important_memories(
        &self,
        caller: &Caller,
        project: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Memory>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let (reader, memories) = (Reader::from_caller(caller), self.core.store.memories());
        let project = project.unwrap_or_default();
        memories.important(&reader, project, limits::MEMORY_IMPORTANT, limit).await
    }
}

fn as_json(terms: &impl serde::Serialize) -> String {
    serde_json::to_string(terms).unwrap_or_default()
}
