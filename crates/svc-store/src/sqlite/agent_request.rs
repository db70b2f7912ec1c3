//! Rows of agents' requests.

use svc_model::{
    AgentId, AgentRequestId, Ownership, Principal, Reader, Timestamp,
    agent::{RequestKind, RequestOption},
};

use super::{
    errors::changed,
    families::{AgentRequestReads, AgentRequestWrites},
    json::{from_json, to_json},
    page::read_page,
    statement::{change, direct_row, pool_query, select_all, select_one},
};
use crate::{PageSize, RequestAnswerRow, RequestRow, RowPage, StoreError};

direct_row! {
    struct RawRequest {
        request_id: String,
        agent_id: String,
        session_key: String,
        created_by: String,
        project: String,
        kind: RequestKind,
        title: String,
        options: String,
        tool: Option<String>,
        opened_at: Timestamp,
        deadline: Timestamp,
        closed_at: Option<Timestamp>,
        option_id: Option<String>,
        answered_by: Option<String>,
    }
}

impl TryFrom<RawRequest> for RequestRow {
    type Error = StoreError;

    fn try_from(raw: RawRequest) -> Result<Self, StoreError> {
        let options: Vec<RequestOption> =
            serde_json::from_str(&raw.options).map_err(|error| StoreError::BadRow {
                table: "agent_request",
                id: raw.request_id.clone(),
                why: format!("options: {error}"),
            })?;
        let tool = raw.tool.as_deref().map(from_json).transpose()?;
        Ok(Self {
            request_id: AgentRequestId::from(raw.request_id),
            agent_id: AgentId::from(raw.agent_id),
            owned: Ownership {
                runner: Some(Principal::Session(raw.session_key.as_str().into())),
                ..Ownership::from_row(&raw.created_by, raw.project)
            },
            session_key: raw.session_key,
            peer_id: None,
            kind: raw.kind,
            title: raw.title,
            options,
            tool,
            opened_at: raw.opened_at,
            deadline: raw.deadline,
            closed_at: raw.closed_at,
            answer: raw.answered_by.map(|by| RequestAnswerRow { option_id: raw.option_id, by }),
        })
    }
}

/// Selects the columns of a request and its agent; for the macros of `statement`.
macro_rules! requests {
    ($run:ident, $($rest:tt)*) => {
        $run!(
            r#"select r.request_id as "request_id!", r.agent_id as "agent_id!", a.session_key as "session_key!",
                a.created_by as "created_by!", a.project as "project!", r.kind as "kind!: RequestKind",
                r.title as "title!", r.options as "options!", r.tool, r.opened_at as "opened_at!: Timestamp",
                r.deadline as "deadline!: Timestamp", r.closed_at as "closed_at: Timestamp", r.option_id,
                r.answered_by
            from agent_request r join agent a using (agent_id) "#,
            RawRequest,
            $($rest)*
        )
    };
}

impl AgentRequestWrites<'_> {
    pub async fn get(&mut self, id: &AgentRequestId) -> Result<Option<RequestRow>, StoreError> {
        let id = id.as_str();
        let raw = requests!(select_one, self.tx, "where r.request_id = ?", id);
        raw.map(RequestRow::try_from).transpose()
    }

    pub async fn open_of_agent(&mut self, agent: &AgentId) -> Result<Vec<RequestRow>, StoreError> {
        let id = agent.as_str();
        let rows = requests!(
            select_all,
            self.tx,
            "where r.agent_id = ? and r.closed_at is null order by r.opened_at",
            id
        );
        rows.into_iter().map(RequestRow::try_from).collect()
    }

    /// Stores a request; returns whether it is new.
    pub async fn insert(&mut self, row: &RequestRow) -> Result<bool, StoreError> {
        let (id, agent, options) =
            (row.request_id.as_str(), row.agent_id.as_str(), to_json(&row.options));
        let tool = row.tool.as_ref().map(to_json);
        let done = change!(
            self.tx,
            "insert into agent_request (request_id, agent_id, kind, title, options, tool, opened_at, deadline) \
            values (?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing",
            id,
            agent,
            row.kind,
            row.title,
            options,
            tool,
            row.opened_at,
            row.deadline
        );
        Ok(done > 0)
    }

    /// Stores the answer to an open request.
    pub async fn close(
        &mut self,
        id: &AgentRequestId,
        answer: &RequestAnswerRow,
    ) -> Result<(), StoreError> {
        let key = id.as_str();
        let done = change!(
            self.tx,
            "update agent_request set closed_at = ?, option_id = ?, answered_by = ? \
            where request_id = ? and closed_at is null",
            self.tx.now,
            answer.option_id,
            answer.by,
            key
        );
        changed(done, "agent_request", key)
    }
}

impl AgentRequestReads<'_> {
    pub async fn get(self, id: &AgentRequestId) -> Result<Option<RequestRow>, StoreError> {
        let id = id.as_str();
        let raw = requests!(pool_query, "where r.request_id = ?", id)
            .fetch_optional(&self.store.readers)
            .await?;
        raw.map(RequestRow::try_from).transpose()
    }

    /// Requests, the latest first.
    pub async fn list(
        self,
        reader: &Reader,
        open: bool,
        before: Option<&(Timestamp, String)>,
        size: PageSize,
    ) -> Result<RowPage<RequestRow>, StoreError> {
        let limit = size.limit();
        let (key, owner, project) = (reader.key(), reader.owner(), reader.project());
        let (at, id) = match before {
            Some((at, id)) => (Some(*at), Some(id.as_str())),
            None => (None, None),
        };
        let rows = requests!(pool_query, "where (?1 is null or a.project <> '' and a.project = ?2 or a.created_by = ?3 or a.session_key = ?1)
                and (not ?4 or r.closed_at is null) and (?5 is null or (r.opened_at, r.request_id) < (?5, ?6))
            order by r.opened_at desc, r.request_id desc limit ?7",
            key,
            project,
            owner,
            open,
            at,
            id,
            limit
        )
        .fetch(&self.store.page_readers);
        read_page(rows, size, RequestRow::try_from, |row| &row.tool).await
    }

    /// Open requests whose deadline has passed.
    pub async fn due(self, now: Timestamp) -> Result<Vec<RequestRow>, StoreError> {
        let rows = requests!(
            pool_query,
            "where r.closed_at is null and r.deadline <= ? order by r.deadline limit 500",
            now
        )
        .fetch_all(&self.store.readers)
        .await?;
        rows.into_iter().map(RequestRow::try_from).collect()
    }
}
