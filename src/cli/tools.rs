//! `svc tools`: lists and calls the tools that models use.

use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, Subcommand};
use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use svc_client::{Client, ClientError, McpReply, with_query};
use svc_model::source::BUILTIN_CORE;
use svc_wire::json_rpc::JsonRpcWriter;
use svc_wire::mcp_request::{self, RequestSetting};

use super::context::key_value;
use super::naming::all_items;
use super::output::{self, Column, Listing, Screen, plain};
use super::{Context, ExitResult, UsageError, agent};

const TOOLS: &[Column] = &[
    Column::text("TOOL", "name"),
    Column::text("FAMILY", "family").rank(1).usual("sources"),
    Column::text("WHAT IT DOES", "description"),
];

/// The members of a tool that a person is shown.
const SHOWN: [&str; 6] = ["name", "title", "family", "scope", "description", "input_schema"];

#[derive(Debug, Subcommand)]
pub(super) enum ToolsCommand {
    /// List the tools that you may call
    #[command(after_help = "Example:\n  svc tools list --family tasks")]
    List {
        /// Only this family, such as peers, tasks or events
        #[arg(long)]
        family: Option<String>,
    },
    /// Show what a tool does, and its arguments
    #[command(after_help = "Examples:\n  svc tools show peer_send\n  \
        svc tools show peer_send --json | jq .input_schema")]
    Show {
        /// The tool's name
        name: String,
    },
    /// Call a tool and print its result; exit code 1 if it fails
    #[command(after_help = CALL_EXAMPLES)]
    Call(Box<CallArgs>),
}

const CALL_EXAMPLES: &str = "\
Examples:
  svc tools call peer_list --arg status=online
  svc tools call TaskNotify --arg task_ids=task_… --arg task_ids=task_… --arg mode=all
  svc tools call peer_send --arg to=reviewer --arg text=@report.md
  echo '{\"query\": \"send a message\"}' | svc tools call ToolSearch --args -

Values get the types that the tool asks for (`svc tools show NAME`): a list takes several --arg, or one that is JSON; \
an object is JSON. For a tool that is not listed, a value that is JSON is sent as JSON. A text that begins with @ itself goes \
into --args.";

#[derive(Debug, Clone, Args)]
pub(super) struct CallArgs {
    /// The tool's name
    name: String,
    /// One argument; repeatable. KEY=@FILE reads its value from a file, KEY=@- from standard input
    #[arg(long = "arg", value_name = "KEY=VALUE")]
    each: Vec<String>,
    /// All arguments as one JSON object; `-` reads it from standard input. --arg adds to it
    #[arg(long = "args", value_name = "JSON")]
    all: Option<String>,
    /// The session on whose behalf you call; only the operator may choose
    #[arg(long, value_name = "ID")]
    session: Option<String>,
}

/// Header that names the session on whose behalf the operator calls.
const SESSION: &str = "svc-session-id";

pub(super) async fn run(context: &Context, command: ToolsCommand) -> ExitResult {
    match command {
        ToolsCommand::List { family } => {
            let tools = fetch(&context.client()?, family.as_deref()).await?;
            print(context, tools, "no tools; `svc tools list` shows all families")
        }
        ToolsCommand::Show { name } => {
            let tool = find(&context.client()?, &name).await?;
            let mut shown = tool.clone();
            if let Some(members) = shown.as_object_mut() {
                members.retain(|key, _| SHOWN.contains(&&**key));
            }
            let width = context.screen.fit_width();
            context.print(&tool, || output::block(&output::readable(&shown, width)))
        }
        ToolsCommand::Call(args) => call(context, &context.client()?, *args).await,
    }
}

/// All tools, or those of one family.
pub(super) async fn fetch(client: &Client, named: Option<&str>) -> Result<Vec<Value>, ClientError> {
    let path = with_query("/v1/tools", &[("family", named)]);
    all_items(client, &path, "tools", usize::MAX, |_| true).await
}

