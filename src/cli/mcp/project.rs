//! Calls from a folder: as a session of its project, so that they reach that project's servers.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use svc_client::{Client, Token};

use super::super::Context;

/// How long its token is good if this process is killed, in seconds.
const TTL: u64 = 3600;

/// A client that calls in the project of the present folder.
pub(super) struct ProjectClient {
    pub(super) client: Client,
    /// The operator, and the token to take back.
    minted: Option<(Client, String)>,
}

#[derive(Deserialize)]
struct ProjectToken {
    token_id: String,
    token: String,
}

impl ProjectClient {
    /// The operator's requests have no project, so it makes itself a token. Who is not the operator
    /// has its own.
    pub(super) async fn new(context: &Context, more: &[&str]) -> anyhow::Result<Self> {
        let operator = context.client()?;
        let project = std::env::current_dir().ok();
        let mut scopes = vec!["read", "exec"];
        scopes.extend(more);
        let wish = json!({
            "session": format!("svc-mcp-{}", std::process::id()), "project": project, "scopes": scopes, "ttl_seconds": TTL,
        });
        let Ok(ProjectToken { token_id, token }) = operator.post("/v1/tokens", &wish).await else {
            return Ok(Self { client: operator, minted: None });
        };
        let mut target = operator.target().clone();
        target.token = Some(Token::parse(&token, Path::new("the token of this call"))?);
        Ok(Self { client: Client::new(target), minted: Some((operator, token_id)) })
    }

    /// Takes the token back.
    pub(super) async fn end(self) {
        if let Some((operator, token)) = self.minted {
            // It ends by itself, too.
            operator.delete::<Value>(&format!("/v1/tokens/{token}")).await.ok();
        }
    }
}
