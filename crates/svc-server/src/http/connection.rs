//! Serves one connection with hyper, streams included.

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

/// How long a connection without requests may take to end by itself during shutdown.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves a connection to its end. During shutdown an idle connection stays open until every
/// request on any connection has its response: a request on it then gets a 503 with a retry, while
/// a closed connection would not say whether the request arrived.
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
        // Boxed, so that an idle connection does not hold the memory of a request's future.
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
        ended = serve_until_closed(served.as_mut(), &client) => ended,
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
        // The client disconnected, or does not speak HTTP.
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
            // The client has sent half of a request's head, or does not read its response: waiting
            // is pointless.
            return Ok(());
        }
    }
}

/// Drives a connection to its end, or until it is chosen to be closed.
async fn serve_until_closed<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = client.closed() => {}
        }
        // On a busy machine the client's request may have arrived unread.
        tokio::task::yield_now().await;
        if let Some(ended) = served.as_mut().now_or_never() {
            return ended;
        }
        if client.is_to_go() {
            return Ok(());
        }
    }
}
