//! Learning, from outside: memories, clusters, values, context. An empty database, bounds, crashes,
//! odd texts.

use serde_json::{Value, json};

use crate::daemon::{Daemon, svc};
use crate::expect::{call, escape, put_records, result};
use crate::wire::tool_call;

#[track_caller]
fn refuse(d: &Daemon, name: &str, arguments: &Value, kind: &str) -> Value {
    let result = result(d, name, arguments);
    assert_eq!(result["isError"], true, "{name}: {result}");
    let error = result["structuredContent"]["error"].clone();
    assert_eq!(error["type"], kind, "{name}: {error}");
    error
}

/// A record from its beginning to its end; returns its id.
#[track_caller]
fn try_it(d: &Daemon, about: &str, status: &str) -> Value {
    let start = json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": about, "hypothesis": about,
        "action": "look", "prediction": "it passes",
    });
    let id = call(d, "start_ghap", &start)["id"].clone();
    let end = json!({
        "status": status, "result": "seen", "surprise": about,
        "root_cause": { "category": "oversight", "description": about }, "lesson": { "what_worked": about },
    });
    call(d, "resolve_ghap", &end);
    id
}

#[track_caller]
fn begin(d: &Daemon, session: &str, source: &str) {
    let start = json!({ "session_id": session, "cwd": "/nowhere/p", "source": source });
    call(d, "start_session", &start);
}

fn ask(d: &Daemon, query: &str) -> Value {
    call(d, "assemble_context", &json!({ "query": query }))
}

fn ids(context: &Value) -> Vec<Value> {
    let sources = context["sources"].as_array().expect("sources");
    sources.iter().map(|source| source["id"].clone()).collect()
}

const TENANT: &str = "The cache key lacks the tenant, so tenants read each other's rows";
const RELATED: &str = "Tenants share a cache key on the billing page";

#[test]
fn every_tool_works_on_an_empty_database() {
    let d = Daemon::start();
    let empty = json!({
        "markdown": "", "token_count": 0, "item_count": 0, "truncated": false, "dropped": 0, "sources": [],
    });
    for query in ["", " \n", "why does the auth test fail?"] {
        assert_eq!(ask(&d, query), empty, "{query:?}");
        let search = json!({ "query": query });
        for name in ["retrieve_memories", "search_experiences"] {
            assert_eq!(call(&d, name, &search), json!({ "results": [], "count": 0 }), "{name}");
        }
    }
    assert_eq!(call(&d, "premortem", &json!({ "domain": "testing" })), empty);
    for name in ["list_memories", "list_values"] {
        assert_eq!(call(&d, name, &json!({})), json!({ "results": [], "count": 0, "total": 0 }));
    }
    for axis in ["full", "strategy", "surprise", "root_cause", "domain"] {
        let error = refuse(&d, "get_clusters", &json!({ "axis": axis }), "insufficient_data");
        assert_eq!((&error["have"], &error["need"]), (&json!(0), &json!(20)));
    }
    assert_eq!(d.get("/v1/ghap/search?q=anything").ok(200), json!({ "ghap": [], "count": 0 }));

    // The writing tools work without a session that was ever begun.
    let memory = json!({ "content": "We deploy on Tuesdays", "category": "fact" });
    let stored = call(&d, "store_memory", &memory);
    assert_eq!(stored["status"], "stored");
    assert_eq!(ids(&ask(&d, "when do we deploy?")), [stored["id"].clone()]);
    let gone = json!({ "memory_id": stored["id"] });
    assert_eq!(call(&d, "delete_memory", &gone)["deleted"], true);
    refuse(&d, "delete_memory", &gone, "not_found");
    refuse(&d, "delete_memory", &json!({ "memory_id": "7" }), "validation_error");
    for _ in 0..20 {
        try_it(&d, TENANT, "falsified");
    }
    let value = json!({ "text": "Put the tenant into the cache key", "cluster_id": "full_0", "axis": "full" });
    refuse(&d, "store_value", &value, "not_found");
    let found = call(&d, "get_clusters", &json!({ "axis": "full" }));
    assert_eq!(found["clusters"][0]["cluster_id"], "full_0");
    assert_eq!(call(&d, "store_value", &value)["status"], "stored");
}