pub(super) fn is_of_source(tool: &Value, name: &str) -> bool {
    let tool = output::cell(tool, "name");
    let rest = tool.strip_prefix(name);
    // The built-in server's tools have no prefix.
    rest.is_some_and(|rest| rest.starts_with("__"))
        || (name == BUILTIN_CORE && !tool.contains("__"))
}

pub(super) async fn of_source(client: &Client, name: &str) -> Result<Vec<Value>, ClientError> {
    let all = fetch(client, Some("sources")).await?;
    Ok(all.into_iter().filter(|tool| is_of_source(tool, name)).collect())
}

pub(super) async fn call_by_name(
    context: &Context,
    client: &Client,
    name: String,
    each: Vec<String>,
) -> ExitResult {
    call(context, client, CallArgs { name, each, all: None, session: None }).await
}

/// The structured result of a tool.
///
/// # Errors
/// The tool's error.
pub(super) async fn structured(client: &Client, name: &str, arguments: Value) -> Result<Value> {
    let params = json!({ "name": name, "arguments": arguments });
    let result = result_of(client, "tools/call", params).await?;
    let object = &result["structuredContent"];
    match object.get("error").filter(|error| error.is_object()) {
        Some(error) => bail!("{}", failure(error)),
        None => Ok(object.clone()),
    }
}

/// The result of an MCP request.
///
/// # Errors
/// The error in the response.
pub(super) async fn result_of(client: &Client, method: &str, params: Value) -> Result<Value> {
    let mut answer = ask(client, method, &params, None).await?;
    match answer.get("error") {
        Some(error) => bail!("{}", failure(error)),
        None => Ok(answer["result"].take()),
    }
}

