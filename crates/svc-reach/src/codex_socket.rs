//! A connection to the app-server that Codex' terminals share: a WebSocket over a Unix socket.
//! There is no token, so the identity of the listening process proves that it is the session's
//! app-server.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use svc_model::ProcessIdentity;
use svc_sys::{
    client_records,
    local_socket::{self, ConnectError},
};
use tokio::{net::UnixStream, time::timeout};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{Error as WebSocketError, Message, protocol::WebSocketConfig},
};

/// A Unix socket has no host name, but the header must have one.
const ADDRESS: &str = "ws://localhost/";
/// A message may hold all output of a turn.
const MESSAGE_BYTES: usize = 64 << 20;
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum time of writing one frame: the app-server may not read.
const WRITE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum CodexSocketError {
    #[error("the process does not say where its socket is")]
    Unknown,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the app-server's WebSocket failed")]
    Protocol(#[from] Box<WebSocketError>),
    #[error("the app-server sent something that is not JSON")]
    Unreadable(#[from] serde_json::Error),
    #[error("the app-server did not take a frame in time")]
    Slow,
    #[error("the app-server closed the connection")]
    Closed,
}

impl From<WebSocketError> for CodexSocketError {
    fn from(error: WebSocketError) -> Self {
        Self::Protocol(Box::new(error))
    }
}

#[derive(Debug)]
pub struct CodexSocket(WebSocketStream<UnixStream>);

impl CodexSocket {
    /// Connects to this process. Fails if the process has no socket, or if another process or
    /// another user could listen on it.
    pub async fn connect(process: &ProcessIdentity) -> Result<Self, CodexSocketError> {
        let path = client_records::codex_control_socket(process);
        let path = path.ok_or(CodexSocketError::Unknown)?;
        let stream = local_socket::connect_to_process(&path, process).await?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES))
            .max_frame_size(Some(MESSAGE_BYTES));
        let upgrade = client_async_with_config(ADDRESS, stream, Some(config));
        let (stream, _) =
            timeout(HANDSHAKE, upgrade).await.map_err(|_| CodexSocketError::Slow)??;
        Ok(Self(stream))
    }

    pub async fn send(&mut self, frame: &Value) -> Result<(), CodexSocketError> {
        let message = Message::text(frame.to_string());
        let sent = timeout(WRITE, self.0.send(message)).await;
        Ok(sent.map_err(|_| CodexSocketError::Slow)??)
    }

    /// The next frame. Cancel safe.
    pub async fn next(&mut self) -> Result<Value, CodexSocketError> {
        loop {
            match self.0.next().await.ok_or(CodexSocketError::Closed)?? {
                Message::Text(text) => return Ok(serde_json::from_str(&text)?),
                Message::Binary(bytes) => return Ok(serde_json::from_slice(&bytes)?),
                Message::Close(_) => return Err(CodexSocketError::Closed),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}
