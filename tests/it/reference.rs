//! The reference pages name exactly the program's routes, tools, commands, settings, views, events
//! and limits, with their types, defaults and bounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agents::with_config;
use crate::daemon::{Daemon, Home, svc, until};
use crate::pages::{Described, Page, commands, root};
use crate::stored::is_in_file;

/// Collects differences, so that one run shows all of them.
#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn names<'a>(
        &mut self,
        of: &str,
        program: impl IntoIterator<Item = &'a String>,
        page: impl IntoIterator<Item = &'a String>,
    ) {
        let program: BTreeSet<_> = program.into_iter().collect();
        let page: BTreeSet<_> = page.into_iter().collect();
        self.0.extend(
            program.difference(&page).map(|name| format!("{of}: `{name}` is not described")),
        );
        self.0.extend(page.difference(&program).map(|name| format!("{of}: there is no `{name}`")));
    }

    fn cell(&mut self, of: &str, row: &[String], column: usize, expected: &[String]) {
        let cell = row.get(column).map(String::as_str).unwrap_or_default();
        for word in expected {
            if !cell.contains(word.as_str()) {
                self.0.push(format!("{of}: `{cell}` does not say {word:?}"));
            }
        }
    }

    #[track_caller]
    fn none(self) {
        assert!(self.0.is_empty(), "{}", self.0.join("\n"));
    }
}

fn keys(object: &Value) -> Vec<String> {
    object.as_object().map(|it| it.keys().cloned().collect()).unwrap_or_default()
}

/// The schema that a reference resolves to.
fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let target =
        schema["$ref"].as_str().and_then(|it| document.pointer(it.trim_start_matches('#')));
    target.map_or(schema, |target| resolved(document, target))
}

/// The words for the type of a value: its kind, its allowed values, its bounds.
fn type_words(document: &Value, schema: &Value) -> Vec<String> {
    let is_null = |schema: &&Value| schema["type"] == "null";
    if let Some(all) = schema["anyOf"].as_array() {
        let other: Vec<&Value> = all.iter().filter(|it| !is_null(it)).collect();
        return match other[..] {
            [one] => type_words(document, one),
            _ => Vec::new(),
        };
    }
    let schema = resolved(document, schema);
    let values: Vec<&Value> = match (schema["enum"].as_array(), schema["oneOf"].as_array()) {
        (Some(values), _) => values.iter().collect(),
        (None, Some(all)) => all.iter().map(|one| &one["const"]).collect(),
        (None, None) => Vec::new(),
    };
    if !values.is_empty() {
        return values.iter().filter_map(|it| it.as_str()).map(|it| format!("`{it}`")).collect();
    }
    if schema["type"] == "array" {
        let mut words = type_words(document, &schema["items"]);
        words.push("array".to_owned());
        return words;
    }
    let mut kinds =
        schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    kinds.retain(|kind| kind != "null");
    let mut words: Vec<String> =
        kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    // Bounds of machine integers are no bounds of the value.
    if let Some(most) = schema["maximum"].as_u64().filter(|most| *most < 65_535) {
        words.push(format!("{} to {most}", schema["minimum"]));
    }
    words.extend(schema["maxLength"].as_u64().filter(|it| *it != 4096).map(|it| it.to_string()));
    // Times, ids and the like are texts.
    if words == ["string"] && schema["format"] == "date-time" {
        words.clear();
    }
    words
}

fn default_words(is_required: bool, schema: &Value) -> Vec<String> {
    match &schema["default"] {
        _ if is_required => vec!["*required*".to_owned()],
        Value::Null | Value::Array(_) => Vec::new(),
        Value::String(text) => vec![format!("`{text}`")],
        other => vec![format!("`{other}`")],
    }
}

/// The fields of a body with the words for their types. A field of an object in it is
/// `outer.inner`.
fn body_fields(document: &Value, body: &Value, prefix: &str) -> Vec<(String, Vec<String>)> {
    let mut fields = Vec::new();
    let is_required = |name: &str| {
        body["required"].as_array().into_iter().flatten().any(|required| required == name)
    };
    for (name, schema) in body["properties"].as_object().into_iter().flatten() {
        let mut words = type_words(document, schema);
        words.extend(is_required(name).then(|| "*required*".to_owned()));
        fields.push((format!("{prefix}{name}"), words));
        let inner = resolved(document, schema);
        fields.extend(body_fields(document, inner, &format!("{prefix}{name}.")));
    }
    fields
}

