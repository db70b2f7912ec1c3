//! One connection: hyper reads its requests and writes the answers, streams too.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{HeaderValue, header};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use svc_model::limits;
use svc_sys::telemetry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{
    client_connection::ClientConnection, client_io::ClientIo, edge::Edge, listener::Transport,
};

/// What a connection on which nothing is under way gets to end by itself, at the end.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves a connection to its end. When the daemon goes down, one that is idle stays open until
/// every request under way, on any connection, has its answer: a request on it is told to come
/// again, where a closed connection would not say whether it arrived.
pub(super) async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    transport: Transport,
    client: Arc<ClientConnection>,
    edge: Edge,
    stop: CancellationToken,
) {
    let io = ClientIo::new(stream, Arc::clone(&client), edge.body_stall());
    let requests = Arc::clone(&client);
    let draining = edge.clone();
    let service = service_fn(move |request| {
        let (edge, client) = (edge.clone(), Arc::clone(&requests));
        let under_way = (client.begin(), edge.begin());
        // Boxed: a connection that is idle does not carry the room that a request takes.
        Box::pin(async move {
            client.flows().await;
            let mut response = edge.handle(request, transport, &client).await;
            if edge.is_draining() {
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            drop(under_way);
            Ok::<_, Infallible>(response)
        })
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits::HEAD_TIMEOUT)
            .max_buf_size(limits::CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(io), service)
    );
    let ended = tokio::select! {
        ended = serve_while_wanted(served.as_mut(), &client) => ended,
        () = stop.cancelled() => {
            draining.drain();
            let ended = tokio::select! {
                ended = served.as_mut() => Some(ended),
                () = draining.is_drained() => None,
            };
            if let Some(ended) = ended {
                ended
            } else {
                served.as_mut().graceful_shutdown();
                finish(served.as_mut(), &client).await
            }
        }
    };
    client.leave();
    if let Err(error) = ended {
        // A client that went away, or that does not speak HTTP.
        tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
    }
}

/// Drives a connection that takes no more requests to its end.
async fn finish<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        let writes = client.writes();
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = tokio::time::sleep(HALF_A_HEAD) => {}
        }
        if !client.is_at_work() && client.writes() == writes {
            // It has sent half of a request's head, or does not read its answer: there is nothing
            // to wait for.
            return Ok(());
        }
    }
}

/// Drives a connection to its end, or until it has to make room for another.
async fn serve_while_wanted<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = client.closed() => {}
        }
        // On a busy machine its request may have come without having been read.
        tokio::task::yield_now().await;
        if let Some(ended) = served.as_mut().now_or_never() {
            return ended;
        }
        if client.is_to_go() {
            return Ok(());
        }
    }
}
