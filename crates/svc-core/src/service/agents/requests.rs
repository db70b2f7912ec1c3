//! Requests of agents and their answers. The host decides which answer is the first; the row
//! follows the host.

use std::{collections::HashSet, time::Duration};

use svc_model::{
    APPROVE_SCOPE, AccessLevel, AgentId, AgentRequestId, Caller, IdReference, LATEST, Principal,
    ProcessIdentity, ProcessState, Reader, RequestFilter, Timestamp,
    agent::{RequestKind, RequestOptionKind},
    hook::AnswerRequest,
    is_agent_key, limits,
};
use svc_store::{PageSize, RequestAnswerRow, RequestRow, job};
use svc_sys::process_list;
use svc_wire::host_protocol::AnswerAgent;

use super::{
    Agents,
    control::{check_live, of_host},
    intake::{TIMEOUT, close_request, wait_for_person, work_of},
    state::{has_scope, tell_closed},
};
use crate::boxed;
use crate::service::{
    Candidate, Error, Listed, Page, PageBounds, ResourceKind, Result, check, process::RequestSender,
};

/// How long after its deadline a request of a host that does not answer is denied: its host may
/// have an answer that was given just before.
const ANSWER_GRACE: Duration = Duration::from_secs(10);

impl Listed for RequestRow {
    const NAME: &'static str = "requests";
}

impl Agents {
    /// A page of the requests that the caller may see, latest first.
    pub async fn requests(
        &self,
        caller: &Caller,
        filter: &RequestFilter,
        page: impl Into<PageBounds<'_>>,
    ) -> Result<Page<RequestRow>> {
        let reader = Reader::from_caller(caller);
        let read = async |before: Option<(i64, String)>, limit| {
            let before = before.map(|(at, id)| (Timestamp::from_millis(at), id));
            self.core.store.requests().list(&reader, filter.open, before.as_ref(), limit).await
        };
        let key = |row: &RequestRow| (row.opened_at.as_millis(), row.request_id.clone());
        let mut page = Page::read("requests", page.into(), read, key).await?;
        for request in page.items.iter_mut().filter(|request| request.closed_at.is_none()) {
            let peer = match request.agent_id {
                Some(_) => self.core.store.peers().of_key(&request.session).await?,
                None => self.core.store.peers().of_session(&request.session).await?,
            };
            request.peer_id = peer.map(|row| row.peer.peer_id);
        }
        Ok(page)
    }

    /// Answers a request, which needs a scope of its own. If `agent` is given, the request must be
    /// of that agent. `sender` is where the answer came from. The request is still open if the
    /// client of its session has not shown yet that it took the answer.
    #[boxed]
    pub async fn answer_request(
        &self,
        caller: &Caller,
        agent: Option<&str>,
        request_id: &str,
        answer: AnswerRequest,
        sender: RequestSender,
    ) -> Result<RequestRow> {
        let agent = match agent {
            Some(named) => {
                let row = self.find(caller, named).await?;
                has_scope(caller, APPROVE_SCOPE)?;
                check_live(&row)?;
                Some(row.info.id)
            }
            None => None,
        };
        let request = self.asked(caller, request_id, agent.as_ref()).await?;
        has_scope(caller, APPROVE_SCOPE)?;
        self.may_answer(caller, &request).await?;
        if request.closed_at.is_some() {
            let by = request.answer.as_ref().map_or("nobody", |answer| answer.by.as_str());
            let why = format!("request {} is already answered, by {by}", request.request_id);
            return Err(Error::Conflict(why));
        }
        self.check_sender(caller, &request, sender).await?;
        if let Some(text) = &answer.text {
            check::not_blank("text", text)?;
            check::long("text", text, limits::REPLY_BYTES)?;
        }
        let by = self.answerer(caller).await?;
        let answered = match request.agent_id.clone() {
            Some(agent) => self.answer(by, &agent, request, answer).await,
            None => self.prompts.answer(by, request, answer).await,
        };
        answered.map_err(|error| error.of_repeatable(true))
    }

