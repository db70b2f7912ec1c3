//! Accepting connections.
//!
//! Our own loop over hyper's HTTP/1 connection and not `axum::serve`: an idle subscriber costs half the memory, and
//! shutdown is ours to shape.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Edge;
use crate::{domain::limits, telemetry};

/// Serves until `stop`; then takes no more connections and lets those that are open finish what they are at.
/// `connections` tells when the last one is gone.
pub async fn serve(
    listener: TcpListener,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, edge.clone(), stop.clone()));
            }
            Err(error) => {
                // Out of descriptors, most likely. The listener is well, and a pause lets others close.
                tracing::warn!(error = telemetry::chain(&error), "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, edge: Edge, stop: CancellationToken) {
    // An answer is written at once: with Nagle's algorithm a small one waits for the client's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = telemetry::chain(&error), "cannot set TCP_NODELAY");
    }
    let edge = Arc::new(edge);
    let service = service_fn(move |request| {
        let edge = Arc::clone(&edge);
        async move { Ok::<_, Infallible>(edge.handle(request).await) }
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
            connection.await
        }
    };
    if let Err(error) = served {
        // A client that went away, or that does not speak HTTP.
        tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
    }
}
