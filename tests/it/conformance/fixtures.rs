//! Tools, resources and prompts that the conformance suite expects of a server, by its names.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Map, Value, json};
use svc_core::tools::{
    Call, ClientQuestion, ErrorType, Failure, LogLevel, Output, Tool, ToolError, ToolProgress,
};
use svc_model::StreamName;
use svc_server::mcp::{
    McpServer, PromptArgument, PromptTemplate, Provided, ResourcePage, ResourceProvider,
};

/// A PNG of one red dot.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV without samples.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";

/// The server itself, for the tools that change its lists.
pub(super) type Handle = Arc<OnceLock<McpServer>>;

fn nothing() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn one(name: &str, kind: &str, required: bool) -> Value {
    let required: Vec<&str> = required.then_some(name).into_iter().collect();
    json!({ "type": "object", "properties": { name: { "type": kind } }, "required": required })
}

fn content(blocks: Vec<Value>) -> Output {
    Output::Content { content: blocks, structured: None, is_error: false }
}

fn tool<F, Fut>(name: impl Into<Cow<'static, str>>, input: Value, run: F) -> Tool
where
    F: Fn(Call, Map<String, Value>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Output, Failure>> + Send + 'static,
{
    Tool::raw(name, "A fixture of the conformance suite", input, run)
}

fn text_of(arguments: &Map<String, Value>, name: &str) -> String {
    arguments.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn elicit(key: &str, message: &str, field: &str, kind: &str) -> ClientQuestion {
    let schema =
        json!({ "type": "object", "properties": { field: { "type": kind } }, "required": [field] });
    ClientQuestion {
        key: key.to_owned(),
        method: "elicitation/create",
        params: json!({ "mode": "form", "message": message, "requestedSchema": schema }),
    }
}

fn sample(key: &str, prompt: &str, tokens: u32) -> ClientQuestion {
    let message = json!({ "role": "user", "content": { "type": "text", "text": prompt } });
    let params = json!({ "messages": [message], "maxTokens": tokens });
    ClientQuestion { key: key.to_owned(), method: "sampling/createMessage", params }
}

fn roots(key: &str) -> ClientQuestion {
    ClientQuestion { key: key.to_owned(), method: "roots/list", params: json!({}) }
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

pub(super) fn tools(handle: &Handle) -> Vec<Tool> {
    let mut tools = plain();
    tools.extend(legacy());
    tools.extend(stateless(handle));
    tools.extend(rounds());
    tools.extend(tasks());
    tools
}

/// Tools for both eras.
fn plain() -> Vec<Tool> {
    let image = json!({ "type": "image", "data": PNG, "mimeType": "image/png" });
    let audio = json!({ "type": "audio", "data": WAV, "mimeType": "audio/wav" });
    let embedded = |uri: &str, kind: &str, text: &str| json!({ "type": "resource", "resource": { "uri": uri, "mimeType": kind, "text": text } });
    let resource =
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.");
    let mixed = vec![
        json!({ "type": "text", "text": "Multiple content types test:" }),
        image.clone(),
        embedded(
            "test://mixed-content-resource",
            "application/json",
            r#"{"test":"data","value":123}"#,
        ),
    ];
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    });
    let header = json!({
        "type": "object",
        "properties": { "value": { "type": "string", "x-mcp-header": "Value" } },
        "required": ["value"],
    });
    vec![
        tool("test_simple_text", nothing(), async |_, _| {
            Ok(Output::text("This is a simple text response for testing."))
        }),
        tool("test_image_content", nothing(), move |_, _| {
            std::future::ready(Ok(content(vec![image.clone()])))
        }),
        tool("test_audio_content", nothing(), move |_, _| {
            std::future::ready(Ok(content(vec![audio.clone()])))
        }),
        tool("test_embedded_resource", nothing(), move |_, _| {
            std::future::ready(Ok(content(vec![resource.clone()])))
        }),
        tool("test_multiple_content_types", nothing(), move |_, _| {
            std::future::ready(Ok(content(mixed.clone())))
        }),
        tool("test_error_handling", nothing(), async |_, _| {
            let text = "This tool intentionally returns an error for testing";
            Err(ToolError::new(ErrorType::Conflict, text).into())
        }),
        tool("test_tool_with_progress", nothing(), async |call: Call, _| {
            for done in [0.0, 50.0, 100.0] {
                call.progress(ToolProgress { progress: done, total: Some(100.0), message: None })
                    .await;
                pause().await;
            }
            Ok(Output::text("done"))
        })
        .slow(),
        tool("json_schema_2020_12_tool", schema, async |_, _| Ok(Output::text("fine"))),
        tool("test_custom_header", header, async |_, arguments: Map<String, Value>| {
            Ok(Output::text(text_of(&arguments, "value")))
        }),
    ]
}

/// Tools that ask the client, which needs a session.
fn legacy() -> Vec<Tool> {
    let defaults = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "default": "John Doe" },
            "age": { "type": "integer", "default": 30 },
            "score": { "type": "number", "default": 95.5 },
            "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
            "verified": { "type": "boolean", "default": true },
        },
    });
    let titled = |word: &str| -> Value {
        (1..=3)
            .map(|n| json!({ "const": format!("value{n}"), "title": format!("{word} {n}") }))
            .collect()
    };
    let options = json!(["option1", "option2", "option3"]);
    let enums = json!({
        "type": "object",
        "properties": {
            "untitledSingle": { "type": "string", "enum": options },
            "titledSingle": { "type": "string", "oneOf": titled("Option") },
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
            "titledMulti": { "type": "array", "items": { "anyOf": titled("Choice") } },
        },
    });
    let asking = |name: &'static str, schema: Value| {
        tool(name, nothing(), move |call: Call, _| {
            let params = json!({ "message": "Please answer", "requestedSchema": schema });
            let ask =
                ClientQuestion { key: "answer".to_owned(), method: "elicitation/create", params };
            async move {
                let answers = call.ask(vec![ask]).await?;
                let answer = &answers["answer"];
                let text = format!(
                    "Elicitation completed: action={}, content={}",
                    answer["action"], answer["content"]
                );
                Ok(Output::text(text))
            }
        })
        .slow()
    };
    vec![
        tool("test_tool_with_logging", nothing(), async |call: Call, _| {
            for text in
                ["Tool execution started", "Tool processing data", "Tool execution completed"]
            {
                call.log(LogLevel::Info, json!(text)).await;
                pause().await;
            }
            Ok(Output::text("done"))
        })
        .slow(),
        tool("test_sampling", one("prompt", "string", true), async |call: Call, arguments| {
            let answers =
                call.ask(vec![sample("answer", &text_of(&arguments, "prompt"), 100)]).await?;
            Ok(Output::text(format!("LLM response: {}", answers["answer"]["content"]["text"])))
        })
        .slow(),
        tool("test_elicitation", one("message", "string", true), async |call: Call, arguments| {
            let schema = json!({
                "type": "object",
                "properties": {
                    "username": { "type": "string", "description": "User's response" },
                    "email": { "type": "string", "description": "User's email address" },
                },
                "required": ["username", "email"],
            });
            let params =
                json!({ "message": text_of(&arguments, "message"), "requestedSchema": schema });
            let ask =
                ClientQuestion { key: "answer".to_owned(), method: "elicitation/create", params };
            let answers = call.ask(vec![ask]).await?;
            let answer = &answers["answer"];
            let text = format!(
                "User response: action={}, content={}",
                answer["action"], answer["content"]
            );
            Ok(Output::text(text))
        })
        .slow(),
        asking("test_elicitation_sep1034_defaults", defaults),
        asking("test_elicitation_sep1330_enums", enums),
        tool("test_reconnection", nothing(), async |call: Call, _| {
            pause().await;
            call.close_response().await;
            pause().await;
            Ok(Output::text("answered on the stream that was resumed"))
        })
        .slow(),
    ]
}

