//! Stateless clients: tasks, and subscriptions.

use serde_json::{Value, json};

use super::{
    Client, SOON, Stream, call_states, finish, given, message, modern_body, modern_post, refused,
    request, result, subscribers, tool, wait_for, with_tasks,
};
use crate::daemon::{Daemon, eventually, until};
use crate::expect::{append, frame, instant, new_task, with_task};
use crate::wire::Caller;

const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

fn quick() -> Daemon {
    Daemon::with(|plan| plan.env("SVC_MCP_TASK_AFTER_MS", "100"))
}

/// Begins a `TaskWait` that becomes a task, and returns the task.
#[track_caller]
fn begin(caller: &Caller, task: &str) -> Value {
    let params = tool("TaskWait", &wait_for(task));
    let reply = modern_post(caller, &modern_body("t", "tools/call", &params, &with_tasks())).send();
    let made = result(&reply);
    assert_eq!(made["resultType"], "task", "{made}");
    assert_eq!(made["status"], "working", "{made}");
    assert!(made.get("content").is_none(), "{made}");
    made
}

/// A request about a task.
fn about(caller: &Caller, method: &str, id: &Value) -> crate::wire::Reply {
    let params = json!({ "taskId": id });
    modern_post(caller, &modern_body(1, method, &params, &with_tasks())).send()
}

#[track_caller]
fn get(caller: &Caller, id: &Value) -> Value {
    let task = result(&about(caller, "tasks/get", id));
    assert_eq!(task["taskId"], *id, "{task}");
    assert_eq!(task["resultType"], "complete", "{task}");
    task
}

/// Waits for a task's end.
#[track_caller]
fn ended(caller: &Caller, id: &Value) -> Value {
    until(SOON, || Some(get(caller, id)).filter(|task| task["status"] != "working"))
}

/// A client without tasks cannot come back for the answer.
#[test]
fn call_whose_token_ends_is_answered_with_an_error() {
    let d = Daemon::start();
    let session = d.session("s-1");
    let params = tool("TaskWait", &wait_for(&new_task(&session)));
    let body = modern_body("t", "tools/call", &params, &json!({}));
    let mut call = Stream::open(&modern_post(&session, &body));
    let token = d.get("/v1/tokens").ok(200)["tokens"][0]["token_id"].clone();
    d.delete(&format!("/v1/tokens/{}", token.as_str().expect("an id"))).ok(200);
    let answer = call.answer();
    assert_eq!(answer.json["id"], "t", "{answer:?}");
    assert_eq!(answer.json["error"]["data"]["code"], "unauthorized", "{answer:?}");
}

#[test]
fn slow_call_becomes_a_task_for_a_capable_client() {
    let d = quick();
    let task = new_task(&d);
    let made = begin(&d, &task);
    let id = &made["taskId"];
    assert!(id.as_str().is_some_and(|id| id.len() > 16), "nobody can guess it: {made}");
    assert!(instant(&made["createdAt"]) <= instant(&made["lastUpdatedAt"]));
    assert!(made["ttlMs"].is_null() || made["ttlMs"].is_u64());
    assert!(made["pollIntervalMs"].is_u64());
    assert_eq!(call_states(&d), ["working"], "on record before it is promised");
    let found = get(&d, id);
    assert_eq!(found["status"], "working");
    assert_eq!((found.get("result"), found.get("error")), (None, None));
    finish(&d, &task);
    let over = ended(&d, id);
    assert_eq!(over["status"], "completed");
    assert_eq!(given(&over["result"])["task"]["status"], "done");
    assert!(instant(&over["createdAt"]) <= instant(&over["lastUpdatedAt"]));
    assert_eq!(ended(&d, id), over, "and stays so");
    // A quick call becomes no task, and a client without the capability gets none.
    let params = tool("TaskWait", &json!({ "task_id": task }));
    let answer =
        result(&modern_post(&d, &modern_body(1, "tools/call", &params, &with_tasks())).send());
    assert_eq!(answer["resultType"], "complete");
    given(&answer);
    let other = new_task(&d);
    let params = tool("TaskWait", &json!({ "task_id": other, "timeout_s": 1 }));
    let answer =
        result(&modern_post(&d, &modern_body(1, "tools/call", &params, &json!({}))).send());
    assert_eq!(answer["resultType"], "complete");
    assert_eq!(given(&answer)["timed_out"], json!(true));
    assert_eq!(call_states(&d).len(), 1);
}

