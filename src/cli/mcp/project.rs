//! Calls from a folder: as a session of the folder's project, so that they reach the project's
//! servers.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use svc_client::{Client, Token};

use super::super::Context;

/// Lifetime of the token in seconds, in case this process is killed.
const TTL: u64 = 3600;

/// A client that calls in the project of the current folder.
pub(super) struct ProjectClient {
    pub(super) client: Client,
    /// The operator's client, and the token to revoke.
    minted: Option<(Client, String)>,
}

#[derive(Deserialize)]
struct ProjectToken {
    token_id: String,
    token: String,
}

impl ProjectClient {
    /// Mints a token for the project, since the operator's requests have none. A caller who is not
    /// the operator keeps its own token.
    pub(super) async fn new(context: &Context, more: &[&str]) -> anyhow::Result<Self> {
        let operator = context.client()?;
        let project = std::env::current_dir().ok();
        let mut scopes = vec!["read", "exec"];
        scopes.extend(more);
        let input = json!({
            "session": format!("svc-mcp-{}", std::process::id()), "project": project, "scopes": scopes, "ttl_seconds": TTL,
        });
        let Ok(ProjectToken { token_id, token }) = operator.post("/v1/tokens", &input).await else {
            return Ok(Self { client: operator, minted: None });
        };
        let mut target = operator.target().clone();
        target.token = Some(Token::parse(&token, Path::new("the token of this call"))?);
        Ok(Self { client: Client::new(target), minted: Some((operator, token_id)) })
    }

    /// Revokes the token.
    pub(super) async fn end(self) {
        if let Some((operator, token)) = self.minted {
            // After a failure the token expires.
            operator.delete::<Value>(&format!("/v1/tokens/{token}")).await.ok();
        }
    }
}