/// Tools for the rules of the stateless revision.
fn stateless(handle: &Handle) -> Vec<Tool> {
    let (for_tools, for_prompts) = (Arc::clone(handle), Arc::clone(handle));
    vec![
        tool("test_missing_capability", nothing(), async |call: Call, _| {
            call.ask(vec![sample("answer", "Anything", 10)]).await?;
            Ok(Output::text("sampled"))
        }),
        tool("test_streaming_elicitation", nothing(), async |call: Call, _| {
            let answers = call.ask(vec![elicit("answer", "Go on?", "ok", "boolean")]).await?;
            Ok(Output::text(answers["answer"].to_string()))
        })
        .slow(),
        tool("test_logging_tool", nothing(), async |call: Call, _| {
            call.log(LogLevel::Info, json!("logged")).await;
            Ok(Output::text("done"))
        }),
        tool("test_trigger_tool_change", nothing(), move |_, _| {
            if let Some(mcp) = for_tools.get() {
                // Another tool each time: clients are not told of a list that stays as it is.
                let name = format!("test_added_tool_{}", mcp.catalogue.version());
                let added = tool(name, nothing(), async |_, _| Ok(Output::text("new")));
                mcp.catalogue.add(added);
            }
            std::future::ready(Ok(Output::text("changed")))
        }),
        tool("test_trigger_prompt_change", nothing(), move |_, _| {
            if let Some(mcp) = for_prompts.get() {
                mcp.note_prompts_changed();
            }
            std::future::ready(Ok(Output::text("changed")))
        }),
    ]
}