    /// Who answers, for the record: the key of the caller's session. The holder of a token is on
    /// record as `session:NAME`: the name alone may be any word, such as `terminal`.
    async fn answerer(&self, caller: &Caller) -> Result<String> {
        let principal = caller.principal();
        let Some(key) = caller.session() else { return Ok(principal.to_string()) };
        if is_agent_key(key) {
            return Ok(key.to_owned());
        }
        let peer = match self.core.store.sessions().latest_of(&principal).await? {
            Some(session) if caller.is_client_process() => {
                self.core.store.peers().of_session(&session).await?
            }
            _ => None,
        };
        Ok(peer.and_then(|row| row.session_key()).unwrap_or_else(|| principal.to_string()))
    }

    /// Refuses an answer from a process that the asking client started, whatever token the answer
    /// shows: the process that sent the answer, and the process that the token was issued to.
    async fn check_sender(
        &self,
        caller: &Caller,
        request: &RequestRow,
        sender: RequestSender,
    ) -> Result<()> {
        let Some(client) = self.asking_process(request).await? else { return Ok(()) };
        let holder = caller.process().map(|process| process.pid);
        for process in [sender.process().await, holder].into_iter().flatten() {
            if process_list::is_below(process, &client) {
                let why = "a command that a session's client started does not answer its prompts";
                return Err(Error::Forbidden(why.to_owned()));
            }
            if self.is_run_by_daemon(process).await? {
                let why = "a command that svc runs for a session does not answer prompts";
                return Err(Error::Forbidden(why.to_owned()));
            }
        }
        Ok(())
    }

    /// Whether this daemon started a process for a session: commands of its tools, child servers
    /// and what these start. What an agent's host runs is the agent's own.
    async fn is_run_by_daemon(&self, process: u32) -> Result<bool> {
        let Some(child) = process_list::child_of_this_above(process) else { return Ok(false) };
        Ok(self.core.store.agents().of_host(&child).await?.is_none())
    }

    /// The process that starts what the asking session runs: the client, or the host of an agent.
    async fn asking_process(&self, request: &RequestRow) -> Result<Option<ProcessIdentity>> {
        let store = &self.core.store;
        let Some(agent) = &request.agent_id else {
            let peer = store.peers().of_session(&request.session).await?;
            return Ok(peer.and_then(|peer| peer.process()).map(|process| process.process));
        };
        let host = store.agents().get(agent).await?.and_then(|row| row.host_process());
        let host = host.filter(|host| self.core.state_of(host) == ProcessState::Running);
        Ok(host.map(|host| host.process))
    }

    /// A session answers for others of its project, but not for itself or for agents that it
    /// started.
    async fn may_answer(&self, caller: &Caller, request: &RequestRow) -> Result<()> {
        let forbidden = |why: &str| Err(Error::Forbidden(why.to_owned()));
        let Some(session) = caller.session() else { return Ok(()) };
        let is_owner = request.owned.owner == Some(caller.principal());
        if session == request.session || is_owner && request.agent_id.is_none() {
            return forbidden("an agent does not answer its own request");
        }
        if !caller.is_of_project(&request.owned) {
            return forbidden("a session answers requests of its own project alone");
        }
        if let Some(agent) = &request.agent_id
            && (is_owner || self.has_started(session, agent).await?)
        {
            return forbidden("a session does not answer requests of what it started");
        }
        Ok(())
    }

    /// Whether a session started an agent, directly or through agents that it started.
    async fn has_started(&self, session: &str, agent: &AgentId) -> Result<bool> {
        let store = &self.core.store;
        let mut next = store.agents().get(agent).await?;
        let mut seen = HashSet::new();
        while let Some(row) = next {
            let key = match &row.owned.owner {
                Some(Principal::Operator) => return Ok(false),
                Some(Principal::Session(key)) if **key == *session => return Ok(true),
                Some(Principal::Session(key)) => key.clone(),
                // The owner is unknown: only the operator may answer.
                None => return Ok(true),
            };
            if !seen.insert(row.info.id.clone()) {
                return Ok(true);
            }
            next = match store.agents().parent_of(&row.info.id).await? {
                Some(parent) => store.agents().get(&parent).await?,
                None => store.agents().of_key(&key).await?,
            };
        }
        Ok(false)
    }

