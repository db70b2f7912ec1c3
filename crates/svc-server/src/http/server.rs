//! Accepting connections. Our own loop and not `axum::serve`: shutdown and the bounds of
//! connections are ours to shape.

use std::time::Duration;

use svc_sys::telemetry;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Edge, client_connection::ConnectionBounds, connection::connection, listener::Listener,
};

/// Serves until `stop`; then takes no more connections and lets those that are open finish what
/// they are at. `connections` tells when the last one is gone.
pub async fn serve(
    mut listener: impl Listener,
    bounds: ConnectionBounds,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let accept = async {
        loop {
            let slot = bounds.slot().await;
            match listener.next().await {
                Ok((stream, transport)) => {
                    let (client, edge, stop) = (bounds.connection(), edge.clone(), stop.clone());
                    connections.spawn(async move {
                        connection(stream, transport, client, edge, stop).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely. The listener is well, and a pause lets
                    // others close.
                    tracing::warn!(error = telemetry::chain(&error), "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop.cancelled() => {}
    }
}
