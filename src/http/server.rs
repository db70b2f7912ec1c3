//! Accepting connections. Our own loop and not `axum::serve`: shutdown is ours to shape.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Edge, connection::connection, listener::Listener};
use crate::telemetry;

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