#[test]
fn only_the_owner_can_cancel_a_task() {
    let d = quick();
    let before = subscribers(&d);
    let (mine, theirs) = (d.reader("s-1"), d.session("s-2"));
    let task = new_task(&d);
    let made = begin(&mine, &task);
    let id = &made["taskId"];
    let strangers: [&Caller; 2] = [&theirs, &d];
    for caller in strangers {
        for method in ["tasks/get", "tasks/cancel"] {
            refused(&about(caller, method, id), 200, -32602);
        }
        let params = json!({ "taskId": id, "inputResponses": {} });
        let asked = modern_post(caller, &modern_body(1, "tasks/update", &params, &with_tasks()));
        refused(&asked.send(), 200, -32602);
    }
    for unknown in [json!("call_x"), json!("task_x"), json!(""), json!("../x")] {
        for method in ["tasks/get", "tasks/cancel"] {
            refused(&about(&mine, method, &unknown), 200, -32602);
        }
    }
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let params = json!({ "taskId": id, "inputResponses": {} });
        // A client without the capability must not use tasks.
        let body = modern_body("n", method, &params, &json!({}));
        let reply = modern_post(&mine, &body).send();
        let error = refused(&reply, 400, -32021);
        let needed = &error["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(needed["io.modelcontextprotocol/tasks"], json!({}), "{error}");
        assert_eq!(message(&reply)["id"], "n");
        // Nor in another era.
        let client = Client::open(&mine, "2025-11-25");
        refused(&client.post(&request(1, method, &params)).send(), 200, -32601);
    }
    refused(
        &modern_post(&mine, &modern_body(1, "tasks/get", &json!({}), &with_tasks())).send(),
        200,
        -32602,
    );
    assert_eq!(get(&mine, id)["status"], "working", "none of this touched it");
    for _ in 0..2 {
        let answer = result(&about(&mine, "tasks/cancel", id));
        assert_eq!(answer["resultType"], "complete");
        assert_eq!(answer.get("status"), None, "an acknowledgement: {answer}");
    }
    let over = ended(&mine, id);
    assert_eq!(over["status"], "cancelled");
    assert_eq!(over.get("result"), None);
    eventually(SOON, || subscribers(&d) <= before);
    finish(&d, &task);
    assert_eq!(get(&mine, id), over, "what comes later does not matter");
}

#[test]
fn end_of_an_abandoned_call_is_no_error() {
    let d = quick();
    let (one, two) = (new_task(&d), new_task(&d));
    let first = begin(&d, &one);
    finish(&d, &one);
    let over = ended(&d, &first["taskId"]);
    result(&about(&d, "tasks/cancel", &first["taskId"]));
    assert_eq!(get(&d, &first["taskId"]), over);
    let params = json!({ "taskId": first["taskId"], "inputResponses": { "x": {} } });
    result(&modern_post(&d, &modern_body(1, "tasks/update", &params, &with_tasks())).send());
    // A client that disconnects before it has its task has cancelled the call, or has a task on
    // record.
    let params = tool("TaskWait", &wait_for(&two));
    let mut conn = crate::wire::Conn::open(d.addr).expect("a connection");
    let body = modern_body(1, "tools/call", &params, &with_tasks());
    conn.write(&modern_post(&d, &body).bytes()).expect("a request");
    drop(conn);
    finish(&d, &two);
    eventually(SOON, || call_states(&d).iter().all(|state| state != "working"));
}