#[test]
fn every_route_is_in_the_reference_with_its_parameters_and_fields() {
    let d = Daemon::start();
    let described = d.get("/openapi.json").ok(200);
    let page = Page::named("docs/reference/http.md");
    let mut differences = Differences::default();
    let mut routes = BTreeMap::new();
    for (path, operations) in described["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            routes.insert(format!("{} {path}", method.to_uppercase()), operation);
        }
    }
    let sections = page.sections(2);
    let is_route = |title: &&String| title.contains(" /");
    differences.names("http.md", routes.keys(), sections.keys().filter(is_route));
    for (route, operation) in routes {
        let Some(section) = sections.get(&route) else { continue };
        let rows = section.rows_by_name();
        let mut fields = Vec::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a name").to_owned();
            if parameter["in"] == "path" {
                continue;
            }
            let of = format!("{route} {name}");
            if let Some(row) = rows.get(&name) {
                let schema = &parameter["schema"];
                let is_required = parameter["required"] == true;
                differences.cell(&of, row, 1, &type_words(&described, schema));
                differences.cell(&of, row, 2, &default_words(is_required, schema));
            }
            fields.push(name);
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = resolved(&described, body);
        let body = body["anyOf"].get(0).map_or(body, |one| resolved(&described, one));
        for (name, words) in body_fields(&described, body, "") {
            if let Some(row) = rows.get(&name) {
                differences.cell(&format!("{route} {name}"), row, 1, &words);
            }
            fields.push(name);
        }
        differences.names(&route, &fields, rows.keys());
        // A status that a caller must distinguish from 200 is documented.
        for status in keys(&operation["responses"]) {
            if !["200", "default"].contains(&status.as_str()) && !section.text.contains(&status) {
                differences.0.push(format!("{route}: {status} is not described"));
            }
        }
    }
    for (title, path) in [
        ("Peer", "/v1/peers/{id}"),
        ("Message", "/v1/messages/{id}"),
        ("Task", "/v1/tasks/{id}"),
        ("Session", "/v1/sessions/{id}"),
        ("GHAP record", "/v1/ghap/{id}"),
    ] {
        let answer = &described["paths"][path]["get"]["responses"]["200"];
        let object = resolved(&described, &answer["content"]["application/json"]["schema"]);
        let rows = sections[title].rows_by_name();
        differences.names(title, &keys(&object["properties"]), rows.keys());
        for (name, schema) in object["properties"].as_object().expect("fields") {
            if let Some(row) = rows.get(name) {
                differences.cell(
                    &format!("{title} {name}"),
                    row,
                    1,
                    &type_words(&described, schema),
                );
            }
        }
    }
    differences.none();
}

#[test]
fn every_error_code_is_in_the_reference() {
    let d = Daemon::start();
    let described = d.get("/openapi.json").ok(200);
    let failure = &described["paths"]["/v1/peers"]["get"]["responses"]["default"];
    let failure = resolved(&described, failure);
    let body = failure["content"].as_object().and_then(|it| it.values().next()).expect("a body");
    let body = resolved(&described, &body["schema"]);
    let code = resolved(&described, &body["properties"]["code"]);
    let codes: Vec<String> = code["oneOf"]
        .as_array()
        .expect("all codes")
        .iter()
        .filter_map(|one| one["const"].as_str().map(str::to_owned))
        .collect();
    let page = Page::named("docs/reference/http.md");
    let section = &page.sections(2)["Errors"];
    let mut differences = Differences::default();
    differences.names("error codes", &codes, section.rows_by_name().keys());
    for field in keys(&body["properties"]) {
        let is_named = section.text.contains(&field);
        differences
            .0
            .extend((!is_named).then(|| format!("a failure's `{field}` is not described")));
    }
    differences.none();
}

