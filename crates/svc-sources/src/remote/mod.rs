//! The link to a server at a URL, by either transport, and the transport of 2024-11-05: HTTP with
//! server-sent events, where one stream has all responses and messages go to a URL that it names.
//! `streamable` is streamable HTTP, `endpoint` sends one request and reads the response.

mod endpoint;
mod streamable;

pub(super) use endpoint::RemoteEndpoint;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::Url;
use serde_json::{Map, Value};
use svc_core::tools::RequestTrace;
use svc_model::source::RemoteKind;
use svc_wire::{
    mcp_request::{self, RequestSetting},
    sse::is_event_stream,
};
use tokio::{sync::mpsc, task::JoinHandle};

use self::{
    endpoint::{EventReader, add_trace},
    streamable::StreamableTransport,
};
use super::{
    connection::SourceConnection,
    lists::{introduce, introduce_remote},
    message::{ChildMessage, ConnectionEnd, RequestLoss},
};

#[derive(Debug)]
pub(crate) struct RemoteLink {
    connection: Arc<SourceConnection>,
    streamable: Option<Arc<StreamableTransport>>,
    task: JoinHandle<()>,
}

impl RemoteLink {
    /// Starts to serve a connection. The error says that the helper failed; the connection has the
    /// reason.
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

    /// Introduces this client, and from then on listens to the server's own stream.
    pub(crate) async fn introduce(&self) -> Result<Map<String, Value>, String> {
        let Some(transport) = &self.streamable else { return introduce(&self.connection).await };
        let capabilities = introduce_remote(&self.connection).await?;
        transport.listen();
        Ok(capabilities)
    }

    /// Ends the session, and waits until no request is open.
    pub(crate) async fn end(self) {
        self.connection.close();
        self.task.await.ok();
    }
}

/// Deadline for one message.
const POST: Duration = Duration::from_secs(30);

/// Opens the stream, and serves it until the connection ends.
async fn run_legacy_sse(endpoint: Arc<RemoteEndpoint>, messages: mpsc::Receiver<ChildMessage>) {
    let connection = Arc::clone(&endpoint.connection);
    let served = async {
        let (mut reader, address) = open(&endpoint).await?;
        tokio::select! {
            (_, broke) = reader.deliver_all(&connection, None) => {
                Err(broke.unwrap_or_else(|| "its stream ended".to_owned()))
            }
            () = write(&endpoint, &address, messages) => Ok(()),
        }
    };
    tokio::select! {
        () = connection.closed.cancelled() => {}
        served = served => {
            if let Err(reason) = served {
                connection.end_for(ConnectionEnd::Fault(reason));
            }
        }
    }
    connection.close();
}

/// Opens the stream, and waits for the URL that it names.
async fn open(endpoint: &RemoteEndpoint) -> Result<(EventReader, Url), String> {
    let request = mcp_request::get(RequestSetting::default(), None);
    let response = endpoint.send(&request).await.map_err(|loss| loss.reason().to_owned())?;
    if !response.status().is_success() {
        return Err(format!("it answered HTTP {}", response.status().as_u16()));
    }
    if !is_event_stream(response.headers()) {
        return Err("it gives no stream of events: is it of type http?".to_owned());
    }
    let mut reader = EventReader::new(response);
    loop {
        let mut events =
            reader.next().await?.ok_or("its stream ended before it named an address")?;
        let Some(at) = events.iter().position(|(kind, _)| kind == "endpoint") else { continue };
        reader.put_back(events.split_off(at + 1));
        let address = endpoint.url.join(events[at].1.trim());
        let address = address.map_err(|_| "its stream names no address".to_owned())?;
        if address.origin() != endpoint.url.origin() {
            return Err("its stream names an address of another server".to_owned());
        }
        return Ok((reader, address));
    }
}

/// Sends messages one after the other, which keeps their order.
async fn write(
    endpoint: &RemoteEndpoint,
    address: &Url,
    mut messages: mpsc::Receiver<ChildMessage>,
) {
    while let Some(message) = messages.recv().await {
        let (id, trace) = match &message {
            ChildMessage::Request(request) => (Some(request.id), request.trace.clone()),
            ChildMessage::Note(_) | ChildMessage::Cancel { .. } => (None, RequestTrace::default()),
        };
        let mut request =
            mcp_request::post(Bytes::from(message.into_text()), RequestSetting::default());
        add_trace(&mut request.headers, &trace);
        let sent = tokio::time::timeout(POST, endpoint.send_to(address, id, &request)).await;
        let loss = match sent {
            Ok(Ok(response)) if response.status().is_success() => None,
            Ok(Ok(response)) => Some(RequestLoss::NotTaken(format!(
                "it answered HTTP {}",
                response.status().as_u16()
            ))),
            Ok(Err(loss)) => Some(loss),
            Err(_) => {
                Some(RequestLoss::Unanswered("it did not take the request in time".to_owned()))
            }
        };
        if let (Some(id), Some(loss)) = (id, loss) {
            endpoint.connection.lose(id, loss).await;
        }
        if endpoint.connection.end().is_some() {
            return;
        }
    }
}
