//! Context for a session: what the team knows that has to do with a prompt, as Markdown of a
//! bounded size.
//!
//! Nothing is given twice to a session, unless it has changed since or the session forgot.

use std::collections::{HashSet, VecDeque};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    Caller, Reader, Timestamp,
    fit::{self, WeighedPrompt},
    journal::{Ghap, GhapStatus},
    learning::{Memory, Value},
    limits,
    quote::{ModelText, model_text},
    text::Prompt,
};
use svc_store::{MemoryFilter, SearchFilter, SeenItem};

use super::{
    bounded_markdown::{AssembledContext, BoundedMarkdown},
    room::Journal,
};
use crate::service::{Error, search::ExperienceQuery};

/// Kinds of things that a context may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    /// Records of what was tried.
    Experiences,
    /// Sentences drawn from records that are alike.
    Values,
    /// What somebody wanted to be remembered.
    Memories,
}

impl ContextKind {
    /// All of them.
    pub const ALL: &'static [Self] = &[Self::Experiences, Self::Values, Self::Memories];

    const fn heading(self) -> &'static str {
        match self {
            Self::Experiences => "Past experiences",
            Self::Values => "Learned values",
            Self::Memories => "Memories",
        }
    }
}

/// What a context is for.
#[derive(Debug, Clone)]
pub struct ContextRequest {
    /// The prompt. A blank one asks for what matters in the project at all.
    pub query: String,
    /// The session that it is for. Without one, nothing is known to be seen.
    pub session_id: Option<String>,
    /// The project; that of the session by default.
    pub project: Option<String>,
    /// What it may hold; empty for everything.
    pub kinds: Vec<ContextKind>,
    /// Most items of each kind.
    pub limit: usize,
    /// Most bytes.
    pub budget: usize,
    /// Also what the session was given before.
    pub repeat: bool,
    /// Note that the session was given it.
    pub remember: bool,
    /// The call of a hook that it is an answer to. If it is known that nobody will see that, there
    /// is nothing to tell.
    pub hook_id: Option<String>,
}

/// Of a list of experiences, one in so many is kept for what did not work: nobody would look for
/// that.
const ONE_IN: usize = 5;

impl Journal {
    /// What the team knows that has to do with a prompt.
    pub async fn assemble_context(
        &self,
        caller: &Caller,
        request: &ContextRequest,
    ) -> Result<AssembledContext, Error> {
        let mut request = request.clone();
        if let Some(session) = &request.session_id {
            self.team.acting_session(caller, None, Some(session), None).await?;
            if !caller.is_operator() {
                request.project = caller.project().map(str::to_owned);
            } else if request.project.is_none() {
                request.project = self
                    .core
                    .store
                    .sessions()
                    .get(session)
                    .await?
                    .and_then(|session| session.project);
            }
        }
        let seen: HashSet<SeenKey> = match &request.session_id {
            Some(session) if !request.repeat => {
                self.core.store.seen().list(session).await?.into_iter().collect()
            }
            _ => HashSet::new(),
        };
        let mut candidates = self.relevant(caller, &request).await?;
        leave_out(&mut candidates, &seen);
        let mut markdown = BoundedMarkdown::new(request.budget);
        fill(&mut markdown, candidates, request.limit);
        let Some(session_id) =
            request.session_id.filter(|_| request.remember && !markdown.is_empty())
        else {
            return Ok(markdown.finish());
        };
        // Of two calls at one moment only one may give an item; the other leaves it out.
        let items: Vec<SeenItem> = markdown.items().cloned().collect();
        let hook_id = request.hook_id;
        let fresh: HashSet<SeenItem> = self
            .core
            .store
            .on_behalf_of(caller)
            .write(move |tx| {
                Box::pin(async move {
                    let mut fresh = HashSet::new();
                    let hook = hook_id.as_deref();
                    if let Some(hook) = hook
                        && tx.hooks().is_lost(hook).await?
                    {
                        return Ok::<_, Error>(fresh);
                    }
                    for item in items {
                        if tx.seen().note(&session_id, &item, hook).await? {
                            fresh.insert(item);
                        }
                    }
                    Ok(fresh)
                })
            })
            .await?;
        if !request.repeat {
            markdown.retain(|item| fresh.contains(item));
        }
        Ok(markdown.finish())
    }