#[test]
fn every_tool_is_in_the_reference_with_its_arguments() {
    let d = with_config("[sources.core]\nenabled = true\n");
    let listed = until(Duration::from_secs(20), || {
        let listed = d.get("/v1/tools?limit=500").ok(200);
        let has_core = || listed["tools"].as_array()?.iter().find(|tool| tool["name"] == "Bash");
        has_core().is_some().then_some(listed)
    });
    let mut tools = BTreeMap::new();
    for tool in listed["tools"].as_array().expect("tools") {
        tools.insert(tool["name"].as_str().expect("a name").to_owned(), tool);
    }
    assert!(tools.len() > 40, "{}", tools.len());
    let page = Page::named("docs/reference/tools.md");
    let sections = page.sections(2);
    let mut differences = Differences::default();
    differences.names("tools.md", tools.keys(), sections.keys());
    for (name, tool) in tools {
        let Some(section) = sections.get(&name) else { continue };
        let family = tool["family"].as_str().expect("a family");
        let is_named = section.text.contains(&format!("Family: `{family}`"));
        differences.0.extend((!is_named).then(|| format!("{name} is of the family {family}")));
        let changes_nothing = tool["annotations"]["readOnlyHint"] == true;
        if section.text.contains("\nChanges nothing.") != changes_nothing {
            differences.0.push(format!("{name}: whether it changes something"));
        }
        let (schema, rows) = (&tool["input_schema"], section.rows_by_name());
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        differences.names(&name, &keys(&schema["properties"]), rows.keys());
        for (argument, schema) in schema["properties"].as_object().into_iter().flatten() {
            let Some(row) = rows.get(argument) else { continue };
            let of = format!("{name} {argument}");
            let is_required = required.contains(&argument.as_str());
            differences.cell(&of, row, 1, &type_words(tool, schema));
            differences.cell(&of, row, 2, &default_words(is_required, schema));
        }
        let line = paragraph(&section.text, "Result: ");
        let result: Vec<String> = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let mut fields = keys(&tool["output_schema"]["properties"]);
        fields.retain(|field| field != "error");
        differences.names(&format!("result of {name}"), &fields, &result);
    }
    differences.none();
}

/// The paragraph that begins so, or an empty text.
fn paragraph<'a>(text: &'a str, begins: &str) -> &'a str {
    let rest = text.split("\n\n").map(str::trim_start);
    rest.into_iter().find(|paragraph| paragraph.starts_with(begins)).unwrap_or_default()
}

#[test]
fn every_command_is_in_the_reference_with_its_options() {
    let page = Page::named("docs/reference/cli.md");
    let mut sections = page.sections(2);
    sections.extend(page.sections(3));
    let commands = commands();
    let common = &commands[""];
    let mut differences = Differences::default();
    let named = |name: &String| format!("svc {name}");
    let all: Vec<String> = commands.keys().filter(|name| !name.is_empty()).map(named).collect();
    assert!(all.len() > 40, "{}", all.len());
    let described = sections.keys().filter(|title| title.starts_with("svc "));
    differences.names("cli.md", &all, described);
    let contents = page.text.split("\n## ").next().unwrap_or_default();
    for name in &all {
        let link = format!("(#{})", name.replace(' ', "-"));
        differences.0.extend((!contents.contains(&link)).then(|| format!("no link to {name}")));
    }
    for (name, command) in commands {
        let section = match name.as_str() {
            "" => sections.get("Options of every command"),
            name => sections.get(&format!("svc {name}")),
        };
        let Some(section) = section else { continue };
        let rows: Vec<Vec<String>> = match section.text.find("\n### ") {
            Some(end) => Page { name: String::new(), text: section.text[..end].to_owned() }.rows(),
            None => section.rows(),
        };
        compare_options(&mut differences, name, command, common, &rows);
    }
    differences.none();
}

