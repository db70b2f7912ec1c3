//! Child MCP servers: their lists, states and processes, each on its machine.

use super::{
    families::{SourceReads, SourceWrites},
    statement::{change, direct_row, query_fields, query_rows},
};
use crate::{SourceListRow, SourcePinRow, SourceProcessRow, SourceStateRow, StoreError};

direct_row!(SourceListRow { name, project, fingerprint, tools, resources, templates, prompts });
direct_row!(SourceProcessRow { mark, pid, started, name, project, instance });

impl SourceWrites<'_> {
    pub async fn put_list(&mut self, row: &SourceListRow) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into source_list (machine_id, name, project, fingerprint, tools, resources, templates, prompts, listed_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set fingerprint = excluded.fingerprint, tools = excluded.tools,
                resources = excluded.resources, templates = excluded.templates, prompts = excluded.prompts,
                listed_at = excluded.listed_at",
            self.tx.machine,
            row.name,
            row.project,
            row.fingerprint,
            row.tools,
            row.resources,
            row.templates,
            row.prompts,
            self.tx.now
        );
        Ok(())
    }

    /// Stores the definitions of a server that a person has approved.
    pub async fn put_pin(&mut self, row: &SourcePinRow) -> Result<(), StoreError> {
        let SourcePinRow { list, told } = row;
        change!(
            self.tx,
            "insert into source_pin (machine_id, name, project, basis, tools, resources, templates, prompts, told,
                pinned_at)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set basis = excluded.basis, tools = excluded.tools,
                resources = excluded.resources, templates = excluded.templates, prompts = excluded.prompts,
                told = excluded.told, pinned_at = excluded.pinned_at",
            self.tx.machine,
            list.name,
            list.project,
            list.fingerprint,
            list.tools,
            list.resources,
            list.templates,
            list.prompts,
            told,
            self.tx.now
        );
        Ok(())
    }

    pub async fn put_state(&mut self, row: &SourceStateRow) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into source_state (machine_id, name, project, state, reason, next_action, attempt, next_at, since)
            values (?, ?, ?, ?, ?, ?, ?, ?, ?)
            on conflict (machine_id, name, project) do update set state = excluded.state, reason = excluded.reason,
                next_action = excluded.next_action, attempt = excluded.attempt, next_at = excluded.next_at,
                since = excluded.since",
            self.tx.machine,
            row.name,
            row.project,
            row.state,
            row.reason,
            row.next_action,
            row.attempt,
            row.next_at,
            self.tx.now
        );
        Ok(())
    }

    /// Stores a process before the first request to it.
    pub async fn insert_process(&mut self, row: &SourceProcessRow) -> Result<(), StoreError> {
        change!(
            self.tx,
            "insert into source_process (mark, machine_id, pid, started, name, project, instance, at)
            values (?, ?, ?, ?, ?, ?, ?, ?)",
            row.mark,
            self.tx.machine,
            row.pid,
            row.started,
            row.name,
            row.project,
            row.instance,
            self.tx.now
        );
        Ok(())
    }

    /// Removes a process of which no descendant is left.
    pub async fn delete_process(&mut self, mark: &str) -> Result<(), StoreError> {
        change!(self.tx, "delete from source_process where mark = ?", mark);
        Ok(())
    }
}

impl SourceReads<'_> {
    /// What the servers of this machine listed when they last worked.
    pub async fn lists(self) -> Result<Vec<SourceListRow>, StoreError> {
        let here = self.store.machine_id();
        let rows = query_rows!(
            SourceListRow,
            "select name, project, fingerprint, tools, resources, templates, prompts from source_list where machine_id = ?",
            here
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }

    pub async fn pins(self) -> Result<Vec<SourcePinRow>, StoreError> {
        let here = self.store.machine_id();
        let rows = query_fields!(
            {
                name: String,
                project: String,
                basis: String,
                tools: String,
                resources: String,
                templates: String,
                prompts: String,
                told: String
            },
            "select name, project, basis, tools, resources, templates, prompts, told from source_pin where machine_id = ?",
            here
        )
        .fetch_all(&self.store.readers)
        .await?;
        let pins = rows.into_iter().map(|row| SourcePinRow {
            list: SourceListRow {
                name: row.name,
                project: row.project,
                fingerprint: row.basis,
                tools: row.tools,
                resources: row.resources,
                templates: row.templates,
                prompts: row.prompts,
            },
            told: row.told,
        });
        Ok(pins.collect())
    }

    /// Processes of this machine that were started and whose end was not recorded.
    pub async fn processes(self) -> Result<Vec<SourceProcessRow>, StoreError> {
        let here = self.store.machine_id();
        let rows = query_rows!(
            SourceProcessRow,
            r#"select mark, pid as "pid: u32", started, name, project, instance from source_process
            where machine_id = ?"#,
            here
        )
        .fetch_all(&self.store.readers)
        .await?;
        Ok(rows)
    }
}