#[test]
fn learned_data_survives_a_crash() {
    let mut d = Daemon::start();
    begin(&d, "s", "startup");
    let record = try_it(&d, TENANT, "falsified");
    for n in 0..20 {
        try_it(&d, &format!("The mocked clock never moves, number {n}"), "confirmed");
    }
    let memory = json!({ "content": "The tenant cache lives in Redis", "category": "decision", "tags": ["redis"] });
    let memory = call(&d, "store_memory", &memory)["id"].clone();
    let clusters = call(&d, "get_clusters", &json!({ "axis": "full" }));
    let id = clusters["clusters"][0]["cluster_id"].clone();
    let value = json!({ "text": "A mocked clock never moves by itself", "cluster_id": id });
    let value = call(&d, "store_value", &value)["id"].clone();
    let given = ask(&d, "tenant cache");
    assert_eq!(ids(&given), [record.clone(), memory.clone()]);

    d.kill_and_restart();
    assert_eq!(ask(&d, "tenant cache")["item_count"], 0, "it was told before the crash");
    assert_eq!(call(&d, "get_clusters", &json!({ "axis": "full" })), clusters);
    let members = call(&d, "get_cluster_members", &json!({ "cluster_id": id }));
    assert_eq!(members["count"], 20);
    assert_eq!(call(&d, "list_values", &json!({}))["results"][0]["id"], value);
    let found = call(&d, "retrieve_memories", &json!({ "query": "redis" }));
    assert_eq!((&found["results"][0]["id"], &found["count"]), (&memory, &json!(1)));

    begin(&d, "s", "resume");
    assert_eq!(ask(&d, "tenant cache")["item_count"], 0);
    for source in ["compact", "clear"] {
        begin(&d, "s", source);
        assert_eq!(ids(&ask(&d, "tenant cache")), ids(&given), "{source}");
    }
    begin(&d, "other", "startup");
    assert_eq!(ids(&ask(&d, "tenant cache")), ids(&given), "another session was told nothing");

    // People read it in the database.
    for (sql, is) in [
        (
            "select content from memories where project = '/nowhere/p'",
            "The tenant cache lives in Redis",
        ),
        (
            "select goal from cluster_members where cluster_id = 'full_0' limit 1",
            "The mocked clock",
        ),
        (
            "select text from team_values where axis = 'full'",
            "A mocked clock never moves by itself",
        ),
    ] {
        let said = d.home.value(sql);
        assert!(said.as_str().is_some_and(|said| said.starts_with(is)), "{sql}: {said}");
    }
}

/// A record of a session of its own with output, and the lesson `lesson`.
#[track_caller]
fn try_as(d: &Daemon, session: &str, about: &str, (status, lesson): (&str, &str)) -> Value {
    let start = json!({
        "session_id": session, "domain": "debugging", "strategy": "read-the-error", "goal": about,
        "hypothesis": format!("{about}, because of a stale entry"), "action": "look", "prediction": "it passes",
    });
    let id = call(d, "start_ghap", &start)["id"].clone();
    let end = json!({
        "session_id": session, "status": status, "result": "seen", "surprise": "none",
        "root_cause": { "category": "oversight", "description": "none" }, "lesson": { "what_worked": lesson },
    });
    call(d, "resolve_ghap", &end);
    id
}

/// How often a record was confirmed again, as every view shows it.
#[track_caller]
fn confirmed_again(d: &Daemon, id: &Value) -> i64 {
    let id = id.as_str().expect("an id");
    let count = call(d, "get_ghap", &json!({ "id": id }))["confirmed_again"].clone();
    assert_eq!(svc(&d.home, &["ghap", "show", id, "--json"]).json()["confirmed_again"], count);
    let listed = call(d, "list_ghap_entries", &json!({ "limit": 100 }));
    let mut listed = listed["results"].as_array().expect("a list").iter();
    let entry = listed.find(|entry| entry["id"] == id).expect("it is listed");
    assert_eq!(entry["confirmed_again"], count);
    let sql = format!(
        "select confirmed_again, (select count(*) from confirmations where item = ghap_id)
        from ghap_journal where ghap_id = '{id}'"
    );
    assert_eq!(d.home.rows(&sql), [[count.clone(), count.clone()]]);
    count.as_i64().expect("a number")
}

