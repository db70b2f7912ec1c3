//! `ToolCall`, which calls a tool that is not listed, for clients that call only listed tools.

use std::sync::{Arc, Weak};

use serde_json::{Map, Value, json};
use svc_model::Caller;

use super::{Catalogue, ErrorType, Tool, ToolError, called::TOOL_CALL};

const DESCRIPTION: &str = "\
Calls a tool that ToolSearch found and your client does not list.

Give its name, and arguments as its input_schema says. You get its result. Allowing ToolCall allows all that it reaches.";

/// The call of another tool that a call of `ToolCall` requests.
#[derive(Debug)]
pub struct DelegatedCall {
    pub tool: Arc<Tool>,
    pub arguments: Map<String, Value>,
}

pub(super) fn tool(catalogue: Weak<Catalogue>) -> Tool {
    let input = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "The tool's name.", "pattern": svc_model::NOT_BLANK },
            "arguments": { "type": "object", "description": "Its arguments." },
        },
        "required": ["name"],
        "additionalProperties": false,
    });
    Tool::raw(TOOL_CALL, DESCRIPTION, input, move |call, arguments| {
        let target =
            catalogue.upgrade().map(|catalogue| target(&catalogue, &call.caller, &arguments));
        async move {
            let closing = || ToolError::new(ErrorType::Unavailable, "the daemon is about to end");
            let DelegatedCall { tool, arguments } = target.ok_or_else(closing)??;
            tool.call(call, arguments).await
        }
    })
    .title("Call a tool by its name")
    .family("catalogue")
    .result(json!({ "type": "object", "description": "The result of that tool." }))
    .destructive()
    // The called tool has quoted its result already.
    .quotes_itself()
}

impl Catalogue {
    /// The call that a call of `tool` with these parameters requests; `None` if `tool` is not
    /// `ToolCall`, or if its arguments are wrong, which its own run reports.
    pub fn called_by(
        &self,
        caller: &Caller,
        tool: &Tool,
        params: &Map<String, Value>,
    ) -> Option<DelegatedCall> {
        let arguments = params.get("arguments").and_then(Value::as_object);
        let arguments = arguments.filter(|_| tool.name() == TOOL_CALL)?;
        let is_known = |name: &String| matches!(name.as_str(), "name" | "arguments");
        if !arguments.keys().all(is_known) {
            return None;
        }
        target(self, caller, arguments).ok()
    }
}

fn target(
    catalogue: &Catalogue,
    caller: &Caller,
    arguments: &Map<String, Value>,
) -> Result<DelegatedCall, ToolError> {
    let name = arguments.get("name").and_then(Value::as_str).unwrap_or_default();
    if name == TOOL_CALL {
        return Err(ToolError::invalid("name", "name: ToolCall calls other tools"));
    }
    let unknown = || {
        let shown: String = name.chars().take(80).collect();
        let message =
            format!("name: there is no tool {shown:?} that you may call: ToolSearch finds tools");
        ToolError { field: Some("name".to_owned()), ..ToolError::new(ErrorType::NotFound, message) }
    };
    let missing = || catalogue.absence(caller, name).unwrap_or_else(unknown);
    let tool = catalogue.find(caller, name).ok_or_else(missing)?;
    if !catalogue.is_in_tool_call(caller, name) {
        let message = format!(
            "{name} is not among the tools that ToolCall reaches: a person adds it to tool_call under [sources] in \
             config.toml, or to `listed` of its server"
        );
        return Err(ToolError::new(ErrorType::Forbidden, message));
    }
    match arguments.get("arguments") {
        None | Some(Value::Null) => Ok(DelegatedCall { tool, arguments: Map::new() }),
        Some(Value::Object(arguments)) => Ok(DelegatedCall { tool, arguments: arguments.clone() }),
        Some(_) => Err(ToolError::invalid("arguments", "arguments: must be an object")),
    }
}
