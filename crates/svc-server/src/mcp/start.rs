//! The server's life: its start, its work beside requests, its end.

use svc_core::service;

use super::{McpServer, McpServerParts, call::recover_calls};

impl McpServer {
    /// Puts a server together, and takes up the calls that the last stop or crash cut off.
    pub async fn start(parts: McpServerParts) -> Result<Self, service::Error> {
        let server = Self::assemble(parts).await?;
        recover_calls(&server).await?;
        server.background.spawn(server.clone().watch_new_streams());
        server.background.spawn(server.clone().watch_servers());
        Ok(server)
    }

    /// Waits after the stop until no call and no other work is running.
    pub async fn finish(&self) {
        self.background.close();
        self.background.wait().await;
    }

    /// Tells clients that the resources or prompts of servers behind the daemon have changed.
    async fn watch_servers(self) {
        let Some(sources) = &self.sources else { return };
        let (mut resources, mut prompts) = (sources.resource_changes(), sources.prompt_changes());
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                Ok(()) = resources.changed() => {
                    self.resources_changed.send_modify(|count| *count += 1);
                }
                // The daemon's own are as they were; who is told reads all of them again.
                Ok(()) = prompts.changed() => self.prompts.send_modify(|_| {}),
                else => return,
            }
        }
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
