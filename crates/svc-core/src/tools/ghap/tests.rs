use serde_json::{Value, json};

use crate::tools::{Call, ErrorType, testing::World};

fn attempt(goal: &str) -> Value {
    json!({
        "domain": "debugging", "strategy": "read-the-error", "goal": goal,
        "hypothesis": "the cache key lacks the tenant, so tenants see each other",
        "action": "add the tenant to the key", "prediction": "the two tenants' test passes",
    })
}

async fn begin(world: &World, session: &str, cwd: &str) -> Call {
    let call = world.operator(Some(session));
    world.call(&call, "start_session", json!({ "cwd": cwd })).await;
    call
}

#[tokio::test]
async fn a_record_is_started_updated_and_resolved() {
    let world = World::open().await;
    let call = begin(&world, "s1", "/nowhere/p").await;
    assert_eq!(world.call(&call, "get_active_ghap", json!({})).await["has_active"], false);
    let id = world.call(&call, "start_ghap", attempt("fix it")).await["id"].clone();
    let error =
        world.refuse(&call, "start_ghap", attempt("more"), ErrorType::ActiveGhapExists).await;
    assert!(error.message.contains(id.as_str().unwrap()), "{error:?}");

    let nothing =
        json!({ "hypothesis": "the cache key lacks the tenant, so tenants see each other" });
    world.refuse(&call, "update_ghap", nothing, ErrorType::ValidationError).await;
    let updated = world.call(&call, "update_ghap", json!({ "note": "saw it once" })).await;
    assert_eq!(updated, json!({ "success": true, "iteration_count": 1 }));
    let change = json!({ "hypothesis": "the key is fine, but the cache is shared between tests" });
    assert_eq!(world.call(&call, "update_ghap", change).await["iteration_count"], 2);

    let bare = json!({ "status": "falsified", "result": "still red" });
    let error = world.refuse(&call, "resolve_ghap", bare, ErrorType::ValidationError).await;
    assert_eq!(error.field.as_deref(), Some("surprise"));
    let half = json!({ "status": "falsified", "result": "still red", "surprise": "green alone" });
    let error = world.refuse(&call, "resolve_ghap", half, ErrorType::ValidationError).await;
    assert_eq!(error.field.as_deref(), Some("root_cause"));
    let whole = json!({
        "status": "falsified", "result": "still red", "surprise": "green alone",
        "root_cause": { "category": "test-isolation", "description": "one cache for all tests" },
        "lesson": { "what_worked": "a cache for each test" },
    });
    let resolved = world.call(&call, "resolve_ghap", whole).await;
    assert_eq!(resolved["confidence_tier"], "silver");
    assert!(resolved.to_string().len() < 500, "what was said is not repeated");
    world
        .refuse(
            &call,
            "resolve_ghap",
            json!({ "status": "abandoned", "result": "x" }),
            ErrorType::NotFound,
        )
        .await;

    let found = world.call(&call, "get_ghap", json!({ "id": id })).await;
    assert_eq!(found["history"][0]["iteration"], 1);
    assert_eq!(found["notes"], json!(["saw it once"]));
    assert_eq!(found["root_cause"]["category"], "test-isolation");
    let list = world.call(&call, "list_ghap_entries", json!({ "outcome": "falsified" })).await;
    assert_eq!(list["results"][0]["id"], id);
    assert!(list["results"][0].to_string().len() <= 500);
    for (since, count) in [("1960-01-01", 1), ("2999-01-01T00:00:00+02:00", 0)] {
        let list = world.call(&call, "list_ghap_entries", json!({ "since": since })).await;
        assert_eq!(list["count"], count, "{since}");
    }
    let wrong = json!({ "since": "yesterday" });
    world.refuse(&call, "list_ghap_entries", wrong, ErrorType::ValidationError).await;
}

