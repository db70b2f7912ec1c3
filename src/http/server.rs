//! Accepting connections.
//!
//! Our own loop over hyper's HTTP/1 connection and not `axum::serve`: an idle subscriber costs half the memory, and
//! shutdown is ours to shape.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Edge,
    listener::{Listener, Transport},
};
use crate::{domain::limits, telemetry};

/// What a connection on which nothing is under way gets to end by itself, at the end.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves until `stop`; then takes no more connections and lets those that are open finish what they are at.
/// `connections` tells when the last one is gone.
pub async fn serve(
    mut listener: impl Listener,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, transport)) => {
                connections.spawn(connection(stream, transport, edge.clone(), stop.clone()));
            }
            Err(error) => {
                // Out of descriptors, most likely. The listener is well, and a pause lets others close.
                tracing::warn!(error = telemetry::chain(&error), "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    transport: Transport,
    edge: Edge,
    stop: CancellationToken,
) {
    let shared = Arc::new((edge, AtomicUsize::new(0)));
    let mine = Arc::clone(&shared);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&mine);
        // Boxed: a connection that is idle, or streams, does not carry the room that a request takes.
        Box::pin(async move {
            let (edge, under_way) = &*shared;
            under_way.fetch_add(1, Relaxed);
            let response = edge.handle(request, transport).await;
            under_way.fetch_sub(1, Relaxed);
            Ok::<_, Infallible>(response)
        })
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(128 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            loop {
                tokio::select! {
                    served = connection.as_mut() => break served,
                    () = tokio::time::sleep(HALF_A_HEAD) => {}
                }
                if shared.1.load(Relaxed) == 0 {
                    // It has sent half of a request's head, if anything: there is nothing to wait for.
                    break Ok(());
                }
            }
        }
    };
    if let Err(error) = served {
        // A client that went away, or that does not speak HTTP.
        tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
    }
}
