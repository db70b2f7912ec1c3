//! What the server offers beside tools. Resources: what a client can read and subscribe to; each
//! stream of the log is one. Prompts: a person picks one from a menu, and the model does what it
//! says.

use std::{fmt, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::{Map, Value, json};
use svc_core::{
    service::log::Selector,
    tools::{Call, Failure},
};
use svc_model::{
    StreamName, holds_call_results, limits,
    quote::{self, ModelText, model_text},
};
use svc_sources::SourceManager;
use svc_wire::sse::push_item;

use super::rpc::RpcError;

/// `Resource`s as MCP has them, and the cursor of the next page.
pub type ResourcePage = (Vec<Value>, Option<String>);

/// What a provider gives, once it has read it.
pub type Provided<'a, T> = BoxFuture<'a, Result<T, RpcError>>;

/// What the caller of a [`Call`] can read.
pub trait ResourceProvider: fmt::Debug + Send + Sync {
    /// A page; empty for a cursor of another provider.
    fn list<'a>(&self, call: &'a Call, cursor: Option<&'a str>) -> Provided<'a, ResourcePage>;
    /// `ResourceTemplate`s as MCP has them.
    fn templates(&self) -> Vec<Value>;
    /// The `contents` of a resource; `None` if this provider does not have it.
    fn read<'a>(&self, call: &'a Call, uri: &'a str) -> Provided<'a, Option<Vec<Value>>>;
    /// The stream whose events change a resource; `None` if the caller may not read it, this
    /// provider does not have it, or it never changes.
    fn stream_of<'a>(&self, call: &'a Call, uri: &'a str) -> Provided<'a, Option<StreamName>>;
}

/// The streams of the log: `svc://stream/<name>`.
#[derive(Debug)]
pub struct StreamResources;

const PREFIX: &str = "svc://stream/";
const TEMPLATE: &str = "svc://stream/{+name}{?after,limit}";
const JSON: &str = "application/json";

impl ResourceProvider for StreamResources {
    fn list<'a>(&self, call: &'a Call, cursor: Option<&'a str>) -> Provided<'a, ResourcePage> {
        Box::pin(async move {
            let Call { services, caller, .. } = call;
            let page =
                services.mcp.readable_streams(caller, cursor, limits::MCP_RESOURCES_PAGE).await?;
            let resources = page.items.into_iter().map(|name| {
                json!({ "uri": uri_of(&name), "name": quote::plain(&name), "mimeType": JSON })
            });
            Ok((resources.collect(), page.next_cursor))
        })
    }

    fn templates(&self) -> Vec<Value> {
        let about = "Events of one stream: `team` (who comes and goes), `task/<id>` (a task's output), `peer/<id>` (its \
                     messages' delivery), … Without `after` the latest `limit` (100) events; with it those that follow \
                     that seq. Subscribe to hear of new ones.";
        vec![json!({
            "uriTemplate": TEMPLATE,
            "name": "stream",
            "title": "A stream of the event log",
            "description": about,
            "mimeType": JSON,
        })]
    }

    fn read<'a>(&self, call: &'a Call, uri: &'a str) -> Provided<'a, Option<Vec<Value>>> {
        Box::pin(async move {
            let Call { services, caller, .. } = call;
            let Some((name, query)) = parse(uri) else { return Ok(None) };
            let (mut after, mut limit) = (None, 100_u32);
            for (key, value) in form_urlencoded::parse(query.as_bytes()) {
                let bad = || {
                    RpcError::invalid_params(format!("params.uri: {key} must be a number"))
                        .data(json!({ "uri": uri }))
                };
                match &*key {
                    "after" => {
                        let seq: i64 = value.parse().map_err(|_| bad())?;
                        after = Some(u64::try_from(seq).map(|_| seq).map_err(|_| bad())?);
                    }
                    "limit" => limit = value.parse().map_err(|_| bad())?,
                    _ => {}
                }
            }
            let Some(end) = services.log.readable_stream_end(caller, &name).await? else {
                return Ok(None);
            };
            let after = after.unwrap_or_else(|| (end.head - i64::from(limit)).max(0));
            let selector = Selector::Stream(name.as_str().to_owned());
            let page = services.log.event_page(caller, &selector, after, None, Some(limit)).await?;
            let mut text = format!(r#"{{"stream":{},"events":["#, Value::from(name.as_str()));
            for (index, event) in page.events.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                push_item(&mut text, event);
            }
            let next = page.events.last().map_or(after, |event| event.seq);
            let (count, head, closed) = (page.events.len(), end.head, end.closed);
            let rest = format!(
                r#"],"count":{count},"next_after":{next},"head":{head},"closed":{closed}}}"#
            );
            text.push_str(&rest);
            Ok(Some(vec![json!({ "uri": uri, "mimeType": JSON, "text": quote::json(&text) })]))
        })
    }

    fn stream_of<'a>(&self, call: &'a Call, uri: &'a str) -> Provided<'a, Option<StreamName>> {
        Box::pin(async move {
            let Call { services, caller, .. } = call;
            let name = parse(uri).map(|(name, _)| name).filter(|name| !holds_call_results(name));
            let Some(name) = name else { return Ok(None) };
            // Access may change later, so it is checked again before each notice.
            let end = services.log.readable_stream_end(caller, &name).await?;
            Ok(end.map(|_| name))
        })
    }
}

/// The URI of a stream, percent-encoded for a path.
fn uri_of(name: &str) -> String {
    let encoded = name.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/:@!$&'()*+,;=".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    std::iter::once(PREFIX.to_owned()).chain(encoded).collect()
}

fn parse(uri: &str) -> Option<(StreamName, &str)> {
    let rest = uri.strip_prefix(PREFIX)?;
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
    Some((StreamName::parse(&percent_decode_str(name).decode_utf8().ok()?)?, query))
}

/// Makes the messages from the arguments.
pub(crate) type Render = dyn Fn(Call, Map<String, Value>) -> BoxFuture<'static, Result<Vec<Value>, Failure>>
    + Send
    + Sync;
#[derive(Clone, Serialize)]
pub struct PromptTemplate {
    pub name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<&'static str>,
    pub description: &'static str,
    pub arguments: Vec<PromptArgument>,
    /// An earlier name, which is accepted but not listed.
    #[serde(skip)]
    earlier_name: Option<&'static str>,
    #[serde(skip)]
    pub(crate) render: Arc<Render>,
}

#[derive(Debug, Clone, Serialize)]
pub struct PromptArgument {
    pub name: &'static str,
    pub description: &'static str,
    pub required: bool,
}

impl fmt::Debug for PromptTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptTemplate").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PromptTemplate {
    /// `render` makes the messages from the arguments.
    pub fn new<F, Fut>(
        name: &'static str,
        description: &'static str,
        arguments: Vec<PromptArgument>,
        render: F,
    ) -> Self
    where
        F: Fn(Call, Map<String, Value>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<Value>, Failure>> + Send + 'static,
    {
        let render = move |call, arguments| render(call, arguments).boxed();
        Self {
            name,
            title: None,
            description,
            arguments,
            earlier_name: None,
            render: Arc::new(render),
        }
    }

    /// Whether this is the prompt's name or its earlier name.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.earlier_name == Some(name)
    }

    /// Checks that each argument is a string, and that no required one is missing.
    pub(crate) fn check(&self, arguments: &Map<String, Value>) -> Result<(), RpcError> {
        for argument in &self.arguments {
            let name = argument.name;
            let wrong = match arguments.get(name) {
                Some(Value::String(_)) => continue,
                None if !argument.required => continue,
                None => "is missing",
                Some(_) => "must be a string",
            };
            return Err(RpcError::invalid_params(format!("params.arguments.{name}: {wrong}")));
        }
        Ok(())
    }
}

