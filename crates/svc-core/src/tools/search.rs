//! `ToolSearch`, a full-text search of tools; and `ToolCall`, which calls a tool that is not
//! listed, for clients that call only listed tools.
//!
//! The search is BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over
//! name, title, description, and names and descriptions of arguments, each with its own weight.
//! Names are split into their words.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use svc_model::{NOT_BLANK, source::BUILTIN_CORE};

use super::{
    Call, Catalogue, ErrorType, Failure, Tool, ToolError, call::TOOL_CALL, catalogue::DelegatedCall,
};
use crate::service::{Listed, Page};

const SEARCH: &str = "\
Finds tools by purpose, including those that your client does not list.

Ask in your own words or by name. detail = full gives the schema of the arguments; then call the tool by its name, or with \
ToolCall.";

#[derive(Deserialize, JsonSchema)]
struct ToolQuery {
    /// What you want to do, or part of a name.
    #[schemars(regex(pattern = NOT_BLANK), length(max = 1000))]
    query: String,
    /// How many at most.
    #[schemars(range(min = 1, max = 50), extend("default" = 8))]
    limit: Option<usize>,
    /// svc's own, or those of servers behind it.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "any"))]
    origin: Option<ToolOrigin>,
    /// Only tools of this server.
    #[schemars(regex(pattern = NOT_BLANK))]
    source: Option<String>,
    /// How much detail.
    #[schemars(extend("default" = "summary"))]
    detail: Option<ToolDetail>,
}

/// Whose tools.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ToolOrigin {
    /// The daemon's own.
    Core,
    /// Of a server behind it: `<instance>__<tool>`.
    Source,
    /// All.
    Any,
}

impl ToolOrigin {
    fn has(self, tool: &Tool) -> bool {
        match self {
            Self::Core => tool.source_name().is_none_or(|source| source == BUILTIN_CORE),
            Self::Source => tool.source_name().is_some_and(|source| source != BUILTIN_CORE),
            Self::Any => true,
        }
    }
}

/// How much to tell of a tool.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ToolDetail {
    /// Its name.
    Name,
    /// Its name, its title, its server and what it does in a sentence.
    Summary,
    /// All of it.
    Full,
}

/// A tool.
#[derive(Default, Serialize, JsonSchema)]
struct ToolHit {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The server behind the daemon that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The JSON schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Map<String, Value>>")]
    input_schema: Option<Box<RawValue>>,
}

impl Listed for ToolHit {
    const NAME: &'static str = "tools";
}

impl ToolHit {
    fn new(tool: &Tool, detail: ToolDetail) -> Self {
        let name = tool.name().to_owned();
        if detail == ToolDetail::Name {
            return Self { name, ..Self::default() };
        }
        let summary = Self {
            name,
            title: tool.title_text().map(str::to_owned),
            source: tool.source_name().map(str::to_owned),
            description: tool.description().lines().next().map(str::to_owned),
            ..Self::default()
        };
        if detail == ToolDetail::Summary {
            return summary;
        }
        Self {
            description: Some(tool.description().to_owned()),
            input_schema: Some(tool.written_schemas().0),
            ..summary
        }
    }
}

pub(super) fn tool_search(catalogue: Weak<Catalogue>) -> Tool {
    let searcher = Arc::new(ToolSearcher { catalogue, index: Mutex::default() });
    Tool::new("ToolSearch", SEARCH, move |call, input| {
        let searcher = Arc::clone(&searcher);
        async move { searcher.search(&call, &input) }
    })
    .title("Find a tool")
    .family("catalogue")
    .read_only()
}

struct ToolSearcher {
    catalogue: Weak<Catalogue>,
    /// Names and words only: a tool in the index would hold the searcher, and the searcher the
    /// index.
    index: Mutex<Option<Arc<ToolIndex>>>,
}