    /// The request that `text` names: by its id, or an open one by the beginning of its id or as
    /// `latest`. Only a request of `agent`, if that is given.
    async fn asked(
        &self,
        caller: &Caller,
        text: &str,
        agent: Option<&AgentId>,
    ) -> Result<RequestRow> {
        let unknown = || Error::not_found(ResourceKind::AgentRequest, text);
        let is_of_agent =
            |row: &RequestRow| agent.is_none_or(|agent| row.agent_id.as_ref() == Some(agent));
        if let Some(key) = AgentRequestId::parse(text)
            && let Some(row) = self.core.store.requests().get(&key).await?
        {
            return match caller.access_to(&row.owned) {
                AccessLevel::Read | AccessLevel::Write if is_of_agent(&row) => Ok(row),
                _ => Err(unknown()),
            };
        }
        let beginning = IdReference::parse(text, AgentRequestId::PREFIX);
        let beginning = match beginning {
            // `latest` would parse as a beginning.
            _ if text == LATEST => AgentRequestId::PREFIX.to_owned(),
            Some(IdReference::Prefix(beginning)) => beginning,
            _ => return Err(unknown()),
        };
        let reader = Reader::from_caller(caller);
        let (requests, size) = (self.core.store.requests(), PageSize::rows(limits::PAGE_MAX));
        let open = requests.list(&reader, true, None, size).await?.rows;
        let mut open: Vec<RequestRow> = open
            .into_iter()
            .filter(|row| is_of_agent(row) && row.request_id.as_str().starts_with(&beginning))
            .collect();
        if text == LATEST {
            open.truncate(1);
        }
        Error::only_one(ResourceKind::AgentRequest, text, open, candidate)
    }

    /// Denies the requests that nobody answered in time, of an agent whose host does not answer.
    /// A host that answers denies them itself.
    pub(super) async fn deny_overdue(&self, agent: &AgentId) -> Result<()> {
        let id = agent.clone();
        let write = self.core.store.write(job!(|tx| {
            let found = tx.agents().get(&id).await?.filter(|row| row.ended_at.is_none());
            let Some(row) = found else { return Ok(()) };
            let before = tx.now().minus(ANSWER_GRACE);
            for request in tx.requests().open_of_agent(&id).await? {
                if request.deadline.is_none_or(|deadline| deadline > before) {
                    continue;
                }
                let mut options = request.options.into_iter();
                let denial = options.find(|option| option.kind == RequestOptionKind::Deny);
                let (option, by) = (denial.map(|option| option.option_id), TIMEOUT.to_owned());
                close_request(tx, &row, &request.request_id, option, by).await?;
                let mut work = work_of(tx, &id).await?;
                wait_for_person(tx, &mut work, None).await?;
            }
            Ok(())
        }));
        write.await
    }

    async fn answer(
        &self,
        by: String,
        agent: &AgentId,
        request: RequestRow,
        answer: AnswerRequest,
    ) -> Result<RequestRow> {
        let AnswerRequest { option_id, text, answers, .. } = answer;
        if answers.is_some() {
            let why = "is taken for prompts of attended sessions alone";
            return Err(Error::invalid("answers", why));
        }
        let chosen = request.options.iter().find(|it| Some(&it.option_id) == option_id.as_ref());
        let is_in_words = option_id.is_none() && text.is_some();
        if chosen.is_none() && !(is_in_words && request.kind == RequestKind::Question) {
            let known: Vec<&str> = request.options.iter().map(|it| it.option_id.as_str()).collect();
            let why = format!("must be one of {}", known.join(", "));
            return Err(Error::invalid("option_id", why));
        }
        // The agent's protocol has no place for words with such an option.
        if text.is_some() && chosen.is_some_and(|option| !option.text) {
            return Err(Error::invalid("text", "is not taken with this option"));
        }
        let sent = AnswerAgent {
            request_id: request.request_id.clone(),
            option_id: option_id.clone(),
            text: text.clone(),
            by: Some(by.clone()),
            key: self.core.store.agents().answer_key(agent).await?,
        };
        let answered = self.host(agent).answer(&sent).await;
        self.noting_failure(agent, answered).await.map_err(of_host)?;
        let (id, agent) = (request.request_id, agent.clone());
        let answer = RequestAnswerRow { option_id, text, by };
        let write = self.core.store.write(job!(|tx| {
            let unknown = || Error::not_found(ResourceKind::AgentRequest, id.as_str());
            let known = tx.requests().get(&id).await?.ok_or_else(unknown)?;
            match known.answer.clone() {
                None => {
                    tx.requests().close(&id, &answer).await?;
                    if let Some(agent) = tx.agents().get(&agent).await? {
                        tell_closed(tx, &agent, &known, &answer.by).await?;
                    }
                }
                // The host's own event closed the request, and has no text of the answer.
                Some(noted) if noted.option_id == answer.option_id && noted.by == answer.by => {
                    tx.requests().correct(&id, &answer).await?;
                }
                // The daemon denied the request while this answer was on its way to the host.
                Some(denied) if denied.by == TIMEOUT => {
                    let (option, by) = (answer.option_id.clone(), answer.by.clone());
                    if let Some(agent) = tx.agents().get(&agent).await? {
                        close_request(tx, &agent, &id, option, by).await?;
                    }
                    tx.requests().correct(&id, &answer).await?;
                }
                Some(_) => {}
            }
            tx.requests().get(&id).await?.ok_or_else(unknown)
        }));
        write.await
    }
}