fn compare_options(
    differences: &mut Differences,
    name: &str,
    command: &Described,
    common: &Described,
    rows: &[Vec<String>],
) {
    let quoted = |row: &[String]| -> Vec<String> {
        row[0].split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let names: Vec<String> = rows
        .iter()
        .flat_map(|row| quoted(row))
        .map(|quoted| quoted.split(' ').next().unwrap_or_default().to_owned())
        // An alias of an option is not in the list of its command.
        .filter(|option| !(name == "peer register" && option == "--name"))
        .collect();
    let is_own = |option: &&String| name.is_empty() || !common.options.contains_key(*option);
    let options = command.options.keys().filter(is_own);
    differences.names(&format!("svc {name}"), options.chain(&command.arguments), &names);
    for (option, described) in command.options.iter().filter(|(option, _)| is_own(option)) {
        let is_it = |row: &&Vec<String>| {
            quoted(row).iter().any(|it| it.split(' ').next() == Some(option.as_str()))
        };
        let Some(row) = rows.iter().find(is_it) else { continue };
        let of = format!("svc {name} {option}");
        let value = described.value.iter().map(|value| format!("<{value}>")).collect::<Vec<_>>();
        differences.cell(&of, row, 0, &value);
        differences.cell(&of, row, 2, &described.default.iter().cloned().collect::<Vec<_>>());
    }
}

#[test]
fn every_setting_is_in_the_reference_with_its_default() {
    only_if!(is_in_file());
    let home = Home::new();
    let shown = svc(&home, &["config", "show", "--json"]).json();
    let page = Page::named("docs/reference/configuration.md");
    let sections = page.sections(2);
    let serve = &commands()["serve"];
    let mut differences = Differences::default();
    let mut settings = Vec::new();
    for setting in shown["settings"].as_array().expect("settings") {
        let key = setting["key"].as_str().expect("a key").to_owned();
        let rows = sections.get(&key).map(Page::rows_by_name).unwrap_or_default();
        if let Some(row) = rows.get(&key) {
            let variable = format!("`SVC_{}`", key.to_uppercase().replace('.', "_"));
            differences.cell(&key, row, 3, &[variable]);
            let flag = format!("--{}", key.replace(['_', '.'], "-"));
            let flag = if serve.options.contains_key(&flag) {
                format!("`{flag}`")
            } else {
                "none".to_owned()
            };
            differences.cell(&key, row, 4, &[flag]);
            let default = match &setting["value"] {
                Value::Null if key == "default_agent" => "none".to_owned(),
                Value::Null if key == "store.url" => "`svc.db` in the data folder".to_owned(),
                Value::Null if key == "store.password_file" => "none".to_owned(),
                Value::Null if key == "sources.expose" => "by the credential".to_owned(),
                Value::Null if key == "daemon.name" => "the host's name".to_owned(),
                Value::Null => "no limit".to_owned(),
                Value::String(text) if key == "token_file" => {
                    text.rsplit('/').next().unwrap_or_default().to_owned()
                }
                Value::String(text) => format!("`{text}`"),
                other => format!("`{other}`"),
            };
            differences.cell(&key, row, 2, &[default]);
        }
        settings.push(key);
    }
    assert!(settings.len() > 10, "{shown}");
    let is_key =
        |title: &&String| title.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b));
    differences.names("configuration.md", &settings, sections.keys().filter(is_key));
    differences.none();
}

#[test]
fn every_view_is_in_the_reference_with_its_columns() {
    only_if!(is_in_file());
    if Command::new("sqlite3").arg("--version").output().is_err() {
        println!(
            "skipped: the views were not compared with the reference (sqlite3 is not installed)"
        );
        return;
    }
    let home = Home::new();
    svc(&home, &["migrate"]).ok();
    let columns = "select m.name || ' ' || c.name from sqlite_master m, pragma_table_info(m.name) c where m.type = 'view'";
    let asked =
        Command::new("sqlite3").arg("-readonly").arg(home.path("svc.db")).arg(columns).output();
    let listed = String::from_utf8(asked.expect("sqlite3 runs").stdout).expect("UTF-8");
    let mut views: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (view, column) in listed.lines().filter_map(|line| line.split_once(' ')) {
        views.entry(view.to_owned()).or_default().push(column.to_owned());
    }
    assert!(views.len() > 10, "{listed}");
    let sections = Page::named("docs/reference/views.md").sections(2);
    let mut differences = Differences::default();
    differences.names("views.md", views.keys(), sections.keys());
    for (view, columns) in views {
        if let Some(section) = sections.get(&view) {
            differences.names(&view, &columns, section.rows_by_name().keys());
        }
    }
    differences.none();
}