#[tokio::test]
async fn resolved_records_are_found_by_their_symptoms() {
    let world = World::open().await;
    let call = begin(&world, "s1", "/nowhere/p").await;
    world.call(&call, "start_ghap", attempt("tenants see each other's rows in the report")).await;
    let find = async |query: &str| {
        world.call(&call, "search_experiences", json!({ "query": query })).await["count"].clone()
    };
    assert_eq!(find("tenant cache").await, 0, "it is not over yet");
    let end = json!({ "status": "confirmed", "result": "green" });
    world.call(&call, "resolve_ghap", end).await;
    assert_eq!(find("why do tenants share a cache?").await, 1);
    assert_eq!(find(" ").await, 0);
    for odd in ["\"", "a:b -c (d) OR *", "NEAR(x y)", "C++ foo-bar", "\u{0}"] {
        find(odd).await;
    }
    let other = json!({ "query": "tenants cache", "outcome": "falsified" });
    assert_eq!(world.call(&call, "search_experiences", other).await["count"], 0);
    for (axis, count) in [("full", 1), ("strategy", 1), ("surprise", 0), ("root_cause", 0)] {
        let query = json!({ "query": "tenants cache", "axis": axis });
        let found = world.call(&call, "search_experiences", query).await;
        assert_eq!(found["count"], count, "{axis}");
        if count == 1 {
            let one = &found["results"][0];
            assert_eq!((&one["axis"], &one["id"]), (&json!(axis), &one["ghap_id"]), "{one}");
            let (status, result) = (&one["outcome_status"], &one["outcome_result"]);
            assert_eq!((status, result), (&json!("confirmed"), &json!("green")), "{one}");
            for absent in ["surprise", "root_cause", "lesson"] {
                assert!(one.get(absent).is_some_and(Value::is_null), "{absent} in {one}");
            }
        }
    }
}

/// A journal whose records are all about one subject still returns them.
#[tokio::test]
async fn a_small_journal_returns_records_of_its_only_subject() {
    let world = World::open().await;
    for n in 0..6 {
        let call = begin(&world, &format!("s{n}"), "/nowhere/p").await;
        let goal = "repair the websocket heartbeat that drops after a minute behind the proxy";
        world.call(&call, "start_ghap", attempt(goal)).await;
        let end = json!({ "status": "confirmed", "result": "green" });
        world.call(&call, "resolve_ghap", end).await;
    }
    let call = begin(&world, "reader", "/nowhere/p").await;
    let prompt = "the websocket heartbeat drops after a minute behind the proxy, repair it";
    let event = json!({
        "client": "claude-code",
        "payload": { "hook_event_name": "UserPromptSubmit", "session_id": "reader", "cwd": "/nowhere/p", "prompt": prompt },
    });
    let answer = world.call(&call, "hook_event", event).await;
    let context = answer["hookSpecificOutput"]["additionalContext"].as_str();
    assert!(context.is_some_and(|text| text.contains("websocket heartbeat")), "{answer}");
}

#[tokio::test]
async fn the_tier_depends_on_the_evidence_of_the_verdict() {
    let world = World::open().await;
    let call = begin(&world, "s1", "/nowhere/p").await;
    let outcome = json!({ "command": "cargo test", "verdict": "pass", "tool_use_id": "t1" });
    let outcome = world.call(&call, "record_outcome", outcome).await["outcome_id"].clone();
    let again = json!({ "command": "cargo test", "verdict": "fail", "tool_use_id": "t1" });
    assert_eq!(world.call(&call, "record_outcome", again).await["outcome_id"], outcome);
    for (hypothesis, end, tier) in [
        ("the clock is mocked and never moves", json!({ "outcome_id": outcome }), "gold"),
        ("the clock is mocked and never moves", json!({}), "silver"),
        ("something is wrong", json!({}), "bronze"),
    ] {
        let mut start = attempt("make it green");
        start["hypothesis"] = json!(hypothesis);
        world.call(&call, "start_ghap", start).await;
        let mut resolve = json!({ "status": "confirmed", "result": "green" });
        resolve.as_object_mut().unwrap().extend(end.as_object().unwrap().clone());
        assert_eq!(world.call(&call, "resolve_ghap", resolve).await["confidence_tier"], tier);
    }
    world.call(&call, "start_ghap", attempt("x")).await;
    let other = json!({ "status": "confirmed", "result": "green", "outcome_id": "out_none" });
    world.refuse(&call, "resolve_ghap", other, ErrorType::NotFound).await;
    let end = json!({ "status": "abandoned", "result": "no time" });
    assert_eq!(world.call(&call, "resolve_ghap", end).await["confidence_tier"], "abandoned");
}