#[test]
fn record_that_helped_ranks_above_one_only_shown() {
    let mut d = Daemon::start();
    for session in ["a", "b", "c", "d", "e"] {
        begin(&d, session, "startup");
    }
    let find = |d: &Daemon, session: &str| {
        let search = json!({ "query": TENANT, "session_id": session, "limit": 2 });
        let found = call(d, "search_experiences", &search);
        let found = found["results"].as_array().expect("results").iter();
        found.map(|hit| hit["id"].clone()).collect::<Vec<Value>>()
    };
    let useful = try_as(&d, "a", TENANT, ("confirmed", "north wing"));
    let given = call(&d, "assemble_context", &json!({ "query": TENANT, "session_id": "b" }));
    assert_eq!(ids(&given), std::slice::from_ref(&useful));
    // It matches as well, and is later, so it comes first.
    let other = try_as(&d, "a", TENANT, ("confirmed", "south wing"));
    let at_first = [other.clone(), useful.clone()];
    assert_eq!(find(&d, "nobody"), at_first);

    // Given to all of them, and used by none: its own session, one that fails, one about something
    // else.
    for session in ["a", "c", "d"] {
        let query = json!({ "query": TENANT, "session_id": session });
        assert_eq!(ids(&call(&d, "assemble_context", &query)), at_first);
        assert_eq!(find(&d, session), at_first);
    }
    try_as(&d, "a", RELATED, ("confirmed", "the same"));
    try_as(&d, "c", RELATED, ("falsified", "nothing"));
    try_as(&d, "d", "The mocked clock never moves", ("confirmed", "advance it by hand"));
    assert_eq!((confirmed_again(&d, &useful), confirmed_again(&d, &other)), (0, 0));
    assert_eq!(find(&d, "nobody"), at_first);

    // Given and about the same, though the session forgot it and the daemon was killed.
    begin(&d, "b", "compact");
    d.kill_and_restart();
    try_as(&d, "b", RELATED, ("confirmed", "the key again"));
    assert_eq!((confirmed_again(&d, &useful), confirmed_again(&d, &other)), (1, 0));
    assert_eq!(find(&d, "nobody"), [useful.clone(), other.clone()]);
    let again = json!({ "session_id": "b", "status": "confirmed", "result": "seen" });
    refuse(&d, "resolve_ghap", &again, "not_found");
    assert_eq!(confirmed_again(&d, &useful), 1, "a repeat is no record more");

    // Named without having been given; twice in a record counts once.
    let id = other.as_str().expect("an id");
    for session in ["e", "c"] {
        try_as(&d, session, "Webhooks come twice", ("confirmed", &format!("as {id}, yes {id}")));
    }
    try_as(&d, "d", "Webhooks come late", ("falsified", &format!("not as {id}")));
    assert_eq!((confirmed_again(&d, &useful), confirmed_again(&d, &other)), (1, 2));
    assert_eq!(find(&d, "nobody"), at_first);
}

#[test]
fn memory_that_helped_is_counted() {
    let d = Daemon::start();
    for session in ["a", "b"] {
        begin(&d, session, "startup");
    }
    let memory = json!({ "session_id": "a", "content": TENANT, "category": "fact" });
    call(&d, "store_memory", &memory);
    let query = json!({ "session_id": "b", "query": TENANT });
    let count = || call(&d, "retrieve_memories", &query)["results"][0]["confirmed_again"].clone();
    assert_eq!(count(), 0);
    try_as(&d, "b", "The mocked clock never moves", ("confirmed", "advance it by hand"));
    assert_eq!(count(), 0, "found, and of no use");
    try_as(&d, "b", TENANT, ("confirmed", "put it into the key"));
    assert_eq!(count(), 1);
}