/// Calls in several rounds (SEP-2322).
fn rounds() -> Vec<Tool> {
    let name = || elicit("user_name", "What is your name?", "name", "string");
    let keep = |call: &Call| call.keep(json!("state"));
    vec![
        tool(
            "test_input_required_result_elicitation",
            nothing(),
            move |call: Call, _| async move {
                let answers = call.ask(vec![name()]).await?;
                let name = &answers["user_name"]["content"]["name"];
                Ok(Output::text(format!("Hello, {}!", name.as_str().unwrap_or_default())))
            },
        ),
        tool("test_input_required_result_sampling", nothing(), async |call: Call, _| {
            let ask = sample("capital_question", "What is the capital of France?", 100);
            let answers = call.ask(vec![ask]).await?;
            Ok(Output::text(answers["capital_question"]["content"]["text"].to_string()))
        }),
        tool("test_input_required_result_list_roots", nothing(), async |call: Call, _| {
            let answers = call.ask(vec![roots("client_roots")]).await?;
            Ok(Output::text(answers["client_roots"]["roots"].to_string()))
        }),
        tool(
            "test_input_required_result_request_state",
            nothing(),
            move |call: Call, _| async move {
                let before = call.kept();
                keep(&call);
                call.ask(vec![elicit("confirm", "Please confirm", "ok", "boolean")]).await?;
                let said = if before == Some(json!("state")) { "state-ok" } else { "state lost" };
                Ok(Output::text(said))
            },
        ),
        tool(
            "test_input_required_result_multiple_inputs",
            nothing(),
            move |call: Call, _| async move {
                keep(&call);
                let asks = vec![
                    name(),
                    sample("greeting", "Generate a greeting", 50),
                    roots("client_roots"),
                ];
                let answers = call.ask(asks).await?;
                Ok(Output::text(Value::from(answers).to_string()))
            },
        ),
        tool(
            "test_input_required_result_multi_round",
            nothing(),
            move |call: Call, _| async move {
                keep(&call);
                let first = call
                    .ask(vec![elicit("step1", "Step 1: What is your name?", "name", "string")])
                    .await?;
                let ask =
                    elicit("step2", "Step 2: What is your favorite color?", "color", "string");
                let second = call.ask(vec![ask]).await?;
                Ok(Output::text(format!("{} {}", first["step1"], second["step2"])))
            },
        ),
        tool(
            "test_input_required_result_tampered_state",
            nothing(),
            move |call: Call, _| async move {
                keep(&call);
                call.ask(vec![elicit("confirm", "Please confirm", "ok", "boolean")]).await?;
                Ok(Output::text("fine"))
            },
        ),
        tool(
            "test_input_required_result_capabilities",
            nothing(),
            move |call: Call, _| async move {
                let can = call.capabilities();
                let mut asks = Vec::new();
                if can.get("elicitation").is_some() {
                    asks.push(name());
                }
                if can.get("sampling").is_some() {
                    asks.push(sample("greeting", "Generate a greeting", 50));
                }
                if can.get("roots").is_some() {
                    asks.push(roots("client_roots"));
                }
                let answers = call.ask(asks).await?;
                Ok(Output::text(Value::from(answers).to_string()))
            },
        ),
    ]
}

/// Calls that become tasks (SEP-2663).
fn tasks() -> Vec<Tool> {
    let slow = json!({
        "type": "object",
        "properties": { "seconds": { "type": "number", "minimum": 0 }, "label": { "type": "string" } },
    });
    let file = json!({ "type": "object", "properties": { "filename": { "type": "string" } } });
    vec![
        tool("greet", one("name", "string", false), async |_, arguments| {
            Ok(Output::text(format!("Hello, {}!", text_of(&arguments, "name"))))
        }),
        tool("slow_compute", slow, async |call: Call, arguments: Map<String, Value>| {
            call.detach().await?;
            let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or(1.0);
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            Ok(Output::text(format!("computed {}", text_of(&arguments, "label"))))
        })
        .slow(),
        tool("failing_job", nothing(), async |call: Call, _| {
            call.detach().await?;
            pause().await;
            Err(ToolError::new(ErrorType::InternalError, "this job always fails").into())
        })
        .slow()
        .needs_task(),
        tool("protocol_error_job", nothing(), async |call: Call, _| {
            call.detach().await?;
            Err(Failure::Protocol { code: -32603, message: "broken".into(), data: None })
        })
        .slow(),
        tool("confirm_delete", file, async |call: Call, _| {
            call.detach().await?;
            let answers =
                call.ask(vec![elicit("confirm", "Really delete?", "confirm", "boolean")]).await?;
            Ok(Output::text(answers["confirm"].to_string()))
        })
        .slow(),
        tool("multi_input", nothing(), async |call: Call, _| {
            call.detach().await?;
            let asks = vec![
                elicit("first", "First?", "value", "string"),
                elicit("second", "Second?", "value", "string"),
            ];
            let answers = call.ask(asks).await?;
            Ok(Output::text(Value::from(answers).to_string()))
        })
        .slow(),
        tool("test_tool_with_task", nothing(), async |call: Call, _| {
            let answers =
                call.ask(vec![elicit("user_name", "What is your name?", "name", "string")]).await?;
            call.detach().await?;
            let name = &answers["user_name"]["content"]["name"];
            Ok(Output::text(format!("Hello, {}!", name.as_str().unwrap_or_default())))
        })
        .slow()
        .needs_task(),
    ]
}