async fn find(client: &Client, name: &str) -> Result<Value> {
    let mut tools = fetch(client, None).await?.into_iter();
    tools
        .find(|tool| tool.get("name").and_then(Value::as_str) == Some(name))
        .ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> anyhow::Error {
    anyhow!("there is no tool {name:?}; see `svc tools list`")
}

/// Prints a list of tools, or `empty` if there are none.
pub(super) fn print(context: &Context, mut tools: Vec<Value>, empty: &'static str) -> ExitResult {
    for tool in tools.iter_mut().filter(|_| !context.json) {
        tool["description"] = purpose(&context.screen, &output::cell(tool, "description")).into();
    }
    let list = Listing { items: "tools", columns: TOOLS, empty, next: None };
    list.print(context, &json!({ "count": tools.len(), "tools": tools }))
}

/// The first line of a description, which may be pages long; with `--full` all of it.
pub(super) fn purpose(screen: &Screen, description: &str) -> String {
    let most = if screen.full { usize::MAX } else { 1 };
    description.lines().take(most).collect::<Vec<_>>().join(" ")
}

async fn call(context: &Context, client: &Client, args: CallArgs) -> ExitResult {
    let mut arguments = all_arguments(&args)?;
    let pairs =
        args.each.iter().map(|pair| key_value("--arg", pair)).collect::<Result<Vec<_>, _>>()?;
    let mut session = None;
    if let Some(id) = &args.session {
        let value = HeaderValue::from_str(id);
        session = Some(value.map_err(|_| UsageError(format!("--session {id:?}: not an id")))?);
    }
    if !pairs.is_empty() {
        // The tool's schema has the types of the values. A tool that is listed to nobody has none
        // here, and the daemon may know it all the same.
        let tools = fetch(client, None).await?;
        let tool = tools.iter().find(|tool| tool["name"] == args.name);
        let schema = tool.map_or(&Value::Null, |tool| &tool["input_schema"]);
        for (key, value) in pairs {
            let value = read(value)?;
            add(&mut arguments, schema, key, value);
        }
    }
    let params = json!({ "name": args.name, "arguments": arguments });
    let answer = ask(client, "tools/call", &params, session).await?;
    let refusal = answer["error"]["message"].as_str();
    if refusal.is_some_and(|message| message.starts_with("Unknown tool")) {
        return Err(unknown(&args.name));
    }
    print_answer(context, &answer)
}

async fn ask(
    client: &Client,
    method: &str,
    params: &Value,
    session: Option<HeaderValue>,
) -> Result<Value> {
    let body = JsonRpcWriter::new().id(&1).method(method).params(params).into_bytes();
    let mut request = mcp_request::post(body.into(), RequestSetting::default());
    request.headers.extend(session.map(|value| (HeaderName::from_static(SESSION), value)));
    let stream = client.open("/mcp", &request).await?;
    if !stream.status.is_success() {
        let reply = stream.collect().await?;
        // A protocol error is a response as well; an HTTP error is not.
        return match reply.json::<Value>() {
            Ok(answer) if answer.get("jsonrpc").is_some() => Ok(answer),
            _ => Err(ClientError::Problem(Box::new(reply.problem())).into()),
        };
    }
    let mut answer = McpReply::new(stream);
    while let Some(message) = answer.next().await? {
        let message: Value =
            serde_json::from_str(&message).context("the daemon sent a message that is not JSON")?;
        if message.get("result").is_some() || message.get("error").is_some() {
            return Ok(message);
        }
    }
    bail!("the daemon closed the connection before the tool's answer; see `svc logs`")
}

fn print_answer(context: &Context, answer: &Value) -> ExitResult {
    let result = &answer["result"];
    let structured = result.get("structuredContent");
    let refused = answer.get("error").map(|error| json!({ "error": error }));
    let document = refused.as_ref().or(structured).unwrap_or(result);
    let is_failure = refused.is_some() || result["isError"] == true;
    if context.json {
        output::json(document)?;
    } else if is_failure {
        let text = document.get("error").map_or_else(|| texts(result), failure);
        output::notes(&format!("error: {text}"));
    } else {
        let words = |object: &Value| output::readable(object, context.screen.fit_width());
        output::block(&structured.map_or_else(|| format!("{}\n", texts(result)), words))?;
    }
    Ok(if is_failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn failure(error: &Value) -> String {
    let mut text = output::visible(&output::cell(error, "message"));
    for key in ["type", "code", "field", "allowed", "data"] {
        if let Some(value) = error.get(key) {
            let value = match value {
                Value::Array(words) => words.iter().map(plain).collect::<Vec<_>>().join(", "),
                value => plain(value),
            };
            text.extend(["\n  ", key, ": ", &output::visible(&value)]);
        }
    }
    text
}

/// The texts of a result that is no object.
fn texts(result: &Value) -> String {
    let blocks = output::items(result, "content").iter().map(|block| {
        match block.get("text").and_then(Value::as_str) {
            Some(text) => text.lines().map(output::visible).collect::<Vec<_>>().join("\n"),
            None => format!("({} that a terminal cannot show)", output::cell(block, "type")),
        }
    });
    blocks.collect::<Vec<_>>().join("\n")
}

fn all_arguments(args: &CallArgs) -> Result<Map<String, Value>> {
    let from_input = args.each.iter().filter(|pair| pair.ends_with("=@-")).count();
    if from_input + usize::from(args.all.as_deref() == Some("-")) > 1 {
        return Err(UsageError("standard input can be read only once".to_owned()).into());
    }
    let Some(text) = &args.all else { return Ok(Map::new()) };
    let text = agent::text(text.clone())?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(UsageError("--args: not a JSON object".to_owned()).into()),
        Err(error) => Err(UsageError(format!("--args: not JSON: {error}")).into()),
    }
}

/// The value itself, or the text of the file that it names.
fn read(value: &str) -> Result<String> {
    match value.strip_prefix('@') {
        None => Ok(value.to_owned()),
        Some("-") => agent::text("-".to_owned()),
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {path}")),
    }
}

/// Adds a value of the type in the tool's schema. For a list each `--arg` appends one element. The
/// daemon refuses an unknown argument and a wrong value.
fn add(arguments: &mut Map<String, Value>, schema: &Value, key: &str, text: String) {
    // Without a schema no type is known: what is JSON is sent as JSON.
    let unknown = if schema.is_null() { json!({}) } else { json!({ "type": "string" }) };
    let property = schema["properties"].get(key).unwrap_or(&unknown);
    if property["type"] != "array" {
        arguments.insert(key.to_owned(), typed(property, text));
        return;
    }
    let mut items = match arguments.remove(key) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Array(several)) => items.extend(several),
        _ => items.push(typed(&property["items"], text)),
    }
    arguments.insert(key.to_owned(), Value::Array(items));
}