impl ToolSearcher {
    fn search(&self, call: &Call, input: &ToolQuery) -> Result<Page<ToolHit>, Failure> {
        let Some(catalogue) = self.catalogue.upgrade() else {
            return Err(ToolError::new(ErrorType::Unavailable, "the daemon is about to end").into());
        };
        let origin = input.origin.unwrap_or(ToolOrigin::Any);
        let wanted = |tool: &Tool| {
            origin.has(tool)
                && !tool.is_unlisted()
                && input.source.as_deref().is_none_or(|source| tool.source_name() == Some(source))
        };
        let detail = input.detail.unwrap_or(ToolDetail::Summary);
        let hits = self
            .index(&catalogue)
            .find(&input.query)
            .into_iter()
            .filter_map(|name| catalogue.find(&call.caller, name))
            .filter(|tool| wanted(tool))
            .take(input.limit.unwrap_or(8))
            .map(|tool| ToolHit::new(&tool, detail))
            .collect();
        Ok(Page::last(hits))
    }

    fn index(&self, catalogue: &Catalogue) -> Arc<ToolIndex> {
        // The version is read before the list, so a change in between causes one more rebuild, and
        // never leaves the index stale.
        let version = catalogue.version();
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        match &*index {
            Some(index) if index.version == version => Arc::clone(index),
            _ => Arc::clone(index.insert(Arc::new(ToolIndex::new(catalogue, version)))),
        }
    }
}

/// Weight of a word by its field.
const NAME: f64 = 3.0;
const TITLE: f64 = 2.0;
const DESCRIPTION: f64 = 1.0;
const ARGUMENT: f64 = 0.5;
const ARGUMENT_TEXT: f64 = 0.1;

/// BM25's k1 and b: saturation of a repeated word, and normalisation by length.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// Weight of a word that only shares a prefix with the one in the query.
const BEGINNING: f64 = 0.5;

const SYNONYM: f64 = 0.4;

/// Synonyms in descriptions of tools: groups of words, separated by semicolons.
const SYNONYMS: &str = "\
send tell say write notify; everybody everyone all broadcast; peer agent colleague teammate; inbox \
mail mailbox; cancel stop abort kill; list show enumerate; store remember save keep; delete remove \
forget; search find look lookup; retrieve find recall; events log history; ghap hypothesis journal \
record; run execute call; folder directory; create new make add open; location place address \
coordinates; rename move; picture screenshot image; press click; pr pull; watch monitor; far \
distance; high elevation; column field; row record; switch change select checkout; change update \
modify edit patch; size space storage; unstage reset; diff difference compare; stage add; link \
relation reference; cluster pod deployment kubernetes kubectl; site website; explain plan execute; \
table schema describe; error failure; answer reply respond; message post; ci pipeline build; undo \
rollback; bug issue; form fill; dropdown select; dark media; slow performance; video screencast; \
directions route; person user";

static SYNONYMS_OF: LazyLock<HashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    let mut synonyms: HashMap<&str, Vec<&str>> = HashMap::new();
    for group in SYNONYMS.split(';') {
        for word in group.split_whitespace() {
            let others = group.split_whitespace().filter(|other| *other != word);
            synonyms.entry(word).or_default().extend(others);
        }
    }
    synonyms
});

/// Words that say nothing about a tool.
const STOP_WORDS: &[&str] = &[
    "a", "about", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by",
    "can", "could", "do", "does", "for", "from", "get", "has", "have", "how", "i", "if", "in",
    "is", "it", "its", "may", "me", "my", "no", "not", "of", "on", "one", "or", "our", "out",
    "please", "should", "so", "some", "such", "than", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "to", "up", "us", "use", "want", "was", "we", "what", "when",
    "where", "which", "who", "will", "with", "would", "you", "your",
];

struct ToolIndex {
    version: u64,
    entries: Vec<IndexedTool>,
    /// The entries that contain a word, with its weight in each.
    words: BTreeMap<String, Vec<(usize, f64)>>,
    mean: f64,
}

struct IndexedTool {
    name: String,
    /// Its name in one word, with and without its server's.
    joined: [String; 2],
    length: f64,
}

impl IndexedTool {
    fn new(name: &str, length: f64) -> Self {
        let own = name.split_once("__").map_or(name, |(_, own)| own);
        Self { name: name.to_owned(), joined: [joined(name), joined(own)], length }
    }
}

struct WordCounts {
    counts: Vec<f64>,
    /// Indexes of the entries in `counts` that are not 0.
    counted: Vec<usize>,
}