fn argument(name: &'static str) -> PromptArgument {
    PromptArgument { name, description: "A test argument", required: true }
}

fn user(content: &Value) -> Value {
    json!({ "role": "user", "content": content })
}

fn words(text: impl Into<String>) -> Value {
    user(&json!({ "type": "text", "text": text.into() }))
}

pub(super) fn prompts() -> Vec<PromptTemplate> {
    let about = "A fixture of the conformance suite";
    vec![
        PromptTemplate::new("test_simple_prompt", about, Vec::new(), async |_, _| {
            Ok(vec![words("This is a simple prompt for testing.")])
        }),
        PromptTemplate::new(
            "test_prompt_with_arguments",
            about,
            vec![argument("arg1"), argument("arg2")],
            async |_, arguments: Map<String, Value>| {
                let (one, two) = (text_of(&arguments, "arg1"), text_of(&arguments, "arg2"));
                Ok(vec![words(format!("Prompt with arguments: arg1='{one}', arg2='{two}'"))])
            },
        ),
        PromptTemplate::new(
            "test_prompt_with_embedded_resource",
            about,
            vec![argument("resourceUri")],
            async |_, arguments: Map<String, Value>| {
                let text = "Embedded resource content for testing.";
                let resource = json!({ "uri": arguments["resourceUri"], "mimeType": "text/plain", "text": text });
                Ok(vec![
                    user(&json!({ "type": "resource", "resource": resource })),
                    words("Please process the embedded resource above."),
                ])
            },
        ),
        PromptTemplate::new("test_prompt_with_image", about, Vec::new(), async |_, _| {
            Ok(vec![
                user(&json!({ "type": "image", "data": PNG, "mimeType": "image/png" })),
                words("Please analyze the image above."),
            ])
        }),
        PromptTemplate::new(
            "test_input_required_result_prompt",
            about,
            Vec::new(),
            async |call: Call, _| {
                let ask = elicit(
                    "user_context",
                    "What context should the prompt use?",
                    "context",
                    "string",
                );
                let answers = call.ask(vec![ask]).await?;
                Ok(vec![words(answers["user_context"].to_string())])
            },
        ),
    ]
}

#[derive(Debug)]
pub(super) struct Resources;

fn resource(name: &str, kind: &str) -> Value {
    let about = "A fixture of the conformance suite";
    json!({ "uri": format!("test://{name}"), "name": name, "description": about, "mimeType": kind })
}

impl ResourceProvider for Resources {
    fn list<'a>(&self, _: &'a Call, cursor: Option<&'a str>) -> Provided<'a, ResourcePage> {
        let all = [
            resource("static-text", "text/plain"),
            resource("static-binary", "image/png"),
            resource("watched-resource", "text/plain"),
        ];
        let page = if cursor.is_none() { all.to_vec() } else { Vec::new() };
        Box::pin(std::future::ready(Ok((page, None))))
    }

    fn templates(&self) -> Vec<Value> {
        let (uri, kind) = ("test://template/{id}/data", "application/json");
        vec![json!({ "uriTemplate": uri, "name": "template", "mimeType": kind })]
    }

    fn read<'a>(&self, _: &'a Call, uri: &'a str) -> Provided<'a, Option<Vec<Value>>> {
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let contents = match (uri, id) {
            ("test://static-text", _) => Some(json!({
                "uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource.",
            })),
            ("test://static-binary", _) => {
                Some(json!({ "uri": uri, "mimeType": "image/png", "blob": PNG }))
            }
            ("test://watched-resource", _) => {
                Some(json!({ "uri": uri, "mimeType": "text/plain", "text": "watched" }))
            }
            (_, Some(id)) => {
                let text =
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                Some(
                    json!({ "uri": uri, "mimeType": "application/json", "text": text.to_string() }),
                )
            }
            _ => None,
        };
        Box::pin(std::future::ready(Ok(contents.map(|contents| vec![contents]))))
    }

    fn stream_of<'a>(&self, _: &'a Call, uri: &'a str) -> Provided<'a, Option<StreamName>> {
        let is_watched = uri == "test://watched-resource";
        let stream = is_watched.then(|| StreamName::fixed(StreamName::TEAM));
        Box::pin(std::future::ready(Ok(stream)))
    }
}
