//! Accepts connections. Not with `axum::serve`, which allows neither this shutdown nor the bounds
//! of connections.

use std::time::Duration;

use svc_sys::telemetry;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Edge, client_connection::ConnectionBounds, connection::connection, listener::Listener,
};

/// Serves until `stop`; then accepts no more connections and lets open ones finish their requests.
/// `connections` tracks when the last one has ended.
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
                    // Most likely out of file descriptors. The listener is intact, and a pause lets
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
