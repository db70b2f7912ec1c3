use serde_json::json;

use crate::tools::ErrorType;
use crate::tools::testing::World;

#[tokio::test]
async fn each_session_and_sub_agent_has_its_own_count() {
    let world = World::open().await;
    let (one, two) = (world.operator(Some("one")), world.operator(Some("two")));
    for _ in 0..3 {
        world.call(&one, "increment_tool_count", json!({ "tool_name": "Bash" })).await;
    }
    let counted = world.call(&two, "increment_tool_count", json!({})).await;
    assert_eq!(counted["tool_count"], 1);
    let beneath = json!({ "tool_name": "Bash", "agent_id": "a1" });
    assert_eq!(world.call(&one, "increment_tool_count", beneath).await["tool_count"], 1);
    let due = async |frequency: i64| {
        world.call(&one, "should_check_in", json!({ "frequency": frequency })).await["should_check_in"].clone()
    };
    assert_eq!((due(3).await, due(4).await), (json!(true), json!(false)));
    assert_eq!(world.call(&one, "reset_tool_count", json!({})).await["tool_count"], 0);
    assert_eq!(due(1).await, json!(false));
    let found = world.call(&one, "get_session", json!({})).await;
    assert_eq!((&found["tool_calls"], &found["tool_count"]), (&json!(3), &json!(0)));
    assert_eq!(found["tools"][0]["count"], 3);
    assert_eq!(found["tools"][1]["agent_id"], "a1");
    let list = world.call(&one, "list_sessions", json!({ "open": true })).await;
    assert_eq!(list["count"], 2);
}

#[tokio::test]
async fn ping_succeeds_for_every_caller_and_changes_nothing() {
    let world = World::open().await;
    let session = world.session("s");
    for call in [world.operator(None), session] {
        assert_eq!(world.call(&call, "ping", json!({})).await, json!({ "ok": true }));
    }
    let listed = world.call(&world.operator(None), "list_sessions", json!({})).await;
    assert_eq!(listed["count"], 0, "{listed}");
}

#[tokio::test]
async fn of_concurrent_check_ins_one_in_ten_is_due() {
    let world = World::open().await;
    let call = world.operator(Some("s"));
    let calls = (0..50).map(|_| world.call(&call, "check_in", json!({ "tool_name": "Read" })));
    let said = futures_util::future::join_all(calls).await;
    assert_eq!(said.iter().filter(|said| said["due"] == true).count(), 5);
    assert!(
        said.iter().all(|said| said["reminder"].is_null()),
        "there is nothing to be reminded of"
    );
    assert_eq!(world.call(&call, "get_session", json!({})).await["tool_calls"], 50);
}

#[tokio::test]
async fn a_check_in_shows_the_record_once() {
    let world = World::open().await;
    let call = world.operator(Some("s"));
    let start = json!({
        "domain": "testing", "strategy": "ask-user", "goal": "say \"no\" to\nnewlines",
        "hypothesis": "the quote is not escaped in the template", "action": "escape", "prediction": "it parses",
    });
    world.call(&call, "start_ghap", start).await;
    let mut reminders = Vec::new();
    for _ in 0..10 {
        let said = world.call(&call, "check_in", json!({ "frequency": 10 })).await;
        reminders.extend(said["reminder"].as_str().map(str::to_owned));
    }
    assert_eq!(reminders.len(), 1);
    assert!(reminders[0].contains("Goal: say \"no\" to newlines\n"), "{reminders:?}");
    // An update of the record counts as a check-in.
    for _ in 0..9 {
        world.call(&call, "check_in", json!({})).await;
    }
    world.call(&call, "update_ghap", json!({ "note": "n" })).await;
    assert_eq!(world.call(&call, "check_in", json!({})).await["tool_count"], 1);
}

#[tokio::test]
async fn the_operator_does_not_take_over_another_callers_session() {
    let world = World::open().await;
    let (bare, token) = (world.operator(None), world.session("mine"));
    // The row of a database that is older than the reservation of the name.
    let owner = token.caller.principal().to_string();
    let store = &world.test.store;
    let claimed = store
        .write(move |tx| Box::pin(async move { tx.sessions().touch("default", &owner).await }));
    claimed.await.unwrap();
    let own = world.call(&bare, "increment_tool_count", json!({})).await;
    assert_eq!(own["tool_count"], 1);
    let session = world.call(&bare, "get_session", json!({})).await["session_id"].clone();
    assert_eq!(session.as_str().unwrap().len(), 36);
    assert_eq!(world.call(&bare, "increment_tool_count", json!({})).await["tool_count"], 2);
    assert_eq!(world.call(&bare, "get_session", json!({})).await["session_id"], session);
    let named = json!({ "session_id": "default" });
    assert_eq!(world.call(&token, "increment_tool_count", named).await["tool_count"], 1);
}

#[tokio::test]
async fn the_default_session_of_a_call() {
    let world = World::open().await;
    let bare = world.operator(None);
    let count =
        async || world.call(&bare, "increment_tool_count", json!({})).await["tool_count"].clone();
    assert_eq!(count().await, 1);
    assert_eq!(world.call(&bare, "get_session", json!({})).await["session_id"], "default");
    let started = world.call(&bare, "start_session", json!({})).await;
    assert_eq!(started["session_id"].as_str().unwrap().len(), 36);
    assert_eq!(count().await, 1, "the one that was started last");
    let named = json!({ "session_id": "default" });
    assert_eq!(world.call(&bare, "increment_tool_count", named.clone()).await["tool_count"], 2);
    let token = world.session("mine");
    world.call(&token, "increment_tool_count", json!({})).await;
    assert_eq!(world.call(&token, "get_session", json!({})).await["session_id"], "mine");
    world.refuse(&token, "get_session", named, ErrorType::Forbidden).await;
    let odd = json!({ "session_id": "with a \"quote\", ünd so" });
    world.call(&bare, "start_session", odd.clone()).await;
    assert_eq!(world.call(&bare, "get_session", json!({})).await["session_id"], odd["session_id"]);
}