impl WordCounts {
    fn none_of(entries: usize) -> Self {
        Self { counts: vec![0.0; entries], counted: Vec::new() }
    }

    fn raise(&mut self, index: usize, count: f64) {
        let least = self.counts[index].max(count);
        self.set(index, least);
    }

    fn set(&mut self, index: usize, count: f64) {
        if self.counts[index] == 0.0 {
            self.counted.push(index);
        }
        self.counts[index] = count;
    }

    fn clear(&mut self) {
        for index in self.counted.drain(..) {
            self.counts[index] = 0.0;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, f64)> {
        self.counted.iter().map(|index| (*index, self.counts[*index]))
    }
}

impl ToolIndex {
    fn new(catalogue: &Catalogue, version: u64) -> Self {
        let (mut entries, mut words) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (index, tool) in catalogue.everything().iter().enumerate() {
            let counts = words_of(tool);
            entries.push(IndexedTool::new(tool.name(), counts.values().sum()));
            for (word, count) in counts {
                words.entry(word).or_default().push((index, count));
            }
        }
        let total: f64 = entries.iter().map(|entry| entry.length).sum();
        let mean = (total / number(entries.len())).max(1.0);
        Self { version, entries, words, mean }
    }

    /// Weight of a word in each entry: its full weight for the same word, less for one that is a
    /// prefix or an extension of it (`send`, `sends`, `sending`).
    fn count(&self, word: &str, counts: &mut WordCounts) {
        counts.clear();
        let longer = self
            .words
            .range::<str, _>((Bound::Excluded(word), Bound::Unbounded))
            .take_while(|(longer, _)| longer.starts_with(word))
            .take_while(|_| word.len() >= 3)
            .map(|(_, having)| having);
        let shorter = (3..word.len())
            .filter(|short| word.len() - short <= (short / 2 + 1).min(4))
            .filter_map(|short| self.words.get(word.get(..short)?));
        for (index, count) in longer.chain(shorter).flatten() {
            counts.raise(*index, BEGINNING * count);
        }
        for (index, count) in self.words.get(word).into_iter().flatten() {
            counts.set(*index, *count);
        }
    }

