//! Tools that store, list, search and delete memories.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    NOT_BLANK, TAG, Timestamp,
    fit::Fit,
    learning::{Memory, MemoryCategory, MemoryId},
    limits, quote,
};
use svc_store::{ItemVersion, MemoryFilter};

use super::{Call, Failure, Tool, sessions::in_session};
use crate::service::{Listed, Page, journal::NewMemory, team::ActingSession};

pub(super) fn tools() -> Vec<Tool> {
    vec![
        in_session("store_memory", STORE, store).title("Remember something").idempotent(),
        in_session("retrieve_memories", RETRIEVE, retrieve)
            .title("Search memories")
            .read_only()
            .heavy(),
        Tool::new("list_memories", LIST, list).title("List memories").read_only().heavy(),
        in_session("delete_memory", DELETE, delete).title("Forget something").destructive(),
    ]
}

const STORE: &str = "\
Keeps something for later sessions of this project: what somebody likes, what is so, how something is done here, what was \
decided and why. What was tried, and what came of it, belongs into a GHAP record.

The same content once more in the same category changes nothing and gives the memory that there is.";

#[derive(Serialize, JsonSchema)]
struct MemoryStored {
    id: MemoryId,
    /// `stored`, or `known` if it was there already.
    status: &'static str,
    category: MemoryCategory,
    importance: f64,
    created_at: Timestamp,
}

async fn store(call: Call, acting: ActingSession, new: NewMemory) -> Result<MemoryStored, Failure> {
    let stored = call.services.journal.store_memory(&call.caller, acting, new).await?;
    Ok(MemoryStored {
        id: stored.memory.id,
        status: if stored.is_known { "known" } else { "stored" },
        category: stored.memory.category,
        importance: stored.memory.importance,
        created_at: stored.memory.created_at,
    })
}

const RETRIEVE: &str = "\
Searches memories by what they say, the best first. Those of this project, and those that hold everywhere, come before those \
of other projects.";

#[derive(Deserialize, JsonSchema)]
struct MemoryQuery {
    /// Any text; a blank one finds nothing.
    #[schemars(length(max = limits::SEARCH_QUERY_CHARS))]
    query: String,
    /// How many at most.
    #[schemars(range(min = 1, max = 100), extend("default" = 10))]
    limit: Option<usize>,
    /// Only this category.
    category: Option<MemoryCategory>,
    /// Only those with at least this importance.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.0))]
    min_importance: Option<f64>,
}

/// A memory that was found.
#[derive(Serialize, JsonSchema)]
struct MemoryHit {
    #[serde(flatten)]
    memory: Memory,
    /// How well it fits; comparable within one answer.
    score: f64,
}

impl Listed for MemoryHit {
    const NAME: &'static str = "results";
}

async fn retrieve(
    call: Call,
    acting: ActingSession,
    input: MemoryQuery,
) -> Result<Page<MemoryHit>, Failure> {
    let project = call.services.team.project_of(&acting).await?;
    let filter = MemoryFilter {
        category: input.category,
        min_importance: input.min_importance.unwrap_or(0.0),
        ..MemoryFilter::default()
    };
    let limit = input.limit.unwrap_or(10);
    let (journal, project) = (&call.services.journal, project.as_deref());
    let hits = journal.find_memories(&call.caller, &input.query, project, &filter, limit).await?;
    let hit = |(memory, fit): (Memory, Fit)| MemoryHit { memory, score: fit.score };
    let page = Page::best(hits.into_iter().map(hit));
    let given = page.items.iter().map(|hit| ItemVersion::from(&hit.memory)).collect();
    call.services.search.note_found(&call.caller, &acting.session_id, given).await;
    Ok(page)
}

const LIST: &str = "Lists memories, the latest first, with the beginning of each. retrieve_memories gives the whole of what it finds.";