    /// What may come in, kind by kind, the best of each first.
    async fn relevant(
        &self,
        caller: &Caller,
        request: &ContextRequest,
    ) -> Result<Vec<ContextItem>, Error> {
        let wants = |kind| request.kinds.is_empty() || request.kinds.contains(&kind);
        let mut candidates = Vec::new();
        if wants(ContextKind::Experiences) {
            let ghaps = self.experiences(caller, request).await?;
            candidates.extend(ghaps.iter().map(ContextItem::of_ghap));
        }
        if wants(ContextKind::Values) {
            let values = self.fitting_values(caller, request).await?;
            candidates.extend(values.iter().map(ContextItem::of_value));
        }
        if wants(ContextKind::Memories) {
            let memories = self.fitting_memories(caller, request).await?;
            candidates.extend(memories.iter().map(ContextItem::of_memory));
        }
        Ok(candidates)
    }

    async fn experiences(
        &self,
        caller: &Caller,
        request: &ContextRequest,
    ) -> Result<Vec<Ghap>, Error> {
        if request.query.trim().is_empty() {
            return Ok(Vec::new());
        }
        let search = ExperienceQuery {
            prompt: &request.query,
            project: request.project.as_deref(),
            filter: SearchFilter::default(),
            // A short list has no slot for what did not work; and what was seen already takes
            // slots, too.
            limit: (request.limit * 2).clamp(10, limits::SEARCH_HITS),
            // Whoever asks for context is told as little of what has nothing to do with it as who
            // did not.
            only_relevant: true,
            with_open: false,
        };
        let hits = self.search.search_ghaps(caller, &search).await?;
        // Of what was given up without a word on why there is nothing to learn.
        let ghaps = hits.into_iter().map(|hit| hit.ghap);
        Ok(ghaps
            .filter(|ghap| ghap.status != GhapStatus::Abandoned || ghap.lesson().is_some())
            .collect())
    }

