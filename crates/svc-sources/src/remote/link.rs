//! The link to a server at a URL, by either transport.

use std::sync::Arc;

use serde_json::{Map, Value};
use svc_model::source::RemoteKind;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    endpoint::RemoteEndpoint, legacy_sse::run_legacy_sse, streamable::StreamableTransport,
};
use crate::{
    connection::{ChildMessage, SourceConnection},
    lists::{introduce, introduce_remote},
};

/// A link to a server at a URL.
#[derive(Debug)]
pub(crate) struct RemoteLink {
    connection: Arc<SourceConnection>,
    streamable: Option<Arc<StreamableTransport>>,
    task: JoinHandle<()>,
}

impl RemoteLink {
    /// Begins to serve a connection. The error says that the helper failed; the connection has the reason.
    pub(crate) async fn start(
        kind: RemoteKind,
        endpoint: RemoteEndpoint,
        messages: mpsc::Receiver<ChildMessage>,
    ) -> Self {
        let connection = Arc::clone(&endpoint.connection);
        if endpoint.print_headers().await.is_err() {
            connection.close_if_ended();
        }
        match kind {
            RemoteKind::Http => {
                let transport = StreamableTransport::new(endpoint);
                let task = tokio::spawn(Arc::clone(&transport).run(messages));
                Self { connection, streamable: Some(transport), task }
            }
            RemoteKind::Sse => {
                let task = tokio::spawn(run_legacy_sse(Arc::new(endpoint), messages));
                Self { connection, streamable: None, task }
            }
        }
    }

    /// Introduces this client, and hears from then on what the server says by itself.
    pub(crate) async fn introduce(&self) -> Result<Map<String, Value>, String> {
        let Some(transport) = &self.streamable else { return introduce(&self.connection).await };
        let capabilities = introduce_remote(&self.connection).await?;
        transport.listen();
        Ok(capabilities)
    }

    /// Ends the session, and waits until nothing is under way.
    pub(crate) async fn end(self) {
        self.connection.close();
        self.task.await.ok();
    }
}