fn candidate(request: &RequestRow) -> Candidate {
    let about = format!("{}: {}", request.session_key, request.title);
    Candidate { id: request.request_id.as_str().to_owned(), about }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svc_model::{NewTask, RunId};
    use svc_store::{AssignmentRow, AssignmentState};

    use super::*;
    use crate::service::{
        tasks,
        testing::{insert_agent, opened},
    };

    #[tokio::test]
    async fn request_past_its_deadline_is_denied_without_its_host() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let agent = AgentId::parse("ag_1").unwrap();
        let row = test.store.agents().get(&agent).await.unwrap().unwrap();
        let opened_at = services.now();
        let id = AgentRequestId::parse("req_1").unwrap();
        let deny = json!({ "option_id": "no", "name": "No", "kind": "deny" });
        let request = RequestRow {
            options: vec![serde_json::from_value(deny).unwrap()],
            deadline: Some(opened_at.plus(Duration::from_mins(1))),
            ..RequestRow::new(
                id.clone(),
                Some(agent.clone()),
                (row.info.session_key, row.owned),
                (RequestKind::Permission, "rm".to_owned()),
                None,
                opened_at,
            )
        };
        let write = test.store.write(job!(|tx| tx.requests().insert(&request).await));
        assert!(write.await.unwrap());
        let (core, target) = (services.agents.core.clone(), agent.clone());
        let made = test.store.write(job!(|tx| {
            let made = tasks::make(tx, &core, &Caller::Operator, NewTask::default()).await?;
            let task = made.task.task_id;
            let mut work = [AssignmentRow {
                task_id: Some(task.clone()),
                target_agent: Some(target),
                state: AssignmentState::Running,
                ..AssignmentRow::new(RunId::from_task(&task), "operator".to_owned(), tx.now())
            }];
            tx.assignments().insert(&work[0]).await?;
            wait_for_person(tx, &mut work, Some("pair asks".to_owned())).await?;
            Ok::<_, Error>(task)
        }));
        let task = made.await.unwrap();
        let reason = async || test.store.tasks().get(&task).await.unwrap().unwrap().task.reason;
        let answer = async || {
            services.agents.deny_overdue(&agent).await.unwrap();
            test.store.requests().get(&id).await.unwrap().unwrap().answer
        };
        assert_eq!(answer().await, None);
        assert_eq!(reason().await.as_deref(), Some("pair asks"));
        test.clock.advance(Duration::from_mins(1) + ANSWER_GRACE);
        let (option_id, by) = (Some("no".to_owned()), TIMEOUT.to_owned());
        assert_eq!(answer().await, Some(RequestAnswerRow { option_id, text: None, by }));
        assert_eq!(reason().await, None, "the task asks nobody any more");
        // The host's own answer corrects the denial.
        let (row, key) = (test.store.agents().get(&agent).await.unwrap().unwrap(), id.clone());
        let by = "operator".to_owned();
        let told = test.store.write(job!(|tx| close_request(tx, &row, &key, None, by).await));
        told.await.unwrap();
        let (option_id, by) = (None, "operator".to_owned());
        assert_eq!(answer().await, Some(RequestAnswerRow { option_id, text: None, by }));
    }
}