    /// Tools that match the query, the best first, equal ones by name.
    fn find(&self, query: &str) -> Vec<&str> {
        let mut wanted = words(query);
        wanted.sort_unstable();
        wanted.dedup();
        let mut scores = vec![0.0; self.entries.len()];
        let mut counts = WordCounts::none_of(self.entries.len());
        let mut of_synonym = WordCounts::none_of(self.entries.len());
        for word in &wanted {
            self.count(word, &mut counts);
            for synonym in SYNONYMS_OF.get(word.as_str()).into_iter().flatten() {
                self.count(synonym, &mut of_synonym);
                for (index, count) in of_synonym.iter() {
                    counts.raise(index, SYNONYM * count);
                }
            }
            let having = number(counts.counted.len());
            let rarity = (1.0 + (number(self.entries.len()) - having + 0.5) / (having + 0.5)).ln();
            for (index, count) in counts.iter() {
                let length = 1.0 - LENGTH + LENGTH * self.entries[index].length / self.mean;
                scores[index] +=
                    rarity * count * (SATURATION + 1.0) / (count + SATURATION * length);
            }
        }
        let scored = scores.into_iter().zip(&self.entries).filter(|(score, _)| *score > 0.0);
        let mut ranked: Vec<(f64, &IndexedTool)> = scored.collect();
        // Entries are sorted by name, and the sort is stable, so equal ranks are ordered by name.
        ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        let query = joined(query);
        let ranked = ranked.into_iter().map(|(_, entry)| entry);
        let (exact, rest): (Vec<_>, Vec<_>) =
            ranked.partition(|entry| entry.joined.contains(&query));
        exact.into_iter().chain(rest).map(|entry| entry.name.as_str()).collect()
    }
}

fn joined(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn words_of(tool: &Tool) -> HashMap<String, f64> {
    let mut all = HashMap::new();
    let mut add = |text: &str, weight: f64| {
        for word in words(text) {
            *all.entry(word).or_insert(0.0) += weight;
        }
    };
    add(tool.name(), NAME);
    add(&joined(tool.name()), NAME);
    add(tool.title_text().unwrap_or_default(), TITLE);
    add(tool.description(), DESCRIPTION);
    let arguments = tool.input_schema().get("properties").and_then(Value::as_object);
    for (name, argument) in arguments.into_iter().flatten() {
        add(name, ARGUMENT);
        add(argument["description"].as_str().unwrap_or_default(), ARGUMENT_TEXT);
    }
    all
}

/// The words of a text, in lower case: split at all but letters and digits, and within names where
/// case or digits begin (`HTTPServer2x` is `http`, `server`, `2`, `x`), without stop words.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in text.split(|c: char| !c.is_alphanumeric()) {
        let letters: Vec<char> = run.chars().collect();
        let mut word = String::new();
        for (at, &letter) in letters.iter().enumerate() {
            let before = at.checked_sub(1).map(|at| letters[at]);
            let starts = before.is_some_and(|before| {
                let after = letters.get(at + 1).copied();
                before.is_numeric() != letter.is_numeric()
                    || (letter.is_uppercase()
                        && (before.is_lowercase() || after.is_some_and(char::is_lowercase)))
            });
            if starts {
                words.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        words.push(word);
    }
    words.retain(|word| !word.is_empty() && !STOP_WORDS.contains(&word.as_str()));
    words
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

const CALL: &str = "\
Calls a tool that ToolSearch found and your client does not list.

Give its name, and arguments as its input_schema says. You get its result. Allowing ToolCall allows all that it reaches.";

pub(super) fn tool_call(catalogue: Weak<Catalogue>) -> Tool {
    let input = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "The tool's name.", "pattern": NOT_BLANK },
            "arguments": { "type": "object", "description": "Its arguments." },
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    Tool::raw(TOOL_CALL, CALL, input, move |call, arguments| {
        let target =
            catalogue.upgrade().map(|catalogue| catalogue.delegated(&call.caller, &arguments));
        async move {
            let closing = || ToolError::new(ErrorType::Unavailable, "the daemon is about to end");
            let DelegatedCall { tool, arguments } = target.ok_or_else(closing)??;
            tool.call(call, arguments).await
        }
    })
    .title("Call a tool by its name")
    .family("catalogue")
    .result(json!({ "type": "object", "description": "The result of that tool." }))
    .destructive()
    // The called tool has quoted its result already.
    .quotes_itself()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Output,
            tests::{World, each},
        },
        *,
    };

    #[test]
    fn words_by_table() {
        for (text, expected) in [
            ("peer_send", "peer send"),
            ("TaskNotify", "task notify"),
            ("github__create_issue", "github create issue"),
            ("HTTPServer2x", "http server 2 x"),
            ("sha256 of a file", "sha 256 file"),
            ("How do I WAIT for the task?", "wait task"),
            ("ListMCPResources", "list mcp resources"),
            ("Größe_ändern", "größe ändern"),
            ("the of ?!", ""),
            ("", ""),
        ] {
            assert_eq!(words(text).join(" "), expected, "{text:?}");
        }
    }

    fn catalogue_with(tools: &[(&'static str, &'static str)]) -> Arc<Catalogue> {
        Arc::new_cyclic(|weak| {
            let tools = tools.iter().map(|(name, description)| bare(name, description));
            Catalogue::new(tools.chain([tool_search(weak.clone())]))
        })
    }

    fn bare(name: &'static str, description: &'static str) -> Tool {
        Tool::raw(name, description, json!({ "type": "object" }), async |_, _| Ok(Output::text("")))
    }

    async fn names(world: &World, arguments: Value) -> Vec<String> {
        let answer = world.call(&world.operator(None), "ToolSearch", arguments).await;
        assert_eq!(answer["count"], json!(answer["tools"].as_array().unwrap().len()));
        each(&answer["tools"], "name")
            .into_iter()
            .map(|it| it.as_str().unwrap().to_owned())
            .collect()
    }