#[test]
fn task_continues_after_a_crash_and_a_shutdown() {
    let mut d = quick();
    let mine = d.reader("s-1");
    let (one, two, never) = (new_task(&d), new_task(&d), new_task(&d));
    let (first, second, third) = (begin(&mine, &one), begin(&mine, &two), begin(&mine, &never));
    let (first, second, third) = (&first["taskId"], &second["taskId"], &third["taskId"]);
    finish(&d, &one);
    let over = ended(&mine, first);
    d.kill9();
    // A crash would leave such a row for a slow tool with effects; svc has none.
    let call = third.as_str().expect("an id");
    d.home.change(&format!("update mcp_call set tool = 'TaskReply' where call_id = '{call}'"));
    d.restart();
    assert_eq!(get(&mine, first), over);
    assert_eq!(get(&mine, second)["status"], "working");
    let lost = get(&mine, third);
    assert_eq!(lost["status"], "completed", "a tool's failure is a result");
    let error = super::tool_error(&lost["result"], "unavailable");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("outcome is unknown")));
    d.restart();
    assert_eq!(get(&mine, second)["status"], "working");
    refused(&about(&d, "tasks/get", second), 200, -32602);
    finish(&d, &two);
    let over = ended(&mine, second);
    assert_eq!(given(&over["result"])["task"]["task_id"], json!(two));
    // Another one, cancelled after the crash.
    let last = new_task(&d);
    let made = begin(&mine, &last);
    d.kill_and_restart();
    result(&about(&mine, "tasks/cancel", &made["taskId"]));
    assert_eq!(ended(&mine, &made["taskId"])["status"], "cancelled");
}

/// Opens a subscription and checks that the first message acknowledges what was granted.
#[track_caller]
fn listen(caller: &Caller, id: &Value, wanted: &Value, granted: &Value) -> Stream {
    let params = json!({ "notifications": wanted });
    let body = modern_body(id.clone(), "subscriptions/listen", &params, &with_tasks());
    let mut stream = Stream::open(&modern_post(caller, &body));
    let first = stream.next();
    assert_eq!(first.method(), "notifications/subscriptions/acknowledged", "{first:?}");
    assert_eq!(first.json["params"]["notifications"], *granted, "{first:?}");
    belongs(&first.json["params"], id);
    assert_eq!(first.id, None);
    stream
}

#[track_caller]
fn belongs(params: &Value, id: &Value) {
    assert_eq!(params["_meta"][SUBSCRIPTION], *id, "{params}");
}

#[test]
fn subscription_acknowledges_and_sends_only_what_it_grants() {
    let d = Daemon::with(|plan| {
        plan.env("SVC_LIST_CHANGED_MS", "1").env("SVC_SSE_KEEPALIVE_MS", "200")
    });
    let before = subscribers(&d);
    let mine = d.reader("s-1");
    let task = new_task(&d);
    let uri = format!("svc://stream/task/{task}");
    let everything = json!({
        "toolsListChanged": true,
        "promptsListChanged": true,
        "resourcesListChanged": true,
        "resourceSubscriptions": [uri, "file:///etc/passwd", "svc://stream/mcp/call_x"],
        "taskIds": ["call_x"],
        "somethingNew": true,
    });
    let granted = json!({
        "toolsListChanged": true,
        "promptsListChanged": true,
        "resourcesListChanged": true,
        "resourceSubscriptions": [uri],
    });
    let mut all = listen(&mine, &json!("a"), &everything, &granted);
    let mut none = listen(&mine, &json!(2), &json!({ "toolsListChanged": false }), &json!({}));
    let mut lists = listen(
        &d,
        &json!(3),
        &json!({ "resourcesListChanged": true }),
        &json!({ "resourcesListChanged": true }),
    );
    let one = json!({ "resourceSubscriptions": [uri] });
    let mut updates = listen(&d, &json!(-4), &one, &one);
    append(&d, &task, &frame("a"));
    for (stream, id) in [(&mut all, json!("a")), (&mut updates, json!(-4))] {
        let told = stream.news("notifications/resources/updated");
        assert_eq!(told.json["params"]["uri"], json!(uri));
        assert_eq!(told.id, None, "nothing to resume");
        belongs(&told.json["params"], &id);
    }
    new_task(&d);
    for (stream, id) in [(&mut all, json!("a")), (&mut lists, json!(3))] {
        let told = stream.news("notifications/resources/list_changed");
        belongs(&told.json["params"], &id);
    }
    updates.is_silent();
    none.is_silent();
    let block = none.block().expect("the stream goes on");
    assert!(block.comment.is_some(), "{block:?}");
    for stream in [&all, &none, &lists, &updates] {
        stream.knife().cut();
    }
    eventually(SOON, || subscribers(&d) <= before);
    // Invalid requests.
    for params in [
        json!({}),
        json!({ "notifications": [] }),
        json!({ "notifications": { "resourceSubscriptions": "all" } }),
        json!({ "notifications": { "resourceSubscriptions": [3] } }),
        json!({ "notifications": { "taskIds": {} } }),
    ] {
        let body = modern_body(1, "subscriptions/listen", &params, &with_tasks());
        refused(&modern_post(&d, &body).send(), 200, -32602);
    }
    for caller in [&mine, &*d] {
        let body = request(1, "subscriptions/listen", &json!({ "notifications": {} }));
        refused(&super::post(caller, &body).send(), 200, -32601);
    }
}