/// The folders of the program's sources.
const PROGRAM: [&str; 10] = [
    "crates/svc-client/src",
    "crates/svc-core/src",
    "crates/svc-host/src",
    "crates/svc-model/src",
    "crates/svc-server/src",
    "crates/svc-sources/src",
    "crates/svc-store/src",
    "crates/svc-sys/src",
    "crates/svc-wire/src",
    "src",
];

/// The lines of code below these folders, without comments.
fn code(folders: &[&str]) -> Vec<String> {
    let mut paths: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut lines = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("a folder");
            paths.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            lines.extend(text.lines().filter(is_code).map(str::to_owned));
        }
    }
    lines
}

/// Every text literal of that code.
fn literals(folders: &[&str]) -> BTreeSet<String> {
    let of_line = |line: &String| -> Vec<String> {
        line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    code(folders).iter().flat_map(of_line).collect()
}

#[test]
fn every_kind_of_event_is_in_the_reference() {
    /// First parts of kinds with two parts.
    const ABOUT: [&str; 13] = [
        "agent", "request", "peer", "resource", "message", "session", "ghap", "outcome", "memory",
        "value", "daemon", "source", "run",
    ];
    /// Kinds with one part.
    const PLAIN: [&str; 18] = [
        "limit",
        "task",
        "call",
        "frame",
        "reply",
        "terminal",
        "message",
        "output",
        "stderr",
        "state",
        "chat_entry",
        "delta",
        "input",
        "request",
        "answer",
        "usage",
        "error",
        "exit",
    ];
    /// Names of other things in the same form: a file, and events of opencode.
    const OTHER: [&str; 6] = [
        "daemon.json",
        "session.created",
        "session.deleted",
        "session.compacted",
        "session.error",
        "session.idle",
    ];
    let is_kind = |text: &&String| {
        let Some((about, happened)) = text.split_once('.') else { return false };
        ABOUT.contains(&about)
            && !happened.is_empty()
            && happened.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            && !OTHER.contains(&text.as_str())
    };
    let written = literals(&["crates/svc-core/src/service", "crates/svc-server/src/daemon"]);
    let mut kinds: Vec<String> = written.iter().filter(is_kind).cloned().collect();
    assert!(kinds.len() > 20, "{kinds:?}");
    kinds.extend(PLAIN.map(str::to_owned));
    let all = literals(&PROGRAM);
    assert!(kinds.iter().all(|kind| all.contains(kind)), "each stands in the code: {kinds:?}");
    let page = Page::named("docs/reference/events.md");
    let described: Vec<String> =
        page.sections(3).values().flat_map(|it| it.rows_by_name().into_keys()).collect();
    let mut differences = Differences::default();
    differences.names("events.md", &kinds, &described);
    differences.none();
}

/// Internal bounds: sizes of batches, caches, and steps of the work.
const INTERNAL: [&str; 26] = [
    "CHUNK_BYTES",
    "EVENT_ROW_BYTES",
    "GIVEN_COMPARED",
    "HOOK_SEEN_RESOLUTION",
    "INDEX_MERGES",
    "INDEX_MERGE_PAGES",
    "INDEX_SEGMENTS",
    "MCP_END_RETRY",
    "MCP_SEEN_RESOLUTION",
    "MCP_SESSIONS_CACHED",
    "MCP_SESSION_OPEN",
    "MCP_SWEEP",
    "MEMORY_IMPORTANT",
    "PROMPT_TYPOS",
    "READS_BYTES",
    "REPLAY_AHEAD",
    "REPLAY_BYTES",
    "REPLAY_CACHE_KIB",
    "REPLAY_ROWS",
    "REPLAY_RUN",
    "SCAN_POSITIONS",
    "STREAMS_CACHED",
    "TAIL_BYTES",
    "TRIM_BYTES",
    "VALUES_RANKED",
    "WAL_TRUNCATE_BYTES",
];

#[test]
fn every_limit_is_in_the_reference_with_its_value() {
    let source =
        fs::read_to_string(root().join("crates/svc-model/src/limits.rs")).expect("the limits");
    let source = source.replace("=\n   ", "=");
    let mut limits: BTreeMap<String, String> = BTreeMap::new();
    for line in source.lines() {
        let Some(rest) = line.trim_start().strip_prefix("pub const ") else { continue };
        let (name, rest) = rest.split_once(':').expect("a type");
        let value = rest.split_once('=').expect("a value").1.trim().trim_end_matches(';');
        let value = limits.get(value).cloned().unwrap_or_else(|| value.to_owned());
        limits.insert(name.to_owned(), value);
    }
    assert!(limits.len() > 60, "{}", limits.len());
    let page = Page::named("docs/reference/limits.md");
    let mut rows = BTreeMap::new();
    for row in page.rows() {
        let constant = row[2].split('`').nth(1).expect("the name of a constant").to_owned();
        rows.insert(constant, row);
    }
    let mut differences = Differences::default();
    let is_public = |name: &&String| {
        // The division of a search or a write job is no bound for a caller.
        let is_search = name.starts_with("SEARCH_")
            && !["SEARCH_HITS", "SEARCH_QUERY_CHARS"].contains(&name.as_str());
        let is_step = is_search || name.ends_with("_PER_JOB");
        !is_step && !INTERNAL.contains(&name.as_str())
    };
    differences.names("limits.md", limits.keys().filter(is_public), rows.keys());
    for (name, row) in &rows {
        let Some(value) = limits.get(name) else { continue };
        let expected = shown(name, value);
        let is_said = |text: &String| {
            let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_digit() && c != ',');
            row[1].match_indices(text.as_str()).any(|(at, _)| {
                is_edge(row[1][..at].chars().next_back())
                    && !row[1][at + text.len()..].starts_with(|c: char| c.is_ascii_digit())
            })
        };
        if !expected.iter().any(is_said) {
            differences.0.push(format!("{name}: `{}` does not say {expected:?} ({value})", row[1]));
        }
    }
    differences.none();
}