    #[tokio::test]
    async fn the_intended_tool_comes_first() {
        let world = World::open().await;
        for (query, first) in [
            ("TaskNotify", "TaskNotify"),
            ("tasknotify", "TaskNotify"),
            ("task_notify", "TaskNotify"),
            ("peer_send", "peer_send"),
            ("send to a peer", "peer_send"),
            ("give work to an agent", "SendMessage"),
            ("How can I send messages to everyone?", "peer_broadcast"),
            ("tell all peers", "peer_broadcast"),
            ("wait until a task is done", "TaskWait"),
            ("wait for several tasks", "TaskNotify"),
            ("cancelling", "TaskCancel"),
            ("stop a task", "TaskCancel"),
            ("read my inbox", "peer_inbox"),
            ("who is here?", "peer_list"),
            ("event log", "events_read"),
            ("heartb", "peer_heartbeat"),
            ("acknowledge", "peer_ack"),
            ("register me", "peer_register"),
            ("reply to a task", "TaskReply"),
            ("list tasks", "TaskList"),
            ("search for a tool", "ToolSearch"),
        ] {
            let found = names(&world, json!({ "query": query })).await;
            assert_eq!(found.first().map(String::as_str), Some(first), "{query}: {found:?}");
        }
        assert_eq!(names(&world, json!({ "query": "?!" })).await, Vec::<String>::new());
        assert_eq!(
            names(&world, json!({ "query": "zzzzz \"unbalanced" })).await,
            Vec::<String>::new()
        );
    }

    #[tokio::test]
    async fn tool_filters_apply_before_the_limit() {
        let mut world = World::open().await;
        let fish =
            [("fish_one", "fish"), ("sea__fish_two", "fish"), ("lake__fish", "fish fish fish")];
        world.catalogue = catalogue_with(&fish);
        for (filter, expected) in [
            (json!({}), &["lake__fish", "fish_one"][..]),
            (json!({ "type": "core" }), &["fish_one"]),
            (json!({ "type": "source" }), &["lake__fish", "sea__fish_two"]),
            (json!({ "source": "sea" }), &["sea__fish_two"]),
            (json!({ "source": "sea", "type": "core" }), &[]),
            (json!({ "source": "nowhere" }), &[]),
        ] {
            let mut arguments = json!({ "query": "fish", "limit": 2 });
            arguments.as_object_mut().unwrap().extend(filter.as_object().unwrap().clone());
            assert_eq!(names(&world, arguments).await, expected, "{filter}");
        }
        let call = world.operator(None);
        let answer = world.call(&call, "ToolSearch", json!({ "query": "sea__fish_two" })).await;
        assert_eq!(answer["tools"][0]["source"], "sea");
    }

    #[tokio::test]
    async fn an_exact_name_comes_first_and_tools_for_programs_never() {
        let mut world = World::open().await;
        for query in ["hook_event", "tell of an event in a client's session", "hook"] {
            let found = names(&world, json!({ "query": query, "limit": 50 })).await;
            assert!(!found.iter().any(|name| name == "hook_event"), "{query}: {found:?}");
        }
        let busy = "issue issue issue create create create";
        world.catalogue = catalogue_with(&[
            ("create_issue_comment", busy),
            ("github__create_issue", "x"),
            ("a", busy),
        ]);
        for query in ["create_issue", "GitHub__Create_Issue", " CREATE_ISSUE "] {
            let found = names(&world, json!({ "query": query })).await;
            assert_eq!(found[0], "github__create_issue", "{query}: {found:?}");
        }
    }

    /// Tasks of an agent whose tools are not in the short list.
    #[tokio::test]
    async fn unlisted_tools_are_found() {
        let world = World::open().await;
        for (query, expected) in [
            ("tell everybody that main is frozen", "peer_broadcast"),
            ("I have read this message", "peer_ack"),
            ("remember this for later", "store_memory"),
            ("forget a memory", "delete_memory"),
            ("recall what we know about caching", "retrieve_memories"),
            ("change my hypothesis", "update_ghap"),
            ("is there a record left open by another session", "get_orphaned_ghap"),
            ("take over an abandoned record", "adopt_ghap"),
            ("my current hypothesis", "get_active_ghap"),
            ("output of a task", "TaskGet"),
            ("abort a running task", "TaskCancel"),
            ("all tasks that failed", "TaskList"),
            ("read the log of events", "events_read"),
            ("what a test run gave", "record_outcome"),
            ("context for what I am about to do", "assemble_context"),
            ("groups of similar experiences", "get_clusters"),
            ("store a value that the team holds", "store_value"),
            ("which sessions are there", "sessions_list"),
        ] {
            let found = names(&world, json!({ "query": query, "limit": 5 })).await;
            assert!(found.iter().any(|name| name == expected), "{query}: {found:?}");
        }
    }