#[tokio::test]
async fn orphans_belong_to_ended_sessions_of_the_same_project() {
    let world = World::open().await;
    let one = begin(&world, "one", "/nowhere/p").await;
    let id = world.call(&one, "start_ghap", attempt("left")).await["id"].clone();
    let two = begin(&world, "two", "/nowhere/p").await;
    let far = begin(&world, "far", "/nowhere/q").await;
    let orphan = async |call: &Call| world.call(call, "get_orphaned_ghap", json!({})).await;
    assert_eq!(orphan(&two).await, json!({ "has_orphan": false }), "its session is at work");
    world.call(&one, "end_session", json!({ "reason": "logout" })).await;
    let found = orphan(&two).await;
    assert_eq!((&found["id"], &found["session_id"]), (&id, &json!("one")));
    assert_eq!(orphan(&far).await["has_orphan"], false);
    world.refuse(&far, "adopt_ghap", json!({ "id": id }), ErrorType::NotFound).await;

    // The session that resumes has its record again.
    world.call(&one, "start_session", json!({ "source": "resume" })).await;
    assert_eq!(orphan(&two).await["has_orphan"], false);
    assert_eq!(world.call(&one, "get_active_ghap", json!({})).await["id"], id);
    world.call(&one, "end_session", json!({})).await;

    world.call(&two, "start_ghap", attempt("own")).await;
    world.refuse(&two, "adopt_ghap", json!({}), ErrorType::ActiveGhapExists).await;
    world.call(&two, "resolve_ghap", json!({ "status": "abandoned", "result": "x" })).await;
    let adopted = world.call(&two, "adopt_ghap", json!({})).await;
    assert_eq!((&adopted["id"], &adopted["adopted_from"]), (&id, &json!("one")));
    assert_eq!(world.call(&two, "get_active_ghap", json!({})).await["id"], id);
    world.refuse(&two, "abandon_orphan", json!({ "reason": "x" }), ErrorType::NotFound).await;

    world.call(&two, "end_session", json!({})).await;
    let three = begin(&world, "three", "/nowhere/p/").await;
    let ended = world.call(&three, "abandon_orphan", json!({ "reason": "nobody knows" })).await;
    assert_eq!((&ended["id"], &ended["confidence_tier"]), (&id, &json!("abandoned")));
    let found = world.call(&three, "get_ghap", json!({ "id": id })).await;
    assert_eq!((&found["session_id"], &found["status"]), (&json!("two"), &json!("abandoned")));
}

#[tokio::test]
async fn of_concurrent_starts_of_a_record_one_succeeds() {
    let world = World::open().await;
    let call = begin(&world, "s", "/nowhere/p").await;
    let starts =
        (0..20).map(|n| world.try_call(&call, "start_ghap", attempt(&format!("goal {n}"))));
    let outcomes = futures_util::future::join_all(starts).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    let refused = outcomes.into_iter().filter_map(Result::err);
    assert!(refused.map(|error| error.kind).all(|kind| kind == ErrorType::ActiveGhapExists));
}

#[tokio::test]
async fn calibration_compares_predictions_with_verdicts() {
    let world = World::open().await;
    let call = world.operator(Some("s"));
    world.call(&call, "start_session", json!({ "cwd": "/nowhere/p", "client": "codex" })).await;
    for (probability, status) in
        [(json!(1.0), "confirmed"), (json!(0.5), "falsified"), (Value::Null, "confirmed")]
    {
        let mut start = attempt("x");
        start["probability"] = probability;
        world.call(&call, "start_ghap", start).await;
        let end = json!({
            "status": status, "result": "seen", "surprise": "it was not so",
            "root_cause": { "category": "oversight", "description": "not read" },
        });
        world.call(&call, "resolve_ghap", end).await;
    }
    let found = world.call(&call, "ghap_calibration", json!({ "client": "codex" })).await;
    let row = &found["results"][0];
    assert_eq!((&row["records"], &row["with_probability"]), (&json!(3), &json!(2)));
    assert_eq!(row["brier"], json!(0.125));
    assert!((row["hit_rate"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
}
