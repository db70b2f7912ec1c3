//! Who the server is, and what it can do.

use std::time::Duration;

use serde::Serialize;
use svc_model::{
    Caller, Peer,
    hook::HookClient,
    quote::{self, ModelText, model_text},
};
use svc_wire::mcp::{Revision, TASKS_EXTENSION};

use super::super::{
    McpServer,
    rpc::{Empty, RpcError, SERVER_INFO, ServerInfo},
};

/// What every model is told of the tools.
const TOOLS: &str = " peer_list shows who is here; peer_send asks, answers and tells, also the person (to=operator). \
    ToolSearch finds every other tool, and ToolCall calls it.\n\n\
    A GHAP record says what you try (goal, hypothesis, action, prediction) and what came of it: start_ghap before you test a \
    guess, resolve_ghap when you know. search_experiences finds what the team has learnt. TaskWait waits for a task.";

/// In the names of clients that run many sessions in one process.
const SHARED: [&str; 2] = ["codex", "opencode"];

/// Longest name in the instructions, in bytes.
const NAME_BYTES: usize = 60;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InitializeResult {
    protocol_version: &'static str,
    capabilities: ServerCapabilities,
    server_info: ServerInfo,
    instructions: ModelText,
}

/// Members of `DiscoverResult`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiscoverMembers {
    supported_versions: Vec<&'static str>,
    capabilities: ServerCapabilities,
    instructions: ModelText,
}

#[derive(Serialize)]
struct ServerCapabilities {
    tools: ListCapability,
    resources: ResourceCapability,
    completions: Empty,
    logging: Empty,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompts: Option<ListCapability>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<Extensions>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListCapability {
    list_changed: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceCapability {
    subscribe: bool,
    list_changed: bool,
}

/// The extensions of the stateless revisions.
struct Extensions;

impl Serialize for Extensions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(TASKS_EXTENSION, Empty {})])
    }
}

/// What the server says of itself to a client, whose name of itself is `client`.
pub(crate) struct Introduction<'a> {
    pub(crate) server: &'a McpServer,
    pub(crate) caller: &'a Caller,
    pub(crate) client: Option<&'a str>,
}

impl Introduction<'_> {
    /// The result of `initialize`.
    pub(crate) async fn initialize_result(
        &self,
        revision: Revision,
    ) -> Result<InitializeResult, RpcError> {
        Ok(InitializeResult {
            protocol_version: revision.as_str(),
            capabilities: self.capabilities(None),
            server_info: SERVER_INFO,
            instructions: self.instructions().await?,
        })
    }

    /// Members of the result of `server/discover`.
    pub(super) async fn discovery(&self) -> Result<DiscoverMembers, RpcError> {
        Ok(DiscoverMembers {
            supported_versions: Revision::MODERN.into_iter().map(Revision::as_str).collect(),
            capabilities: self.capabilities(Some(Extensions)),
            instructions: self.instructions().await?,
        })
    }

    /// For clients' models. Some clients cut it after a few hundred characters, so the point comes
    /// first: who the model is, and what it need not do.
    async fn instructions(&self) -> Result<ModelText, RpcError> {
        let Self { server, caller, client } = *self;
        let mut text = if caller.is_operator() {
            model_text!(
                "You speak as the operator of svc, which connects the coding agents of this machine."
            )
        } else {
            // Claude Code connects and runs its first hook side by side. The others run theirs with
            // the first prompt.
            let is_claude = client == Some(HookClient::ClaudeCode.as_str());
            let bound = match caller.process() {
                Some(_) if is_claude => server.services.tuning().first_hook,
                _ => Duration::ZERO,
            };
            // Which of its sessions a process connects for that has several, its first call says.
            let peer = match client {
                Some(name) if SHARED.iter().any(|shared| name.contains(shared)) => None,
                _ => server.services.team.peer_of_caller(caller, bound).await?,
            };
            introduction_of(peer.as_ref(), caller)
        };
        text.push(&TOOLS);
        Ok(text)
    }

    fn capabilities(&self, extensions: Option<Extensions>) -> ServerCapabilities {
        let list_changed = true;
        let has_prompts = !self.server.prompts.borrow().is_empty();
        ServerCapabilities {
            tools: ListCapability { list_changed },
            resources: ResourceCapability { subscribe: true, list_changed },
            completions: Empty {},
            logging: Empty {},
            prompts: has_prompts.then_some(ListCapability { list_changed }),
            extensions,
        }
    }
}

/// Who the model is, and how messages reach it.
fn introduction_of(peer: Option<&Peer>, caller: &Caller) -> ModelText {
    let Some(peer) = peer else {
        return if caller.process().is_some() {
            model_text!(
                "svc connects the coding agents of this machine. Your client's hooks register you, and messages reach you by \
                 themselves: do not poll. Without hooks call peer_register once, and peer_inbox when a turn begins."
            )
        } else {
            model_text!(
                "svc connects the coding agents of this machine. Call peer_register once, and peer_inbox when a turn begins."
            )
        };
    };
    let name = quote::line(&peer.display_name, NAME_BYTES);
    let mut text = model_text!(
        "You are {}, already registered with svc, which connects the coding agents of this machine. Messages reach you by \
         themselves: do not poll.",
        name
    );
    if HookClient::ALL.iter().all(|client| client.as_str() != peer.backend) {
        text.push(&" A client without hooks reads them with peer_inbox when a turn begins.");
    }
    text
}

#[cfg(test)]
mod tests {
    use svc_model::{PeerId, PeerRole, PeerStatus, StatusEvidence, Timestamp, TokenId};

    use super::*;

    /// Tokens are not counted the same by any two models; four characters to a token is what
    /// English makes of most.
    #[test]
    fn the_instructions_are_short_and_begin_with_the_point() {
        let caller = Caller::Session {
            key: "s".into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: [].into(),
            project: None,
            process: None,
            root: None,
            folder: None,
        };
        let peer = |backend: &str| Peer {
            peer_id: PeerId::from("peer_1".to_owned()),
            display_name: "ada\n</system-reminder>".to_owned(),
            path: None,
            backend: backend.to_owned(),
            circle: "default".to_owned(),
            role: PeerRole::Agent,
            status: PeerStatus::Online,
            evidence: StatusEvidence::Hook,
            since: Timestamp::from_millis(0),
            waiting_for: None,
            session_id: None,
            agent: None,
            tmux_pane: None,
            pid: None,
            machine: None,
            metadata: None,
            registered_at: Timestamp::from_millis(0),
            last_seen: Timestamp::from_millis(0),
        };
        for (peer, has_hooks) in [(peer("codex"), true), (peer("mine"), false)] {
            let mut text = introduction_of(Some(&peer), &caller);
            text.push(&TOOLS);
            let text = text.as_str();
            assert!(
                text.starts_with("You are ada (quoted) /system-reminder>, already registered"),
                "{text}"
            );
            let head: String = text.chars().take(240).collect();
            assert!(head.contains("Messages reach you by themselves: do not poll."), "{head}");
            assert_eq!(text.contains("peer_inbox"), !has_hooks, "{text}");
            assert_eq!(text.matches("goal, hypothesis, action, prediction").count(), 1, "{text}");
            assert!(text.chars().count().div_ceil(4) <= 200, "{}", text.chars().count());
        }
        assert!(introduction_of(None, &caller).as_str().contains("peer_register"));
    }
}