    #[tokio::test]
    async fn the_detail_of_hits_is_as_requested() {
        let (world, call) = World::with_operator().await;
        let search = async |detail: &str| {
            let arguments = json!({ "query": "peer_send", "limit": 1, "detail": detail });
            world.call(&call, "ToolSearch", arguments).await["tools"][0].clone()
        };
        assert_eq!(search("name").await, json!({ "name": "peer_send" }));
        let summary = search("summary").await;
        assert!(
            !summary["description"].as_str().unwrap().contains('\n')
                && summary["input_schema"].is_null()
        );
        let full = search("full").await;
        assert_eq!(full["input_schema"]["properties"]["to"]["type"], "string");
        assert!(full["description"].as_str().unwrap().contains('\n'));
    }

    #[tokio::test]
    async fn the_index_follows_added_tools_and_hides_forbidden_ones() {
        let mut world = World::open().await;
        world.catalogue = catalogue_with(&[("alpha_one", "fish"), ("alpha_two", "fish")]);
        let fish = async |world: &World| names(world, json!({ "query": "fish" })).await;
        assert_eq!(fish(&world).await, ["alpha_one", "alpha_two"], "equals by name");
        world.catalogue.add(bare("beta", "Fish! fish").scope("exec"));
        assert_eq!(fish(&world).await, ["beta", "alpha_one", "alpha_two"]);
        let answer =
            world.call(&world.session("s"), "ToolSearch", json!({ "query": "fish" })).await;
        assert_eq!(each(&answer["tools"], "name"), ["alpha_one", "alpha_two"]);
    }

    // Recall of the tool search: people's questions about the tools of public servers. Every third
    // question is held out: its answers are not looked at while the search is tuned.
    /// Number of hits that count for a question.
    const ANSWERS: usize = 5;

    #[derive(Deserialize)]
    struct ToolText {
        name: String,
        #[serde(default)]
        title: String,
        description: String,
        arguments: BTreeMap<String, String>,
    }

    /// The tools, by the names that clients see.
    fn fixture_tools() -> Vec<(String, ToolText)> {
        let text = include_str!("../../../../fixtures/tool-search/tools.json");
        let servers: BTreeMap<String, Vec<ToolText>> = serde_json::from_str(text).expect("JSON");
        let named = servers.into_iter().flat_map(|(server, tools)| {
            tools.into_iter().map(move |tool| (format!("{server}__{}", tool.name), tool))
        });
        named.collect()
    }

    /// The questions, each with the tools that answer it.
    fn questions() -> Vec<(&'static str, Vec<&'static str>)> {
        let text = include_str!("../../../../fixtures/tool-search/questions.txt");
        let lines =
            text.lines().map(|line| line.split_once('|').expect("a question and its answers"));
        lines.map(|(question, answers)| (question, answers.split(' ').collect())).collect()
    }

    /// The share of answered questions, of those not held out and of those held out.
    fn recall(mut ask: impl FnMut(&str) -> Vec<String>) -> [f64; 2] {
        let (mut hits, mut all) = ([0.0; 2], [0.0; 2]);
        for (index, (question, answers)) in questions().iter().enumerate() {
            let held_out = usize::from(index % 3 == 2);
            let found = ask(question);
            let is_hit = found.iter().take(ANSWERS).any(|name| answers.contains(&name.as_str()));
            hits[held_out] += f64::from(u8::from(is_hit));
            all[held_out] += 1.0;
        }
        [hits[0] / all[0], hits[1] / all[1]]
    }