#[derive(Deserialize, JsonSchema)]
struct MemoryListInput {
    /// Only this category.
    category: Option<MemoryCategory>,
    /// Only those with one of these tags.
    #[schemars(
        length(max = limits::MEMORY_TAGS),
        inner(length(max = limits::MEMORY_TAG_CHARS), regex(pattern = TAG))
    )]
    tags: Option<Vec<String>>,
    /// Only this project; an empty text means global memories.
    project: Option<String>,
    /// How many at most.
    #[schemars(range(min = 1, max = 200), extend("default" = 50))]
    limit: Option<u32>,
    /// How many to skip.
    #[schemars(range(min = 0, max = u32::MAX), extend("default" = 0))]
    offset: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct MemoryList {
    results: Vec<MemoryRow>,
    count: usize,
    /// How many there are on all pages.
    total: i64,
}

/// A memory in a list.
#[derive(Serialize, JsonSchema)]
struct MemoryRow {
    id: MemoryId,
    category: MemoryCategory,
    importance: f64,
    /// Confirmed records of other sessions that it has helped to.
    confirmed_again: i64,
    /// What it is filed under, as far as there is room.
    tags: Vec<String>,
    /// The beginning of what it says.
    excerpt: String,
    created_at: Timestamp,
}

/// Bytes of a memory's excerpt and of its tags in a list: an entry has at most 500.
const EXCERPT: usize = 160;
const TAGS: usize = 140;

async fn list(call: Call, input: MemoryListInput) -> Result<MemoryList, Failure> {
    let filter = MemoryFilter {
        category: input.category,
        project: input.project,
        tags: input.tags.unwrap_or_default(),
        min_importance: 0.0,
    };
    let (offset, limit) = (input.offset.unwrap_or(0), input.limit.unwrap_or(50));
    let (memories, total) =
        call.services.journal.memories(&call.caller, &filter, offset, limit).await?;
    let results: Vec<MemoryRow> = memories
        .into_iter()
        .map(|memory| {
            let mut room = TAGS;
            let fits = |tag: &String| {
                let size = tag.len() + 3;
                let fits = size <= room;
                room = room.saturating_sub(size);
                fits
            };
            MemoryRow {
                tags: memory.tags.into_iter().take_while(fits).collect(),
                excerpt: quote::excerpt(&memory.content, EXCERPT),
                id: memory.id,
                category: memory.category,
                importance: memory.importance,
                confirmed_again: memory.confirmed_again,
                created_at: memory.created_at,
            }
        })
        .collect();
    Ok(MemoryList { count: results.len(), results, total })
}

const DELETE: &str = "Removes a memory permanently, for all sessions.";

#[derive(Deserialize, JsonSchema)]
struct DeleteMemoryInput {
    /// Its id, a UUID.
    #[schemars(regex(pattern = NOT_BLANK))]
    memory_id: String,
}

#[derive(Serialize, JsonSchema)]
struct MemoryDeleted {
    deleted: bool,
    id: MemoryId,
}