    /// Values that fit the prompt, the best first; without one those of the project, the latest
    /// first.
    async fn fitting_values(
        &self,
        caller: &Caller,
        request: &ContextRequest,
    ) -> Result<Vec<Value>, Error> {
        let (values, _) = self
            .core
            .store
            .values()
            .list(&Reader::from_caller(caller), None, limits::VALUES_RANKED)
            .await?;
        let is_own = |value: &Value| value.project.is_none() || value.project == request.project;
        if request.query.trim().is_empty() {
            return Ok(values.into_iter().map(|(value, _)| value).filter(is_own).collect());
        }
        let frequencies = fit::frequencies(values.iter().map(|(_, terms)| terms.as_str()));
        let prompt = WeighedPrompt::new(Prompt::read(&request.query), values.len(), &frequencies);
        let mut ranked: Vec<(f64, Value)> = values
            .into_iter()
            .filter_map(|(value, terms)| {
                let fit = prompt.fit(&terms)?;
                let nearness = if is_own(&value) { 1.0 } else { 0.8 };
                fit.is_relevant.then_some((fit.score * nearness, value))
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        Ok(ranked.into_iter().map(|(_, value)| value).collect())
    }

    /// Memories that fit the prompt, the best first; without one those that matter to the project.
    async fn fitting_memories(
        &self,
        caller: &Caller,
        request: &ContextRequest,
    ) -> Result<Vec<Memory>, Error> {
        let project = request.project.as_deref();
        let limit = limits::SEARCH_HITS;
        if request.query.trim().is_empty() {
            return Ok(self.important_memories(caller, project, limit).await?);
        }
        let filter = MemoryFilter::default();
        let ranked = self.find_memories(caller, &request.query, project, &filter, limit).await?;
        let fitting = ranked.into_iter().filter(|(_, fit)| fit.is_relevant);
        Ok(fitting.map(|(memory, _)| memory).collect())
    }
}

/// Kind, id and version of something that a session was given.
type SeenKey = (String, String, Timestamp);

/// Leaves out what was seen, and what says the same as something that was or that comes before it.
fn leave_out(candidates: &mut Vec<ContextItem>, seen: &HashSet<SeenKey>) {
    let is_seen = |candidate: &ContextItem| {
        let item = &candidate.item;
        seen.contains(&(item.kind.to_owned(), item.id.clone(), item.version))
    };
    let mut given_texts: HashSet<Vec<(&'static str, String)>> = candidates
        .iter()
        .filter(|candidate| is_seen(candidate))
        .map(|candidate| candidate.texts.clone())
        .collect();
    candidates.retain(|candidate| given_texts.insert(candidate.texts.clone()));
}

/// Something that a context may hold.
struct ContextItem {
    kind: ContextKind,
    item: SeenItem,
    /// It did not work.
    is_failed: bool,
    /// What its first line begins with.
    lead: ModelText,
    /// Its texts with their names, the most telling first.
    texts: Vec<(&'static str, String)>,
}

impl ContextItem {
    fn of_ghap(ghap: &Ghap) -> Self {
        Self {
            kind: ContextKind::Experiences,
            lead: model_text!("**{}, {}** {}", ghap.domain, ghap.status, ghap.id),
            item: SeenItem::from(ghap),
            is_failed: ghap.status == GhapStatus::Falsified,
            texts: texts_of(ghap),
        }
    }

    fn of_value(value: &Value) -> Self {
        let id = value.id.as_str().to_owned();
        Self {
            kind: ContextKind::Values,
            item: SeenItem { kind: "value", id, version: value.validated_at },
            is_failed: false,
            lead: ModelText::default(),
            texts: vec![("", value.text.clone())],
        }
    }

    fn of_memory(memory: &Memory) -> Self {
        Self {
            kind: ContextKind::Memories,
            item: SeenItem::from(memory),
            is_failed: false,
            lead: model_text!("**{}**", memory.category),
            texts: vec![("", memory.content.clone())],
        }
    }
}

/// What a record has to say, what it taught first.
fn texts_of(ghap: &Ghap) -> Vec<(&'static str, String)> {
    let mut texts: Vec<(&'static str, String)> = Vec::new();
    let mut add = |name, text: Option<&str>| {
        let is_new = |text: &&str| !texts.iter().any(|(_, earlier)| earlier == *text);
        if let Some(text) = text.filter(|text| !text.trim().is_empty()).filter(is_new) {
            texts.push((name, text.to_owned()));
        }
    };
    let lesson = ghap.lesson();
    add("Lesson", lesson.and_then(|lesson| lesson.takeaway.as_deref()));
    add("What worked", lesson.map(|lesson| lesson.what_worked.as_str()));
    add("Surprise", ghap.surprise());
    add("Cause", ghap.root_cause().map(|cause| cause.description.as_str()));
    add("Goal", Some(&ghap.goal));
    add("Hypothesis", Some(&ghap.hypothesis));
    add("Result", ghap.result());
    texts
}

/// Adds items, kind by kind in turns, so that no kind takes all the room.
fn fill(markdown: &mut BoundedMarkdown, candidates: Vec<ContextItem>, limit: usize) {
    use ContextKind::{Experiences, Memories, Values};
    let mut left: VecDeque<ContextItem> = candidates.into();
    let (mut taken, mut failed) = ([0_usize; 3], 0_usize);
    loop {
        let mut is_over = true;
        for kind in [Experiences, Values, Experiences, Memories, Experiences] {
            let taken = &mut taken[kind as usize];
            if *taken == limit {
                continue;
            }
            // The best record first, and then one that did not work if it is time for one.
            let wants_failed = *taken > 0 && failed < (*taken + 1).div_ceil(ONE_IN);
            let of_kind = |candidate: &ContextItem| candidate.kind == kind;
            let next = left
                .iter()
                .position(|candidate| of_kind(candidate) && wants_failed && candidate.is_failed)
                .or_else(|| left.iter().position(of_kind));
            let Some(candidate) = next.and_then(|index| left.remove(index)) else { continue };
            is_over = false;
            *taken += 1;
            failed += usize::from(candidate.is_failed);
            markdown.add(kind.heading(), Some(candidate.item), &candidate.lead, &candidate.texts);
        }
        if is_over {
            break;
        }
    }
}