/// The ways in which a constant may be written for people.
fn shown(name: &str, value: &str) -> Vec<String> {
    let number = |text: &str| -> u64 {
        let factor = |it: &str| it.trim().replace('_', "").parse::<u64>().expect("a number");
        text.split('*').map(factor).product()
    };
    if let Some(duration) = value.strip_prefix("Duration::from_") {
        let (unit, amount) = duration.trim_end_matches(')').split_once('(').expect("an amount");
        if unit == "millis" {
            return vec![format!("{amount} ms")];
        }
        let seconds = number(amount)
            * match unit {
                "secs" => 1,
                "mins" => 60,
                "hours" => 3600,
                _ => panic!("{name} is in {unit}"),
            };
        let ways = [(1, "s"), (60, "min"), (3600, "h"), (86_400, "days")];
        let exact = ways.iter().filter(|(size, _)| seconds % size == 0);
        return exact.map(|(size, unit)| format!("{} {unit}", seconds / size)).collect();
    }
    let number = number(value);
    let mut ways = vec![grouped(number)];
    if name.ends_with("_BYTES") {
        for (size, unit) in [(1024, "KiB"), (1024 * 1024, "MiB")] {
            if number % size == 0 {
                ways.push(format!("{} {unit}", number / size));
            }
        }
    }
    ways
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn every_file_that_a_page_names_exists() {
    let mut problems = Vec::new();
    for page in crate::pages::pages() {
        for code in page.inline_code() {
            let starts = ["src/", "crates/", "tests/", "fixtures/", "docs/", ".ci/"];
            if starts.iter().any(|start| code.starts_with(start)) {
                let path = code.split([' ', '*']).next().unwrap_or(code);
                if !Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists() {
                    problems.push(format!("{}: {path} is not there", page.name));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_error_of_mcp_is_in_the_reference() {
    let page = Page::named("docs/reference/mcp.md");
    let sections = page.sections(2);
    let mut differences = Differences::default();

    let mut codes = Vec::new();
    for line in code(&["crates/svc-server/src/mcp", "crates/svc-wire/src/json_rpc.rs"]) {
        let number = line.split("i64 = ").nth(1).map(|it| it.trim_end_matches(';').to_owned());
        codes.extend(number.filter(|it| it.starts_with("-32")));
    }
    assert!(codes.len() > 8, "{codes:?}");
    differences.names("JSON-RPC errors", &codes, sections["JSON-RPC errors"].rows_by_name().keys());

    let lines = code(&["crates/svc-core/src/tools"]);
    let declared = lines.iter().skip_while(|line| !line.contains("pub enum ErrorType {")).skip(1);
    let types: Vec<String> = declared
        .take_while(|line| line.trim() != "}")
        .filter_map(|line| line.trim().strip_suffix(',').map(snake_case))
        .collect();
    assert!(types.len() > 5, "{types:?}");
    differences.names("errors of tools", &types, sections["Errors of tools"].rows_by_name().keys());
    differences.none();
}

#[test]
fn every_metric_is_in_the_guide() {
    let d = Daemon::start();
    // A family of metrics without a count is not listed.
    d.post("/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })).ok(200);
    let accept = "application/openmetrics-text; version=1.0.0";
    let reply = d.request("GET", "/metrics").header("Accept", accept).send();
    let text = String::from_utf8(reply.body).expect("UTF-8");
    let mut metrics = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a kind");
        metrics.insert(name.to_owned(), kind.to_owned());
    }
    assert!(metrics.len() > 8, "{text}");
    let rows = Page::named("docs/guide/operating.md").sections(2)["Metrics"].rows_by_name();
    let mut differences = Differences::default();
    // Metrics of child servers: `sources::calls` checks some.
    let described = rows.keys().filter(|name| !name.starts_with("svc_source_"));
    differences.names("metrics", metrics.keys(), described);
    for (name, kind) in metrics {
        if let Some(row) = rows.get(&name) {
            differences.cell(&name, row, 1, &[kind]);
        }
    }
    differences.none();
}

#[test]
fn every_environment_variable_is_in_the_reference() {
    /// Variables for tests, which no help text names.
    const FOR_TESTS: [&str; 13] = [
        "SVC_BODY_TIMEOUT_MS",
        "SVC_FIRST_HOOK_MS",
        "SVC_INBOX_MAX",
        "SVC_LEASE_MS",
        "SVC_LIST_CHANGED_MS",
        "SVC_MAINTENANCE_MS",
        "SVC_MCP_TASK_AFTER_MS",
        "SVC_PEER_TIMEOUT_MS",
        "SVC_QUIET_MS",
        "SVC_RUNNER_GRACE_MS",
        "SVC_SESSION_SENDS",
        "SVC_SSE_KEEPALIVE_MS",
        "SVC_WAKES",
    ];
    let page = Page::named("docs/reference/configuration.md");
    let literals = literals(&PROGRAM);
    let is_variable = |text: &&String| {
        text.strip_prefix("SVC_").is_some_and(|rest| {
            !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
        })
    };
    let read: Vec<&String> = literals.iter().filter(is_variable).collect();
    assert!(read.len() > FOR_TESTS.len() + 4, "{read:?}");
    let named: BTreeSet<&str> =
        page.inline_code().filter_map(|code| code.split(['=', ' ']).next()).collect();
    for variable in &read {
        let is_named = named.contains(variable.as_str());
        assert_ne!(is_named, FOR_TESTS.contains(&variable.as_str()), "{variable}");
    }
    let rows = page.sections(2)["Environment variables"].rows_by_name();
    for variable in rows.keys().filter(is_variable) {
        assert!(read.contains(&variable), "nothing reads {variable}");
    }
}

#[test]
fn every_client_of_install_is_in_the_guide() {
    let home = Home::new();
    let help = svc(&home, &["help", "install"]);
    let listed = help.ok().lines().filter_map(|line| line.trim().strip_prefix("- "));
    let clients: BTreeSet<String> = listed
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .filter(|name| !["user", "project"].contains(&name.as_str()))
        .collect();
    assert!(clients.len() > 8, "{help:?}");
    let section = &Page::named("docs/guide/agents.md").sections(2)["Files that are changed"];
    let rows = section.rows();
    let quoted = |row: &Vec<String>| -> Vec<String> {
        row[0].split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let described: Vec<String> = rows.iter().flat_map(quoted).collect();
    let mut differences = Differences::default();
    differences.names("clients", &clients, &described);
    differences.none();
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for (n, c) in name.chars().enumerate() {
        if c.is_uppercase() && n > 0 {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}
