//! Finding tools by what they are for.
//!
//! BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over name, title, description and the
//! names of arguments, each with a weight of its own. Names are split where people see words in them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Annotations, Call, Catalogue, ErrorType, Failure, Tool, ToolError, schema::NOT_BLANK};

const DESCRIPTION: &str = "\
Finds tools by what they are for, also such as your client does not show you.

Ask in your own words (\"wait until a task is done\") or with a part of a name (\"peer\"). The best come first. With \
detail = full you get the whole description and the schema of the arguments, and can call the tool.";

/// What to look for.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ToolQuery {
    /// What you want to do, or a part of a name.
    #[schemars(regex(pattern = NOT_BLANK), length(max = 1000))]
    query: String,
    /// How many at most.
    #[schemars(range(min = 1, max = 50), extend("default" = 8))]
    limit: Option<usize>,
    /// Only the daemon's own tools (`core`), or only those of servers behind it (`sourced`).
    #[serde(rename = "type")]
    #[schemars(extend("default" = "any"))]
    origin: Option<ToolOrigin>,
    /// Only tools of this family.
    #[schemars(regex(pattern = NOT_BLANK))]
    family: Option<String>,
    /// How much to tell of each: its `name`, a `summary` in a sentence, or `full` with the schema of its arguments.
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
    Sourced,
    /// All.
    Any,
}

