//! Rows of requests: what agents and sessions ask of a person.

use svc_model::{
    AgentId, AgentRequestId, Ownership, Principal, Reader, Timestamp,
    agent::{RequestKind, RequestOption},
    json_bytes,
};

use super::{RequestReads, RequestWrites};
use crate::{
    PageSize, RequestAnswerRow, RequestRow, Result, RowPage, boxed_methods,
    columns::{Columns, DirectRow, Fault, to_json},
    readers::Rows as _,
    statement::{change, changed, query},
};

impl DirectRow for RequestRow {
    fn read(columns: &mut Columns<'_>) -> Result<Self, Fault> {
        let request_id: String = columns.next("request_id")?;
        let agent_id = columns.next("agent_id")?;
        let session: String = columns.next("session_key")?;
        let created_by: String = columns.next("created_by")?;
        let owned = Ownership {
            runner: Some(Principal::Session(session.as_str().into())),
            ..Ownership::from_row(&created_by, columns.next("project")?)
        };
        let (kind, title) = (columns.next("kind")?, columns.next("title")?);
        let (cwd, options) = (columns.next("cwd")?, columns.json("options")?);
        let (tool, prompt) = (columns.json_if_any("tool")?, columns.json_if_any("prompt")?);
        let (opened_at, deadline) = (columns.next("opened_at")?, columns.next("deadline")?);
        let noted: Option<RequestAnswerRow> = columns.json_if_any("answering")?;
        let closed_at: Option<Timestamp> = columns.next("closed_at")?;
        let option_id = columns.next("option_id")?;
        let answered_by: Option<String> = columns.next("answered_by")?;
        let (answering, text) = match closed_at {
            None => (noted, None),
            Some(_) => (None, noted.and_then(|noted| noted.text)),
        };
        let id = AgentRequestId::from(request_id);
        Ok(Self {
            tool,
            answering,
            cwd,
            options,
            deadline,
            closed_at,
            answer: answered_by.map(|by| RequestAnswerRow { option_id, text, by }),
            ..Self::new(id, agent_id, (session, owned), (kind, title), prompt, opened_at)
        })
    }
}

/// The value of the column `answering` of a closed request: its answer, if that has a text.
fn words(answer: &RequestAnswerRow) -> Option<String> {
    answer.text.is_some().then(|| to_json(answer))
}

macro_rules! requests {
    ($run:ident($($bound:expr),*), $($rest:tt)*) => {
        query!($run($($bound),*),
            r#"select r.request_id as "request_id!", r.agent_id, r.session_key, r.created_by, r.project,
                r.kind as "kind: RequestKind", r.title, r.cwd, r.options, r.tool, r.prompt,
                r.opened_at as "opened_at: Timestamp", r.deadline as "deadline: Timestamp", r.answering,
                r.closed_at as "closed_at: Timestamp", r.option_id, r.answered_by
            from request r "#,
            $($rest)*
        )
    };
}

