//! The tool that hooks of coding agents call.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use svc_model::{
    NOT_BLANK, Timestamp,
    hook::{self, HookClient, HookFormat, HookTiming, MissingField},
    limits, token_hash,
};

use super::{Call, Failure, Tool, ToolError};
use crate::service::hooks::HookCall;

/// Name of the tool through which hooks report events.
pub const HOOK_EVENT: &str = "hook_event";

pub(super) fn tools() -> Vec<Tool> {
    vec![
        Tool::new(HOOK_EVENT, EVENT, event)
            .title("Report an event of a coding agent")
            .family("hooks")
            .unlisted()
            .quotes_itself(),
    ]
}

const EVENT: &str = "\
For hooks of coding agents, not for models: reports an event of a client's session, and returns what the hook prints.

The session and its peer become known, tool calls are counted, waiting messages are handed over, and what is relevant to \
a prompt comes back. The result is the client's own hook output, or an empty object.";

/// An event of a client's session.
#[derive(Deserialize, JsonSchema)]
struct HookEventArguments {
    /// Which client.
    client: HookClient,
    /// The client's own name of the event; by default the one in the payload.
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    event: Option<String>,
    /// What the client gave to the hook, as it came.
    payload: Map<String, Value>,
    /// The shape of the answer; the client's own by default.
    format: Option<HookFormat>,
    /// Names this event: one that is sent again with the same id counts once. If it is sent again
    /// with `at`, nobody saw the first answer, and what was given with it is given again.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    id: Option<String>,
    /// When it happened, if it is told late. Then nothing is said in return.
    at: Option<Timestamp>,
    /// Ids of earlier events of this session whose answers nobody saw. What was given with them is
    /// given again.
    #[schemars(
        length(max = limits::HOOKS_LOST),
        inner(length(max = limits::SHORT_TEXT_BYTES), regex(pattern = NOT_BLANK))
    )]
    lost: Option<Vec<String>>,
    /// The secret of the session, from its file in the data folder, at an event with which a
    /// session may begin again: it goes on in another process of its client.
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    secret: Option<String>,
    /// The client's process on the daemon's machine.
    #[schemars(range(min = 1, max = u32::MAX))]
    pid: Option<u32>,
    /// The tmux pane that the client runs in.
    #[schemars(length(max = limits::SHORT_TEXT_BYTES))]
    tmux_pane: Option<String>,
}

/// What the hook prints.
#[derive(Serialize, JsonSchema)]
#[serde(transparent)]
struct HookOutput(Map<String, Value>);

async fn event(call: Call, input: HookEventArguments) -> Result<HookOutput, Failure> {
    let payload = Value::Object(input.payload);
    let event = hook::read(input.client, input.event.as_deref(), &payload).map_err(
        |MissingField { field, names }| {
            ToolError::invalid(
                field,
                format!("{field}: is missing, and the payload has no {names}"),
            )
        },
    )?;
    let hook_call = HookCall {
        id: input.id,
        pid: input.pid,
        tmux_pane: input.tmux_pane,
        timing: input.at.map_or(HookTiming::Live, |happened_at| HookTiming::Late { happened_at }),
        lost: input.lost.unwrap_or_default(),
        secret: input.secret.as_deref().map(token_hash),
        is_from_hook: call.is_bare(),
    };
    let reply = call.services.hooks.hook(&call.caller, event.clone(), hook_call).await?;
    Ok(HookOutput(reply.render(&event, input.format.unwrap_or_default())))
}
