//! Prompts: a person picks one from a menu, and the model does what it says.

use std::{fmt, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use serde::Serialize;
use serde_json::{Map, Value, json};
use svc_core::tools::{Call, Failure};
use svc_model::quote::{self, ModelText, model_text};
use svc_sources::SourceManager;

use super::rpc::RpcError;

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