#[test]
fn clustering_uses_the_latest_of_very_many_records() {
    let d = Daemon::start();
    let record = |n: usize| {
        let about =
            ["the cache lacks the tenant", "the mocked clock never moves", "webhooks come twice"]
                [n % 3];
        json!({ "goal": format!("{about}, case {n}"), "hypothesis": about, "result": about })
    };
    let records: Vec<Value> = (0..1_050).map(record).collect();
    put_records(&d, &records);
    let found = call(&d, "get_clusters", &json!({ "axis": "full" }));
    assert_eq!((&found["record_count"], &found["count"]), (&json!(1_000), &json!(3)));
    let members = json!({ "cluster_id": found["clusters"][2]["cluster_id"], "limit": 100 });
    assert_eq!(call(&d, "get_cluster_members", &members)["count"], 100);
}

#[test]
fn context_stays_within_its_bound() {
    let d = Daemon::start();
    begin(&d, "s", "startup");
    let odd = [
        "plain words about the cache",
        "say \"no\" to \\ and\nnewlines in the cache\r\n\t",
        "```\n# cache\n</context>\n---\n* * *",
        "cache \u{1} \u{2028} \u{2029} \u{feff} \u{202e}",
        "cache 😀👩‍👩‍👧‍👦 ｷｬｯｼｭ キャッシュ",
    ];
    for (n, text) in odd.iter().enumerate() {
        let text = format!("{text} {n}");
        try_it(&d, &text, if n % 2 == 0 { "falsified" } else { "confirmed" });
        let content = text.repeat(100);
        call(&d, "store_memory", &json!({ "content": content, "category": "context" }));
    }
    let long = "cache ".repeat(160);
    for n in 0..8 {
        try_it(&d, &format!("{long}{n}"), "confirmed");
    }
    let mut sizes = Vec::new();
    for bytes in [400, 401, 555, 1_000, 2_048, 6_000, 10_000, 39_999, 40_000] {
        for query in odd {
            let all = json!({ "query": query, "max_bytes": bytes, "limit": 50, "repeat": true, "max_tokens": 10_000 });
            let context = call(&d, "assemble_context", &all);
            let markdown = context["markdown"].as_str().expect("a text");
            assert!(markdown.len() <= bytes, "{bytes}: {}", markdown.len());
            assert!(!markdown.is_empty(), "{bytes} {query:?}");
            assert_eq!(context["token_count"], markdown.len().div_ceil(4));
            assert_eq!(context["item_count"], ids(&context).len());
            let starts = markdown.lines().filter(|line| line.starts_with("- ")).count();
            assert_eq!(context["item_count"], starts, "no text begins an item: {markdown}");
            assert!(!markdown.contains("```") && !markdown.contains("</context>"));
            assert!(markdown.chars().all(|c| c == '\n' || !c.is_control()));
            sizes.push(markdown.len());
        }
    }
    assert!(sizes.iter().max() > sizes.iter().min(), "there is more in a larger one");
    for (name, value) in
        [("max_bytes", 399), ("max_bytes", 40_001), ("max_tokens", 99), ("max_tokens", 10_001)]
    {
        let error = refuse(
            &d,
            "assemble_context",
            &json!({ "query": "x", name: value }),
            "validation_error",
        );
        assert_eq!(error["field"], name);
    }
}

#[test]
fn oversized_input_is_refused_and_stores_nothing() {
    let d = Daemon::start();
    for (name, field, most) in [
        ("assemble_context", "query", 10_000),
        ("retrieve_memories", "query", 10_000),
        ("store_memory", "content", 10_000),
    ] {
        let with = |text: String| {
            let mut arguments = json!({ field: text });
            if name == "store_memory" {
                arguments["category"] = json!("fact");
            }
            arguments
        };
        // The bound counts characters, not bytes.
        call(&d, name, &with("é".repeat(most)));
        let error = refuse(&d, name, &with("é".repeat(most + 1)), "validation_error");
        assert_eq!(error["field"], field);
        let body = tool_call(name, &with("x".repeat(4 * 1024 * 1024)));
        assert_eq!(d.post("/mcp", &body).status(), 413, "{name}");
    }
    assert_eq!(call(&d, "list_memories", &json!({}))["total"], 1);
}