/// The text of a text; else the JSON that it is, or the text if it is none.
fn typed(property: &Value, text: String) -> Value {
    let value = if property["type"] == "string" { None } else { serde_json::from_str(&text).ok() };
    value.unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_get_the_type_of_the_schema() {
        let schema = json!({ "properties": {
            "s": { "type": "string" }, "i": { "type": "integer" }, "b": { "type": "boolean" },
            "n": { "type": "number" }, "o": { "type": "object" }, "any": {},
            "l": { "type": "array", "items": { "type": "string" } },
            "li": { "type": "array", "items": { "type": "integer" } },
        } });
        let parse = |pairs: &[&str]| {
            let mut arguments = Map::new();
            for pair in pairs {
                let (key, value) = key_value("--arg", pair).map_err(|error| error.to_string())?;
                add(&mut arguments, &schema, key, value.to_owned());
            }
            Ok::<_, String>(Value::Object(arguments))
        };
        for (pairs, expected) in [
            (&["s=7"][..], json!({ "s": "7" })),
            (&["s="], json!({ "s": "" })),
            (&["s=a=b", "s=c"], json!({ "s": "c" })),
            (&["i=-7", "b=true", "n=1.5"], json!({ "i": -7, "b": true, "n": 1.5 })),
            (&["o={\"a\":1}"], json!({ "o": { "a": 1 } })),
            (&["l=a", "l=7", "l=[\"b\",\"c\"]"], json!({ "l": ["a", "7", "b", "c"] })),
            (&["li=1", "li=[2]"], json!({ "li": [1, 2] })),
            (&["any=1", "nobody=1"], json!({ "any": 1, "nobody": "1" })),
            (&["any=plain"], json!({ "any": "plain" })),
            // The daemon refuses it.
            (&["i=x"], json!({ "i": "x" })),
        ] {
            assert_eq!(parse(pairs), Ok(expected), "{pairs:?}");
        }
        for pair in ["nothing", "=x"] {
            let error = parse(&[pair]).expect_err(pair);
            assert!(error.contains(pair), "{error}");
        }
    }

    #[test]
    fn without_a_schema_what_is_json_is_sent_as_json() {
        let mut arguments = Map::new();
        for (key, text) in [("limit", "1"), ("open", "true"), ("project", "/srv/web")] {
            add(&mut arguments, &Value::Null, key, text.to_owned());
        }
        let sent = json!({ "limit": 1, "open": true, "project": "/srv/web" });
        assert_eq!(Value::Object(arguments), sent);
    }

    #[test]
    fn purpose_is_the_first_line_or_all_with_the_full_flag() {
        let screen = Screen::for_tests(Some(40));
        let shown = |full| purpose(&Screen { full, ..screen }, "Reads a file.\nAll of it.");
        assert_eq!([false, true].map(shown), ["Reads a file.", "Reads a file. All of it."]);
    }

    #[test]
    fn tool_error_shows_reason_and_advice() {
        let error = json!({
            "type": "validation_error", "message": "limit: must be from 1 to 500", "field": "limit",
            "allowed": "from 1 to 500",
        });
        let text = failure(&error);
        assert!(text.starts_with("limit: must be from 1 to 500\n"), "{text}");
        assert!(
            text.contains("\n  field: limit") && text.contains("\n  allowed: from 1 to 500"),
            "{text}"
        );
        let text = failure(&json!({ "message": "m", "allowed": ["a", "b"] }));
        assert!(text.ends_with("allowed: a, b"), "{text}");
    }
}
