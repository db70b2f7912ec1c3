//! The server's life: its start, its work beside requests, its end.

use super::{McpServer, McpServerParts, call::recover_calls};
use crate::service;

impl McpServer {
    /// Puts a server together, and takes up the calls that the last stop or crash cut off.
    pub async fn start(parts: McpServerParts) -> Result<Self, service::Error> {
        let server = Self::assemble(parts).await?;
        recover_calls(&server).await?;
        server.background.spawn(server.clone().watch_new_streams());
        Ok(server)
    }

    /// Waits after the stop until no call and no other work is running.
    pub async fn finish(&self) {
        self.background.close();
        self.background.wait().await;
    }

    /// Tells clients that new streams have changed the list of resources: of the first at once, and then no oftener
    /// than every few seconds, as every client reads the list again.
    async fn watch_new_streams(self) {
        let mut opened = self.services.log.streams_opened();
        let pause = self.services.tuning().list_changed_pause;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = opened.changed() => if changed.is_err() { return },
            }
            self.resources_changed.send_modify(|count| *count += 1);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