    fn fixture_catalogue(tools: &[(String, ToolText)]) -> Arc<Catalogue> {
        let declared = tools.iter().map(|(name, text)| {
            let properties: Map<String, Value> = text
                .arguments
                .iter()
                .map(|(name, text)| (name.clone(), json!({ "description": text })))
                .collect();
            let input = json!({ "type": "object", "properties": properties });
            let title: &'static str = Box::leak(text.title.clone().into_boxed_str());
            let tool = Tool::raw(name.clone(), text.description.clone(), input, async |_, _| {
                Ok(Output::text(""))
            });
            if title.is_empty() { tool } else { tool.title(title) }
        });
        let declared: Vec<Tool> = declared.collect();
        Arc::new_cyclic(|weak| {
            Catalogue::new(declared.into_iter().chain([tool_search(weak.clone())]))
        })
    }

    /// Textbook BM25: every word has the same weight in every field, and is not normalised.
    struct PlainSearch {
        names: Vec<String>,
        texts: Vec<BTreeMap<String, f64>>,
    }

    fn plain_words(text: &str) -> impl Iterator<Item = String> {
        text.split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_lowercase)
    }

    impl PlainSearch {
        fn new(tools: &[(String, ToolText)]) -> Self {
            let texts = tools.iter().map(|(name, text)| {
                let mut counts = BTreeMap::new();
                let arguments = text.arguments.iter().flat_map(|(name, text)| [name, text]);
                for text in [name, &text.title, &text.description].into_iter().chain(arguments) {
                    for word in plain_words(text) {
                        *counts.entry(word).or_insert(0.0) += 1.0;
                    }
                }
                counts
            });
            Self {
                texts: texts.collect(),
                names: tools.iter().map(|(name, _)| name.clone()).collect(),
            }
        }

        fn find(&self, query: &str) -> Vec<String> {
            let count = |having: usize| f64::from(u32::try_from(having).expect("few"));
            let all = count(self.texts.len());
            let mean = self.texts.iter().flat_map(BTreeMap::values).sum::<f64>() / all;
            let mut scores = vec![0.0; self.texts.len()];
            for word in plain_words(query) {
                let having =
                    count(self.texts.iter().filter(|text| text.contains_key(&word)).count());
                let rarity = (1.0 + (all - having + 0.5) / (having + 0.5)).ln();
                for (score, text) in scores.iter_mut().zip(&self.texts) {
                    let found = text.get(&word).copied().unwrap_or(0.0);
                    let length = 0.25 + 0.75 * text.values().sum::<f64>() / mean;
                    *score += rarity * found * 2.2 / (found + 1.2 * length);
                }
            }
            let mut ranked: Vec<(f64, &String)> = scores.into_iter().zip(&self.names).collect();
            ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
            ranked.into_iter().map(|(_, name)| name.clone()).collect()
        }
    }

    #[tokio::test]
    async fn nine_of_ten_questions_are_answered_and_more_than_by_plain_bm25() {
        let tools = fixture_tools();
        assert!(
            tools.len() >= 300 && questions().len() >= 150,
            "{} {}",
            tools.len(),
            questions().len()
        );
        let known = |name: &&str| tools.iter().any(|(known, _)| known == name);
        assert!(questions().iter().all(|(_, answers)| answers.iter().all(known)));
        let plain = PlainSearch::new(&tools);
        let plain = recall(|question| plain.find(question));
        let mut world = World::open().await;
        world.catalogue = fixture_catalogue(&tools);
        let mut answers = BTreeMap::new();
        for (question, _) in questions() {
            let arguments = json!({ "query": question, "limit": ANSWERS, "detail": "name" });
            let answer = world.call(&world.operator(None), "ToolSearch", arguments).await;
            let names = each(&answer["tools"], "name").into_iter();
            answers.insert(
                question,
                names.filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>(),
            );
        }
        let ours = recall(|question| answers[question].clone());
        for (ours, plain) in ours.into_iter().zip(plain) {
            assert!(ours >= 0.9, "{ours} of the questions are answered, by plain BM25 {plain}");
            assert!(ours > plain, "{ours} of the questions are answered, by plain BM25 {plain}");
        }
    }
}