/// Longest name of a server, in bytes.
const SERVER_BYTES: usize = 64;
/// Longest reason of a server's state, in bytes.
const REASON_BYTES: usize = 200;

pub fn servers_prompt(sources: SourceManager) -> PromptTemplate {
    let prompt = PromptTemplate::new(
        "servers",
        "Show the MCP servers behind svc: what each is doing, and what to do about those that do not work",
        Vec::new(),
        move |call: Call, _| {
            let sources = sources.clone();
            async move {
                let mut text = model_text!("These are the MCP servers behind svc, as I see them:");
                for view in sources.in_folder(call.caller.root()).views() {
                    let name = quote::line(&view.name, SERVER_BYTES);
                    let state = quote::line(view.state.as_str(), SERVER_BYTES);
                    text.push(&model_text!("\n- {}: {}, {} tools", name, state, view.tools));
                    for more in [&view.reason, &view.next_action].into_iter().flatten() {
                        text.push(&model_text!("; {}", quote::line(more, REASON_BYTES)));
                    }
                }
                text.push(&"\nTell me in short which work, which do not and why, and what I should do about those.");
                Ok(vec![user(&text)])
            }
        },
    );
    // Clients have their own command `/mcp`, so the prompt has another name now.
    PromptTemplate { title: Some("Show MCP servers"), earlier_name: Some("mcp"), ..prompt }
}

fn user(text: &ModelText) -> Value {
    json!({ "role": "user", "content": { "type": "text", "text": text } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_by_table() {
        for (uri, name, query) in [
            ("svc://stream/team", Some("team"), ""),
            ("svc://stream/task/task_1?after=3&limit=2", Some("task/task_1"), "after=3&limit=2"),
            ("svc://stream/a%3Fb%25c", Some("a?b%c"), ""),
            ("svc://stream/", None, ""),
            ("svc://stream/a%3", Some("a%3"), ""),
            ("svc://stream/a b", None, ""),
            ("file:///etc/passwd", None, ""),
        ] {
            let parsed = parse(uri);
            assert_eq!(parsed.as_ref().map(|(name, _)| name.as_str()), name, "{uri}");
            if let Some((name, parsed_query)) = parsed {
                assert_eq!(parsed_query, query);
                assert_eq!(parse(&uri_of(name.as_str())).map(|(name, _)| name), Some(name));
            }
        }
    }
}