#[boxed_methods]
impl RequestWrites<'_> {
    pub async fn get(&mut self, id: &AgentRequestId) -> Result<Option<RequestRow>> {
        Ok(requests!(one(), self.tx.direct, "where r.request_id = ?"; id.as_str()))
    }

    pub async fn open_of_agent(&mut self, agent: &AgentId) -> Result<Vec<RequestRow>> {
        Ok(requests!(all(), self.tx.direct,
            "where r.agent_id = ? and r.closed_at is null order by r.opened_at"; agent))
    }

    pub async fn open_prompts_of(&mut self, session: &str) -> Result<Vec<RequestRow>> {
        Ok(requests!(all(), self.tx.direct,
            "where r.session_key = ? and r.closed_at is null and r.agent_id is null order by r.opened_at";
            session))
    }

    pub async fn last_prompt(&mut self, session: &str) -> Result<Option<RequestRow>> {
        Ok(requests!(one(), self.tx.direct,
            "where r.session_key = ? and r.agent_id is null order by r.opened_at desc limit 1";
            session))
    }

    /// Stores a request; returns whether it is new.
    pub async fn insert(&mut self, row: &RequestRow) -> Result<bool> {
        let id = row.request_id.as_str();
        let agent = row.agent_id.as_ref().map(AgentId::as_str);
        let created_by = row.owned.owner.as_ref().map(Principal::to_string).unwrap_or_default();
        let project = row.owned.project.as_deref().unwrap_or_default();
        let (options, tool) = (to_json(&row.options), row.tool.as_ref().map(to_json));
        let prompt = row.prompt.as_ref().map(to_json);
        let done = change!(self.tx,
            "insert into request (request_id, agent_id, session_key, created_by, project, kind, title, cwd, options, \
                tool, prompt, opened_at, deadline) \
            values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do nothing";
            id, agent, row.session, created_by, project, row.kind, row.title, row.cwd, options,
            tool, prompt, row.opened_at, row.deadline);
        Ok(done > 0)
    }

    /// Stores the question and the options of an open request.
    pub async fn describe(&mut self, row: &RequestRow) -> Result<()> {
        let id = row.request_id.as_str();
        let (options, tool) = (to_json(&row.options), row.tool.as_ref().map(to_json));
        let prompt = row.prompt.as_ref().map(to_json);
        let done = change!(self.tx,
            "update request set kind = ?, title = ?, cwd = ?, options = ?, tool = ?, prompt = ? \
            where request_id = ? and closed_at is null";
            row.kind, row.title, row.cwd, options, tool, prompt, id);
        changed(done, "request", id)
    }

    /// Records the answer that the client of an open request is given; returns whether it is the
    /// first.
    pub async fn set_answering(
        &mut self,
        id: &AgentRequestId,
        answer: &RequestAnswerRow,
    ) -> Result<bool> {
        let (key, answering) = (id.as_str(), to_json(answer));
        let done = change!(self.tx,
            "update request set answering = ? where request_id = ? and closed_at is null and answering is null";
            answering, key);
        Ok(done > 0)
    }

    /// Clears the answer of an open request, because its client was not given it.
    pub async fn clear_answering(&mut self, id: &AgentRequestId) -> Result<()> {
        change!(self.tx,
            "update request set answering = null where request_id = ? and closed_at is null";
            id.as_str());
        Ok(())
    }

    /// Gives an open request its options: somebody can answer it here.
    pub async fn offer_options(
        &mut self,
        id: &AgentRequestId,
        options: &[RequestOption],
    ) -> Result<bool> {
        let (key, options) = (id.as_str(), to_json(&options));
        let done = change!(self.tx,
            "update request set options = ? where request_id = ? and closed_at is null";
            options, key);
        Ok(done > 0)
    }

    /// Takes the options from an open request: nobody can answer it here any more.
    pub async fn withdraw_options(&mut self, id: &AgentRequestId) -> Result<bool> {
        let done = change!(self.tx,
            "update request set options = '[]' where request_id = ? and closed_at is null and options <> '[]'";
            id.as_str());
        Ok(done > 0)
    }

    /// Stores another answer to a request that is over: the one on record was wrong.
    pub async fn correct(&mut self, id: &AgentRequestId, answer: &RequestAnswerRow) -> Result<()> {
        let (key, words) = (id.as_str(), words(answer));
        let done = change!(self.tx,
            "update request set option_id = ?, answered_by = ?, answering = ? \
            where request_id = ? and closed_at is not null";
            answer.option_id, answer.by, words, key);
        changed(done, "request", key)
    }

    pub async fn close(&mut self, id: &AgentRequestId, answer: &RequestAnswerRow) -> Result<()> {
        let (key, words) = (id.as_str(), words(answer));
        let done = change!(self.tx,
            "update request set closed_at = ?, option_id = ?, answered_by = ?, answering = ? \
            where request_id = ? and closed_at is null";
            self.tx.now, answer.option_id, answer.by, words, key);
        changed(done, "request", key)
    }
}

#[boxed_methods]
impl RequestReads<'_> {
    pub async fn get(&self, id: &AgentRequestId) -> Result<Option<RequestRow>> {
        Ok(requests!(one(), self.store.pool(), "where r.request_id = ?"; id.as_str()))
    }

    /// Requests, the latest first, before the cursor `before`.
    pub async fn list(
        &self,
        reader: &Reader,
        open: bool,
        before: Option<&(Timestamp, String)>,
        size: PageSize,
    ) -> Result<RowPage<RequestRow>> {
        let limit = size.limit();
        let (at, id) = before.map(|(at, id)| (*at, id.as_str())).unzip();
        Ok(requests!(page(size, |row: &RequestRow| json_bytes(&row.tool)), self.store.pool(),
            "where (?1 is null or r.project <> '' and r.project = ?2 or r.created_by = ?3 or r.session_key = ?1)
                and (not ?4 or r.closed_at is null) and (?5 is null or (r.opened_at, r.request_id) < (?5, ?6))
            order by r.opened_at desc, r.request_id desc limit ?7";
            reader.key(), reader.project(), reader.owner(), open, at, id, limit))
    }

    /// Open requests of attended sessions, the oldest first.
    pub async fn open_prompts(&self) -> Result<Vec<RequestRow>> {
        Ok(requests!(
            all(),
            self.store.pool(),
            "where r.closed_at is null and r.agent_id is null order by r.opened_at limit 500"
        ))
    }
}