async fn delete(
    call: Call,
    acting: ActingSession,
    input: DeleteMemoryInput,
) -> Result<MemoryDeleted, Failure> {
    let id = call.services.journal.delete_memory(&call.caller, acting, &input.memory_id).await?;
    Ok(MemoryDeleted { deleted: true, id })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{World, each, text};
    use crate::tools::ErrorType;

    #[tokio::test]
    async fn a_memory_is_stored_found_and_deleted() {
        let (world, call) = World::with_session().await;
        let content = "x \"quoted\"\n\u{2028}😀".repeat(500);
        let new = json!({ "content": content, "category": "fact", "importance": 1, "tags": ["a", "b-2.0", "a"] });
        let stored = world.call(&call, "store_memory", new.clone()).await;
        assert_eq!(stored["status"], "stored");
        assert_eq!(text(&stored, "id").len(), 36);
        assert!(stored.to_string().len() < 500, "what was said is not repeated");
        let again = world.call(&call, "store_memory", new.clone()).await;
        assert_eq!((&again["id"], &again["status"]), (&stored["id"], &json!("known")));
        // Another category, another project and no project: each has a memory of its own.
        let mut other = new.clone();
        other["category"] = json!("event");
        assert_eq!(world.call(&call, "store_memory", other).await["status"], "stored");
        let mut global = new.clone();
        global["global"] = json!(true);
        assert_eq!(world.call(&call, "store_memory", global).await["status"], "stored");
        let far = world.begin("far", "/nowhere/q").await;
        assert_eq!(world.call(&far, "store_memory", new).await["status"], "stored");

        let list = world.call(&call, "list_memories", json!({ "tags": ["b-2.0"] })).await;
        assert_eq!((&list["count"], &list["total"]), (&json!(4), &json!(4)));
        assert!(list["results"].as_array().unwrap().iter().all(|one| one.to_string().len() <= 500));
        let found = world.call(&call, "retrieve_memories", json!({ "query": "quoted" })).await;
        assert_eq!(found["count"], 4);
        assert_eq!(found["results"][3]["project"], "/nowhere/q", "other projects come last");
        assert_eq!(found["results"][0]["content"], content);

        let id = json!({ "memory_id": stored["id"] });
        assert_eq!(world.call(&call, "delete_memory", id.clone()).await["deleted"], true);
        world.refuse(&call, "delete_memory", id, ErrorType::NotFound).await;
        let odd = json!({ "memory_id": "not-a-uuid" });
        world.refuse_field(&call, "delete_memory", odd, "memory_id").await;
        let found = world.call(&call, "retrieve_memories", json!({ "query": "quoted" })).await;
        assert_eq!(found["count"], 3, "what is gone is not found");
    }

    #[tokio::test]
    async fn pages_are_in_order_and_the_total_is_right() {
        let (world, call) = World::with_session().await;
        let tags: Vec<String> = (0..20).map(|n| format!("{n:0>50}")).collect();
        for n in 0..7 {
            let category = if n % 2 == 0 { "decision" } else { "error" };
            let new =
                json!({ "content": format!("number {n}"), "category": category, "tags": tags });
            world.call(&call, "store_memory", new).await;
        }
        let mut seen: Vec<Value> = Vec::new();
        for offset in [0, 3, 6, 9] {
            let page = json!({ "limit": 3, "offset": offset });
            let page = world.call(&call, "list_memories", page).await;
            assert_eq!(page["total"], 7);
            seen.extend(each(&page["results"], "excerpt"));
        }
        let wanted: Vec<Value> = (0..7).rev().map(|n| json!(format!("number {n}"))).collect();
        assert_eq!(seen, wanted);
        let list = world.call(&call, "list_memories", json!({ "category": "error" })).await;
        assert_eq!((&list["count"], &list["total"]), (&json!(3), &json!(3)));
        assert!(list["results"][0].to_string().len() <= 500);
        let list = world.call(&call, "list_memories", json!({ "project": "/nowhere" })).await;
        assert_eq!(list["total"], 0);
    }

    #[tokio::test]
    async fn a_query_may_be_any_text() {
        let (world, call) = World::with_session().await;
        let find = async |query: &str| {
            let found = world.call(&call, "retrieve_memories", json!({ "query": query })).await;
            each(&found["results"], "content")
        };
        assert_eq!(find("anything").await, Vec::<Value>::new());
        for (content, importance) in [
            ("The staging database is reset every night at three", 0.2),
            ("Deploys are frozen on Fridays", 0.9),
            ("The database password rotates with the deploy", 0.5),
        ] {
            let new = json!({ "content": content, "category": "fact", "importance": importance });
            world.call(&call, "store_memory", new).await;
        }
        assert_eq!(
            find("why is the staging database empty?").await[0],
            "The staging database is reset every night at three"
        );
        assert_eq!(find("deployment").await.len(), 2);
        assert_eq!(find(" \n").await, Vec::<Value>::new());
        for odd in
            ["\"", "a:b -c (d) OR *", "NEAR(x y)", "C++ foo-bar", "\u{0}", "'; drop table memory"]
        {
            find(odd).await;
        }
        let strict = json!({ "query": "database deploy", "min_importance": 0.5 });
        assert_eq!(world.call(&call, "retrieve_memories", strict).await["count"], 2);
    }

    #[tokio::test]
    async fn tags_are_checked() {
        let (world, call) = World::with_operator().await;
        for tags in [json!(["two words"]), json!([""]), json!(["x".repeat(51)])] {
            let new = json!({ "content": "x", "category": "fact", "tags": tags });
            world.refuse_field(&call, "store_memory", new, "tags[0]").await;
        }
    }
}
