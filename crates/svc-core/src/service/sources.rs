//! Rows of child MCP servers: their lists, states and processes; and the events of their streams.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};
use svc_model::{
    NewEvent, Ownership, ProcessIdentity, StreamName, StreamVisibility, Timestamp,
    source::SourceState,
};
pub use svc_store::SourceListRow;
use svc_store::{SourcePinRow, SourceProcessRow, SourceStateRow, job};

use super::{
    Result,
    core::{Core, open_and_append},
    projects::project_root,
    team::append_to_team,
};
use crate::boxed;

#[derive(Debug, Clone)]
pub struct Sources {
    core: Core,
}

/// Identifies a server: two projects may each have a server of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    pub name: String,
    /// The folder with the project's file that names the server: the project's root, or a folder
    /// below it. Empty if no project's file names the server.
    pub project: String,
}

impl SourceKey {
    pub fn from_row(row: &SourceListRow) -> Self {
        Self { name: row.name.clone(), project: row.project.clone() }
    }

    pub fn project(&self) -> Option<&str> {
        Some(self.project.as_str()).filter(|project| !project.is_empty())
    }

    /// Root of the project whose file names the server; empty if none does.
    fn project_root(&self) -> String {
        self.project().map(project_root).unwrap_or_default()
    }

    /// The stream of the server's events. Servers of the same name in several projects have
    /// separate streams.
    pub fn stream(&self) -> StreamName {
        match self.project() {
            None => StreamName::new("source", &self.name),
            Some(project) => {
                use sha2::{Digest as _, Sha256};
                let hash = hex::encode(&Sha256::digest(project)[..4]);
                StreamName::new("source", format!("{}@{hash}", self.name))
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus {
    pub state: SourceState,
    /// Why the server does not work.
    pub reason: Option<String>,
    /// What a person can do about it.
    pub next_action: Option<String>,
    pub attempt: Option<u32>,
    pub next_at: Option<Timestamp>,
}

impl SourceStatus {
    pub fn from_state(state: SourceState) -> Self {
        Self { state, reason: None, next_action: None, attempt: None, next_at: None }
    }
}

/// A call of a server's tool, after its end.
#[derive(Debug, Clone, Serialize)]
pub struct CallEvent {
    /// The tool, by the server's own name for it.
    pub tool: String,
    pub duration_ms: u64,
    /// `ok`, `error`, `unavailable`, `timeout` or `cancelled`.
    pub outcome: &'static str,
    pub session: Option<String>,
}

impl Sources {
    pub(super) fn new(core: Core) -> Self {
        Self { core }
    }

    /// The lists of each server from the last time that it worked.
    #[boxed]
    pub async fn lists(&self) -> Result<Vec<SourceListRow>> {
        Ok(self.core.store.sources().lists().await?)
    }

    #[boxed]
    pub async fn store_lists(&self, row: SourceListRow) -> Result<()> {
        self.core.change(job!(|tx| tx.sources().put_list(&row).await)).await
    }

    /// The definitions that a person has approved for each server, with the changes that were
    /// announced. The fingerprint is that of the entry that the definitions belong to.
    #[boxed]
    pub async fn pins(&self) -> Result<Vec<(SourceListRow, BTreeSet<String>)>> {
        let rows = self.core.store.sources().pins().await?;
        let told = |text: &str| serde_json::from_str(text).unwrap_or_default();
        Ok(rows.into_iter().map(|row| (row.list, told(&row.told))).collect())
    }

    /// Stores the definitions that a person has approved, and announces new changes in the team
    /// stream.
    #[boxed]
    pub async fn store_pin(
        &self,
        list: SourceListRow,
        told: Vec<String>,
        news: Vec<String>,
    ) -> Result<()> {
        let key = SourceKey::from_row(&list);
        let event =
            (!news.is_empty()).then(|| NewEvent::new("source.changed", &change_event(&key, &news)));
        let row = SourcePinRow { list, told: json!(told).to_string() };
        let write = self.core.change(job!(|tx| {
            tx.sources().put_pin(&row).await?;
            match event {
                Some(event) => append_to_team(tx, event).await,
                None => Ok(()),
            }
        }));
        write.await
    }

    /// Stores the state of a server, and announces it in the team stream.
    #[boxed]
    pub async fn store_status(&self, key: SourceKey, status: SourceStatus) -> Result<()> {
        let event = NewEvent::new("source.state", &state_event(&key, &status));
        let SourceStatus { state, reason, next_action, attempt, next_at } = status;
        let is_hidden = state == SourceState::Hidden;
        let state = state.as_str().to_owned();
        let SourceKey { name, project } = key;
        let row = SourceStateRow { name, project, state, reason, next_action, attempt, next_at };
        let write = self.core.change(job!(|tx| {
            // The row has the state of the entry that hides this one.
            if !is_hidden {
                tx.sources().put_state(&row).await?;
            }
            append_to_team(tx, event).await
        }));
        write.await
    }

    /// Records a process before it gets a request. The process has `mark` in its environment.
    #[boxed]
    pub async fn note_process(
        &self,
        key: SourceKey,
        instance: String,
        mark: String,
        process: ProcessIdentity,
    ) -> Result<()> {
        let ProcessIdentity { pid, started } = process;
        let SourceKey { name, project } = key;
        let row = SourceProcessRow { mark, pid, started, name, project, instance };
        self.core.change(job!(|tx| tx.sources().insert_process(&row).await)).await
    }

    /// Deletes the row of a process of whose process tree nothing is left.
    #[boxed]
    pub async fn forget_process(&self, mark: String) -> Result<()> {
        self.core.change(job!(|tx| tx.sources().delete_process(&mark).await)).await
    }

    /// The marks of processes that an earlier daemon started and did not see end.
    #[boxed]
    pub async fn orphaned_marks(&self) -> Result<Vec<String>> {
        let rows = self.core.store.sources().processes().await?;
        Ok(rows.into_iter().map(|row| row.mark).collect())
    }

    #[boxed]
    pub async fn open_stream(
        &self,
        stream: StreamName,
        visibility: StreamVisibility,
    ) -> Result<()> {
        self.core.change(job!(|tx| tx.streams().open(&stream, &visibility).await)).await?;
        Ok(())
    }

    /// Notifies subscribers of a resource that it has changed.
    #[boxed]
    pub async fn append_resource_update(&self, stream: StreamName, uri: String) -> Result<()> {
        let event = NewEvent::new("resource.updated", &json!({ "uri": uri }));
        self.core.store.append(stream, vec![event]).await?;
        Ok(())
    }

    /// Appends events of one kind to the stream of a server.
    pub async fn tell(
        &self,
        key: SourceKey,
        kind: &'static str,
        data: Vec<impl Serialize>,
    ) -> Result<()> {
        let events: Vec<_> = data.iter().map(|data| NewEvent::new(kind, data)).collect();
        if events.is_empty() {
            return Ok(());
        }
        // A server's output may be about any caller's calls, so only the operator reads its stream;
        // the stream of a project's own server is readable in the project.
        let project = match key.project() {
            Some(folder) => self.core.projects.of_folder(folder).await?,
            None => String::new(),
        };
        let visibility = StreamVisibility::shared(&Ownership::from_row("operator", project));
        let write =
            self.core
                .change(job!(|tx| open_and_append(tx, &key.stream(), &visibility, events).await));
        write.await
    }
}

/// Everybody may read this event. The reason of a project's own server may quote the project, so
/// the event leaves it out.
fn state_event(key: &SourceKey, status: &SourceStatus) -> Value {
    let for_all = |text: &Option<String>| text.clone().filter(|_| key.project().is_none());
    let mut event = json!({
        "name": key.name, "state": status.state,
        "project": key.project().map(|_| key.project_root()),
        "reason": for_all(&status.reason), "next_action": for_all(&status.next_action),
        "attempt": status.attempt, "next_at": status.next_at,
    });
    event.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
    event
}

/// Bounds of the changes in one event: their number, and the characters of a name.
const CHANGES_TOLD: usize = 20;
const CHANGE_CHARS: usize = 80;

/// Everybody may read this event: it names what has changed, but not how.
fn change_event(key: &SourceKey, changes: &[String]) -> Value {
    let names = changes.iter().take(CHANGES_TOLD);
    let names = names.map(|name| name.chars().take(CHANGE_CHARS).collect::<String>());
    let mut event = json!({ "name": key.name, "tools": names.collect::<Vec<_>>() });
    if key.project().is_some() {
        event["project"] = json!(key.project_root());
    }
    event
}