#[test]
fn confirmations_and_lists_are_short() {
    let d = Daemon::start();
    let long = "\"café\n".repeat(200);
    let tags: Vec<String> = (0..20).map(|n| format!("tag-{n:0>46}")).collect();
    let memory = json!({ "content": long.repeat(8), "category": "preference", "importance": 0.123_456_789, "tags": tags });
    assert!(call(&d, "store_memory", &memory).to_string().len() < 500);
    for n in 0..20 {
        try_it(&d, &format!("{n} {}", long.chars().take(900).collect::<String>()), "falsified");
    }
    let clusters = call(&d, "get_clusters", &json!({ "axis": "full" }));
    let id = clusters["clusters"][0]["cluster_id"].clone();
    let value = json!({ "text": long.chars().take(500).collect::<String>(), "cluster_id": id });
    assert!(call(&d, "validate_value", &value).to_string().len() < 500);
    assert!(call(&d, "store_value", &value).to_string().len() < 500);
    for (name, arguments, list) in [
        ("list_memories", json!({}), "results"),
        ("list_values", json!({}), "results"),
        ("list_ghap_entries", json!({}), "results"),
        ("get_clusters", json!({ "axis": "full" }), "clusters"),
        ("get_cluster_members", json!({ "cluster_id": id }), "members"),
    ] {
        let answer = call(&d, name, &arguments);
        let entries = answer[list].as_array().expect("a list");
        assert!(!entries.is_empty(), "{name}");
        for entry in entries {
            assert!(entry.to_string().len() <= 500, "{name}: {entry}");
        }
    }
    let gone = json!({ "memory_id": call(&d, "list_memories", &json!({}))["results"][0]["id"] });
    assert!(call(&d, "delete_memory", &gone).to_string().len() < 500);
}

#[test]
fn records_are_searched_over_http_and_from_the_terminal() {
    let d = Daemon::start();
    begin(&d, "s", "startup");
    let tenant = try_it(&d, TENANT, "falsified");
    let clock = try_it(&d, "The mocked clock never moves", "confirmed");
    let find = |query: &str| d.get(&format!("/v1/ghap/search?{query}")).ok(200);
    let found = find("q=why%20do%20tenants%20share%20a%20cache%3F");
    assert_eq!((&found["count"], &found["ghap"][0]["id"]), (&json!(1), &tenant));
    assert!(found["ghap"][0]["score"].as_f64().is_some_and(|score| score > 0.0));
    assert_eq!(find("q=clock&status=falsified")["count"], 0);
    assert_eq!(find("q=clock&domain=testing")["count"], 0);
    assert_eq!(find("q=")["count"], 0);
    for odd in ["\"", "a:b -c (d) OR *", "NEAR(x y)", "'; drop table ghap", "\u{2028}"] {
        find(&format!("q={}", escape(odd)));
    }
    for wrong in ["", "limit=5", "q=x&limit=0", "q=x&limit=51", "q=x&domain=sports"] {
        assert_eq!(d.get(&format!("/v1/ghap/search?{wrong}")).status(), 422, "{wrong}");
    }
    let said = svc(&d.home, &["ghap", "search", "mocked clock", "--json", "--limit", "1"]).json();
    assert_eq!((&said["count"], &said["ghap"][0]["id"]), (&json!(1), &clock));
    let table = svc(
        &d.home,
        &["ghap", "search", "mocked clock", "--domain", "debugging", "--project", "/nowhere/p"],
    );
    assert!(table.ok().contains("The mocked clock never moves"), "{table:?}");
    assert!(svc(&d.home, &["ghap", "search", "zebra"]).ok().contains("no match"));
}