impl ToolOrigin {
    fn has(self, tool: &Tool) -> bool {
        match self {
            Self::Core => !tool.name().contains("__"),
            Self::Sourced => tool.name().contains("__"),
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
    /// Its name, its title, its family and what it does in a sentence.
    Summary,
    /// All of it.
    Full,
}

/// Tools, the best first.
#[derive(Serialize, JsonSchema)]
struct ToolHits {
    tools: Vec<ToolHit>,
    /// How many there are.
    count: usize,
}

/// A tool.
#[derive(Default, Serialize, JsonSchema)]
struct ToolHit {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Which tools it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// What may be assumed of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Annotations>,
    /// The JSON schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<Map<String, Value>>,
}

impl ToolHit {
    fn of(tool: &Tool, detail: ToolDetail) -> Self {
        let name = tool.name().to_owned();
        if detail == ToolDetail::Name {
            return Self { name, ..Self::default() };
        }
        let summary = Self {
            name,
            title: tool.title_text().map(str::to_owned),
            family: Some(tool.family_name().to_owned()),
            description: tool.description().lines().next().map(str::to_owned),
            ..Self::default()
        };
        if detail == ToolDetail::Summary {
            return summary;
        }
        Self {
            description: Some(tool.description().to_owned()),
            annotations: Some(tool.annotations()),
            input_schema: tool.input_schema().as_object().cloned(),
            ..summary
        }
    }
}

/// The tool that searches a catalogue, its own.
pub(super) fn tool(catalogue: Weak<Catalogue>) -> Tool {
    let searcher = Arc::new(ToolSearcher { catalogue, index: Mutex::default() });
    Tool::new("ToolSearch", DESCRIPTION, move |call, input| {
        let searcher = Arc::clone(&searcher);
        async move { searcher.search(&call, &input) }
    })
    .title("Find a tool")
    .family("catalogue")
    .read_only()
}

struct ToolSearcher {
    catalogue: Weak<Catalogue>,
    /// Names and words only: a tool in here would hold the searcher that holds it.
    index: Mutex<Option<Arc<ToolIndex>>>,
}

impl ToolSearcher {
    fn search(&self, call: &Call, input: &ToolQuery) -> Result<ToolHits, Failure> {
        let Some(catalogue) = self.catalogue.upgrade() else {
            return Err(ToolError::new(ErrorType::Unavailable, "the daemon is about to end").into());
        };
        if let Some(family) = &input.family {
            let open = catalogue.open_to(&call.caller);
            let families: BTreeSet<&str> = open.iter().map(|tool| tool.family_name()).collect();
            if !families.contains(family.as_str()) {
                let words = families.into_iter().collect::<Vec<_>>();
                let message = format!("family: must be one of {}", words.join(", "));
                return Err(ToolError::invalid("family", message).allowed(words).into());
            }
        }
        let origin = input.origin.unwrap_or(ToolOrigin::Any);
        let wanted = |tool: &Tool| {
            origin.has(tool)
                && input.family.as_deref().is_none_or(|family| family == tool.family_name())
        };
        let detail = input.detail.unwrap_or(ToolDetail::Summary);
        let tools: Vec<ToolHit> = self
            .index(&catalogue)
            .find(&input.query)
            .into_iter()
            .filter_map(|name| catalogue.find(&call.caller, name))
            .filter(|tool| wanted(tool))
            .take(input.limit.unwrap_or(8))
            .map(|tool| ToolHit::of(&tool, detail))
            .collect();
        Ok(ToolHits { count: tools.len(), tools })
    }

    fn index(&self, catalogue: &Catalogue) -> Arc<ToolIndex> {
        // The number is read before the list: a change in between makes one index too many, and none too few.
        let version = catalogue.version();
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        match &*index {
            Some(index) if index.version == version => Arc::clone(index),
            _ => Arc::clone(index.insert(Arc::new(ToolIndex::of(catalogue, version)))),
        }
    }
}

/// How much a word counts where it stands.
const WEIGHTS: Weights = Weights { name: 3.0, title: 2.0, description: 1.0, argument: 0.5 };

struct Weights {
    name: f64,
    title: f64,
    description: f64,
    argument: f64,
}

/// How soon a repeated word counts no more, and how much a long text counts against a tool (BM25's k1 and b).
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;
/// What a word that only begins like the one asked for counts.
const BEGINNING: f64 = 0.5;

/// Words that say nothing of what a tool is for.
const STOP_WORDS: &[&str] = &[
    "a", "about", "all", "also", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but",
    "by", "can", "could", "do", "does", "for", "from", "get", "has", "have", "how", "i", "if",
    "in", "is", "it", "its", "may", "me", "my", "no", "not", "of", "on", "one", "or", "our", "out",
    "please", "should", "so", "some", "such", "than", "that", "the", "their", "them", "then",
    "there", "these", "they", "this", "to", "up", "us", "use", "want", "was", "we", "what", "when",
    "where", "which", "who", "will", "with", "would", "you", "your",
];

/// The words of all tools.
struct ToolIndex {
    /// Which list it was made of.
    version: u64,
    entries: Vec<IndexedTool>,
    /// The entries that have a word, each with what the word counts there.
    words: BTreeMap<String, Vec<(usize, f64)>>,
    /// Mean length of an entry.
    mean: f64,
}

/// A tool, and how many words it has.
struct IndexedTool {
    name: String,
    length: f64,
}

impl ToolIndex {
    fn of(catalogue: &Catalogue, version: u64) -> Self {
        let (mut entries, mut words) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (index, tool) in catalogue.all().values().enumerate() {
            let counts = words_of(tool);
            entries
                .push(IndexedTool { name: tool.name().to_owned(), length: counts.values().sum() });
            for (word, count) in counts {
                words.entry(word).or_default().push((index, count));
            }
        }
        let total: f64 = entries.iter().map(|entry| entry.length).sum();
        let mean = (total / number(entries.len())).max(1.0);
        Self { version, entries, words, mean }
    }

    /// What a word counts in each entry: fully where it stands, partly where one stands that begins so, or that it
    /// begins with (`send`, `sends`, `sending`).
    fn counts(&self, word: &str) -> Vec<f64> {
        let mut counts = vec![0.0_f64; self.entries.len()];
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
            counts[*index] = counts[*index].max(BEGINNING * count);
        }
        for (index, count) in self.words.get(word).into_iter().flatten() {
            counts[*index] = *count;
        }
        counts
    }

    /// Tools that have something to do with the query, the best first, equals by name.
    fn find(&self, query: &str) -> Vec<&str> {
        let mut wanted = words(query);
        wanted.sort_unstable();
        wanted.dedup();
        let mut scores = vec![0.0; self.entries.len()];
        for word in &wanted {
            let counts = self.counts(word);
            let having = number(counts.iter().filter(|count| **count > 0.0).count());
            let rarity = (1.0 + (number(self.entries.len()) - having + 0.5) / (having + 0.5)).ln();
            for ((score, count), entry) in scores.iter_mut().zip(counts).zip(&self.entries) {
                let length = 1.0 - LENGTH + LENGTH * entry.length / self.mean;
                *score += rarity * count * (SATURATION + 1.0) / (count + SATURATION * length);
            }
        }
        let mut ranked: Vec<(f64, &str)> = scores
            .into_iter()
            .zip(&self.entries)
            .filter(|(score, _)| *score > 0.0)
            .map(|(score, entry)| (score, entry.name.as_str()))
            .collect();
        // Entries are in the order of names, and a stable sort leaves equals so.
        ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        ranked.into_iter().map(|(_, name)| name).collect()
    }
}

/// The words of one tool, each with what it counts.
fn words_of(tool: &Tool) -> HashMap<String, f64> {
    let mut all = HashMap::new();
    let mut add = |text: &str, weight: f64| {
        for word in words(text) {
            *all.entry(word).or_insert(0.0) += weight;
        }
    };
    add(tool.name(), WEIGHTS.name);
    // Written in one word, too.
    let joined: String = tool.name().chars().filter(|c| c.is_alphanumeric()).collect();
    add(&joined.to_lowercase(), WEIGHTS.name);
    add(tool.title_text().unwrap_or_default(), WEIGHTS.title);
    add(tool.description(), WEIGHTS.description);
    let arguments = tool.input_schema().get("properties").and_then(Value::as_object);
    for name in arguments.into_iter().flat_map(Map::keys) {
        add(name, WEIGHTS.argument);
    }
    all
}

/// The words of a text, in lower case: split at everything that is no letter or digit, within names where case or
/// digits begin (`HTTPServer2x` is `http`, `server`, `2`, `x`), and without those that say nothing.
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

/// A small number as arithmetic has it.
fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{
            Output,
            testing::{World, each},
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

    fn of(tools: &[(&'static str, &'static str)]) -> Arc<Catalogue> {
        Arc::new_cyclic(|weak| {
            let tools = tools.iter().map(|(name, description)| bare(name, description));
            Catalogue::new(tools.chain([tool(weak.clone())]))
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
    async fn the_tool_that_one_means_comes_first() {
        let world = World::open().await;
        for (query, first) in [
            ("TaskNotify", "TaskNotify"),
            ("tasknotify", "TaskNotify"),
            ("task_notify", "TaskNotify"),
            ("peer_send", "peer_send"),
            ("send a message to another agent", "peer_send"),
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
            ("find tools", "ToolSearch"),
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
    async fn the_family_is_looked_at_before_the_limit() {
        let world = World::open().await;
        let found =
            names(&world, json!({ "query": "message task peer", "family": "events", "limit": 1 }))
                .await;
        assert_eq!(found, ["events_read"]);
        let found = names(&world, json!({ "query": "message task peer", "limit": 2 })).await;
        assert_eq!(found.len(), 2);
        let call = world.operator(None);
        let arguments = json!({ "query": "a", "family": "sports" });
        let error = world.refuse(&call, "ToolSearch", arguments, ErrorType::ValidationError).await;
        assert_eq!(error.field.as_deref(), Some("family"));
        assert_eq!(
            error.allowed,
            Some(json!([
                "catalogue",
                "events",
                "ghap",
                "hooks",
                "learning",
                "peers",
                "sessions",
                "tasks"
            ]))
        );
    }

    #[tokio::test]
    async fn there_is_as_much_as_one_asks_for() {
        let world = World::open().await;
        let call = world.operator(None);
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
    async fn what_comes_is_found_what_goes_is_not_and_what_is_not_open_never() {
        let mut world = World::open().await;
        world.catalogue = of(&[("alpha_one", "fish"), ("alpha_two", "fish")]);
        let fish = async |world: &World| names(world, json!({ "query": "fish" })).await;
        assert_eq!(fish(&world).await, ["alpha_one", "alpha_two"], "equals by name");
        world.catalogue.remove("alpha_one");
        world.catalogue.add(bare("beta", "Fish! fish").scope("exec"));
        assert_eq!(fish(&world).await, ["beta", "alpha_two"]);
        let answer =
            world.call(&world.session("s"), "ToolSearch", json!({ "query": "fish" })).await;
        assert_eq!(each(&answer["tools"], "name"), ["alpha_two"]);
    }
}