#[test]
fn subscription_reports_tasks_to_their_owner_only() {
    let d = quick();
    let mine = d.reader("s-1");
    let task = new_task(&d);
    let made = begin(&mine, &task);
    let id = &made["taskId"];
    let wanted = json!({ "taskIds": [id, "call_x"] });
    let mut other = listen(&d, &json!(1), &wanted, &json!({}));
    let mut stream = listen(&mine, &json!(2), &wanted, &json!({ "taskIds": [id] }));
    let told = stream.news("notifications/tasks");
    assert_eq!(told.json["params"]["status"], "working", "where it stands");
    finish(&d, &task);
    let told = stream.news("notifications/tasks").json["params"].clone();
    belongs(&told, &json!(2));
    assert_eq!((&told["taskId"], &told["status"]), (id, &json!("completed")));
    given(&told["result"]);
    stream.is_silent();
    other.is_silent();
    // A client without the capability gets no notifications of tasks.
    let params = json!({ "notifications": wanted });
    let body = modern_body(3, "subscriptions/listen", &params, &json!({}));
    let mut stream = Stream::open(&modern_post(&mine, &body));
    assert_eq!(stream.next().json["params"]["notifications"], json!({}));
}

#[test]
fn shutdown_ends_a_subscription_so_that_the_client_renews_it() {
    let mut d = Daemon::start();
    let granted = json!({ "toolsListChanged": true });
    let mut stream = listen(&d, &json!("l"), &granted, &granted);
    d.stop();
    // A result would say that it has ended for good.
    assert_eq!(stream.rest(), [], "a clean end");
    d.restart();
    listen(&d, &json!("l"), &granted, &granted).is_silent();
}

#[test]
fn progress_events_have_no_ids() {
    let d = Daemon::with(|plan| plan.env("SVC_SSE_KEEPALIVE_MS", "100"));
    let task = new_task(&d);
    let mut params = tool("TaskWait", &wait_for(&task));
    params["_meta"] = json!({ "progressToken": 5 });
    let mut stream =
        Stream::open(&modern_post(&d, &modern_body(9, "tools/call", &params, &json!({}))));
    for _ in 0..2 {
        let told = stream.news("notifications/progress");
        assert_eq!((told.id, &told.json["params"]["progressToken"]), (None, &json!(5)));
    }
    finish(&d, &task);
    let answer = stream.answer();
    assert_eq!((answer.id, &answer.json["result"]["resultType"]), (None, &json!("complete")));
    super::is_wait_answer(&answer.json, 9);
}

#[test]
fn shutdown_answers_a_stateless_call_that_cannot_resume() {
    let (mut d, task) = with_task();
    let body = modern_body("m", "tools/call", &tool("TaskWait", &wait_for(&task)), &json!({}));
    let mut stream = Stream::open(&modern_post(&d, &body));
    d.stop();
    let end = stream.answer().json;
    assert_eq!((&end["id"], &end["error"]["code"]), (&json!("m"), &json!(-32603)));
}
