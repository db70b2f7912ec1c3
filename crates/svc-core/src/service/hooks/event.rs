//! The service of hooks. It handles one event: recognises the session, writes the effects in one
//! commit, and composes the reply.

use std::{path::Path, sync::Arc};

use futures_util::future::BoxFuture;
use svc_model::{
    Caller, McpSessionId, OpenCalls, Peer, PeerStatus, ProcessIdentity, Timestamp,
    client_session_id,
    hook::{
        self, ClientPrompt, HookAudience, HookClient, HookEvent, HookMoment, HookPolicy,
        HookPrompt, HookReply, HookTiming,
    },
    journal::{Session, SessionSource},
    limits,
    quote::ModelText,
};
use svc_store::{PeerRow, job};
use svc_sys::{client_records, session_secret::SessionSecrets, telemetry};

use super::{
    between_hooks::{AnnouncedCalls, EarlierTexts, MailWaiters, ReportedText},
    write_job::{self, HookCall, HookJobResult, HookWriteJob, SessionProfile},
};
use crate::boxed;
use crate::service::{
    Error, Result,
    access::Access,
    check,
    core::Core,
    handovers::Handovers,
    journal::{ContextQuery, Journal},
    process,
    projects::project_root,
    team::{ActingSession, Team},
};

/// The service of hooks: what coding agents' events change, and the replies to them.
#[derive(Debug, Clone)]
pub struct Hooks {
    pub(super) core: Core,
    pub(super) access: Access,
    pub(super) team: Team,
    pub(super) journal: Journal,
    pub(super) handovers: Handovers,
    /// Finds the session in which an MCP tool is called.
    pub ties: Arc<AnnouncedCalls>,
    pub(super) waiters: Arc<MailWaiters>,
    pub(super) earlier_texts: Arc<EarlierTexts>,
    pub(super) policy: HookPolicy,
}

impl Hooks {
    pub(in crate::service) fn new(
        core: Core,
        access: Access,
        team: Team,
        journal: Journal,
        handovers: Handovers,
        policy: HookPolicy,
    ) -> Self {
        Self {
            core,
            access,
            team,
            journal,
            handovers,
            ties: Arc::default(),
            waiters: Arc::default(),
            earlier_texts: Arc::default(),
            policy,
        }
    }

    /// The session of a client's process, as reported by hooks with the operator's credential.
    #[boxed]
    pub async fn session_of_process(&self, pid: u32) -> Result<Option<String>> {
        Ok(self.core.store.peers().session_of_process(pid).await?)
    }

    /// Stores that an MCP connection belongs to this session.
    #[boxed]
    pub async fn tie_mcp_session(&self, id: &McpSessionId, session: &str) -> Result<()> {
        let (id, session) = (id.clone(), session.to_owned());
        self.core.store.write(job!(|tx| Ok(tx.mcp().tie_session(&id, &session).await?))).await
    }

    /// Removes ids of events that will not be sent again, and the notes of memories and records
    /// that replies gave to sessions which have been silent for long.
    #[boxed]
    pub async fn sweep_hooks(&self) -> Result<()> {
        let now = self.core.now();
        self.core.store.sweeps().forget_hooks(now.minus(limits::HOOK_IDS_KEPT)).await?;
        self.core.store.sweeps().forget_seen_by_silent(now.minus(limits::SEEN_KEPT)).await?;
        Ok(())
    }

    /// Takes back what the replies to these events gave to a session.
    #[boxed]
    pub async fn take_back(
        &self,
        caller: &Caller,
        session: String,
        events: Vec<String>,
    ) -> Result<()> {
        let (core, caller) = (self.core.clone(), caller.clone());
        let store = self.core.store.on_behalf_of(&caller);
        let write = store
            .write(job!(|tx| write_job::take_back(tx, &core, &caller, &session, &events).await));
        write.await
    }

    /// Takes back what the reply to an event gave to the session that a client's process calls
    /// `client_id`.
    #[boxed]
    pub async fn take_back_unprinted(
        &self,
        client_id: &str,
        process: Option<ProcessIdentity>,
        event: String,
    ) -> Result<()> {
        let session = match process {
            Some(process) => self.team.session_in_process(&process, client_id).await?,
            None => client_id.to_owned(),
        };
        self.take_back(&Caller::Operator, session, vec![event]).await
    }
}

/// The session of an event, before the write job decides whose it is.
#[derive(Debug)]
struct FoundSession {
    /// The daemon's id.
    id: String,
    /// Whether the session belongs to the caller.
    is_own: bool,
}

/// What is known of the session when an event arrives.
struct KnownSession {
    acting: ActingSession,
    /// Whether the session belonged to the caller before the event.
    is_own: bool,
    session: Option<Session>,
    peer: Option<Peer>,
    calls: OpenCalls,
    arrived: Timestamp,
}

impl Hooks {
    /// Handles an event and composes the reply.
    ///
    /// # Errors
    /// [`Error::NotYours`] if the session is another principal's and the caller is not a client's
    /// process. (A client's process gets a session of its own for that id.) Then nothing is changed
    /// or handed over.
    pub fn hook<'a>(
        &'a self,
        caller: &'a Caller,
        event: HookEvent,
        call: HookCall,
    ) -> BoxFuture<'a, Result<HookReply>> {
        Box::pin(self.handle(caller, event, call, false))
    }

    async fn handle(
        &self,
        caller: &Caller,
        event: HookEvent,
        call: HookCall,
        is_repeat: bool,
    ) -> Result<HookReply> {
        check_call(&event, &call)?;
        check::key("session_id", Some(&event.session_id))?;
        let session = self.find_session(caller, &event, &call).await?;
        Box::pin(self.act(caller, (event, session), call, is_repeat)).await
    }

    async fn find_session(
        &self,
        caller: &Caller,
        event: &HookEvent,
        call: &HookCall,
    ) -> Result<FoundSession> {
        let id = &event.session_id;
        if self.team.owns(caller, id).await? {
            return Ok(FoundSession { id: id.clone(), is_own: true });
        }
        let id = if call.is_from_hook {
            let there = self.in_folder(caller, event.cwd.as_deref()).await?;
            self.team.session_of_hook(&there, id, call.secret).await?
        } else {
            // A tool call of a model must not begin a second session for another principal's
            // session id.
            self.team.session_of_client(caller, id).await?
        };
        let is_own = self.team.owns(caller, &id).await?;
        Ok(FoundSession { id, is_own })
    }

    async fn act(
        &self,
        caller: &Caller,
        (mut event, session): (HookEvent, FoundSession),
        call: HookCall,
        is_repeat: bool,
    ) -> Result<HookReply> {
        let FoundSession { id, is_own } = session;
        // The session may be begun by another client's process before the write job looks for it.
        // Then a second look, with the event as it came, finds that process.
        let may_look_again = call.is_from_hook && caller.is_client_process() && !is_own;
        let again = (may_look_again && !is_repeat).then(|| (event.clone(), call.clone()));
        event.session_id = id;
        let told = self.earlier_texts.take_off(&caller.principal(), &mut event);
        let known = self.recognise(&event, is_own).await?;
        let reporter = caller;
        let caller = &self.in_its_project(caller, &event, &known, call.is_from_hook).await?;
        let is_small = call.lost.is_empty() && known.is_own;
        if is_small && self.changes_nothing(&event, &known).await? {
            self.announce_call(caller, &event, call.timing, known.arrived);
            return Ok(HookReply::default());
        }
        add_limit_end(&mut event, client_process(caller, &call), known.arrived).await;
        let event = Arc::new(event);
        let (hook_id, timing) = (call.id.clone(), call.timing);
        let writes = self.write(caller, &event, &known, call).await;
        if let (Err(Error::NotYours { .. }), Some((event, call))) = (&writes, again) {
            return Box::pin(self.handle(reporter, event, call, true)).await;
        }
        let writes = writes?;
        self.access.forget(&writes.ended_tokens);
        let begins = matches!(event.moment, HookMoment::Start { .. } | HookMoment::Prompt { .. });
        if event.client == HookClient::Codex && begins {
            self.core.codex_hooks.send_replace(());
        }
        self.follow_output(caller, &event, (timing, told), &writes);
        // The write job has succeeded, so the session is certainly the caller's.
        self.announce_call(caller, &event, timing, known.arrived);
        self.reply(caller, &event, &known, hook_id, writes).await
    }

    /// The session of an event and its peer, as far as they are known. The write job decides who
    /// owns the session.
    async fn recognise(&self, event: &HookEvent, is_own: bool) -> Result<KnownSession> {
        let arrived = self.core.now();
        let session_id = event.session_id.clone();
        let sub_agent = event.is_of_sub_agent().then_some(event.agent_id.as_str());
        check::short("agent_id", sub_agent)?;
        let (peer, calls) = match self.core.store.peers().of_session(&session_id).await? {
            Some(row) => (Some(row.peer), row.open_calls),
            None => (None, OpenCalls::default()),
        };
        let session = self.core.store.sessions().get(&session_id).await?;
        let agent_id = sub_agent.unwrap_or_default().to_owned();
        let acting = ActingSession { session_id, agent_id };
        Ok(KnownSession { acting, is_own, session, peer, calls, arrived })
    }

    /// Where the session's secret is to be kept, if the session gets one with this event: its first
    /// event, and each event with which it begins again. Only a client's process gets one, because
    /// its end can be seen; sessions of other callers never change their owner.
    fn secrets_to_keep(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
    ) -> Option<SessionSecrets> {
        let is_clients_id = client_session_id(&event.session_id) == event.session_id;
        let is_due = caller.process().is_some()
            && is_clients_id
            && (event.is_start() || known.session.is_none());
        self.core.sessions.secrets.as_ref().filter(|_| is_due).cloned()
    }

    /// Remembers that the session is about to call a tool.
    fn announce_call(
        &self,
        caller: &Caller,
        event: &HookEvent,
        timing: HookTiming,
        arrived: Timestamp,
    ) {
        if let (HookMoment::ToolStart(tool), HookTiming::Live) = (&event.moment, timing) {
            self.ties.expect(&caller.principal(), &event.session_id, tool, arrived);
        }
    }

    /// Stores the text that a turn reported when the turn continues with messages, and removes it
    /// when a person's prompt begins a turn.
    fn follow_output(
        &self,
        caller: &Caller,
        event: &HookEvent,
        (timing, told): (HookTiming, Option<ReportedText>),
        writes: &HookJobResult,
    ) {
        let (principal, session) = (caller.principal(), &event.session_id);
        match (&event.moment, told) {
            (HookMoment::Stop { .. }, Some(told)) if writes.mail.is_some() => {
                self.earlier_texts.note(&principal, session, told);
            }
            // A message with which the turn continues is reported as a prompt, too.
            (HookMoment::Prompt { .. }, _) if timing.is_live() && writes.headline.is_none() => {
                self.earlier_texts.forget(&principal, session);
            }
            _ => {}
        }
    }

    /// Whether an event changes nothing that is worth a commit.
    async fn changes_nothing(&self, event: &HookEvent, known: &KnownSession) -> Result<bool> {
        let (Some(session), Some(peer)) = (&known.session, &known.peer) else { return Ok(false) };
        if !hook::is_sign_of_life(event, session, (peer, &known.calls), known.arrived)
            || self.core.store.inboxes().has_mail(&peer.peer_id, known.arrived).await?
        {
            return Ok(false);
        }
        if event.moment != HookMoment::BatchEnd {
            return Ok(true);
        }
        let open = self.core.store.requests().open_prompts().await?;
        Ok(open.iter().all(|row| row.session != event.session_id))
    }

    /// Writes all effects of an event in one commit.
    async fn write(
        &self,
        caller: &Caller,
        event: &Arc<HookEvent>,
        known: &KnownSession,
        call: HookCall,
    ) -> Result<HookJobResult> {
        let process = client_process(caller, &call);
        let pid = match caller {
            Caller::Operator => call.pid,
            // The process that the connection shows counts, not the claimed one.
            Caller::Session { process, .. } => process.as_ref().map(|process| process.pid),
        };
        let job = HookWriteJob {
            core: self.core.clone(),
            caller: caller.clone(),
            event: Arc::clone(event),
            acting: known.acting.clone(),
            arrived: known.arrived,
            call: HookCall { pid, ..call },
            secrets: self.secrets_to_keep(caller, event, known),
            profile: self.profile(caller, event, known).await?,
            is_renamed: known.peer.is_some(),
            has_dialog: has_dialog(event, process.as_ref()).await,
            process,
            policy: self.policy,
        };
        self.core.store.on_behalf_of(caller).write(move |tx| Box::pin(job.run(tx))).await
    }

    /// The caller in the project of the event's session: the session's own project, or for an
    /// unknown session the project of the folder in which the client's hook runs. One process may
    /// have sessions in several projects.
    async fn in_its_project(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
        is_from_hook: bool,
    ) -> Result<Caller> {
        let folder = event.cwd.as_deref().filter(|_| is_from_hook);
        let own = known.session.as_ref().filter(|_| known.is_own && caller.is_client_process());
        match own.and_then(|session| session.project.as_deref()) {
            Some(project) => self.core.projects.caller_in(caller, project, folder).await,
            None => self.in_folder(caller, folder).await,
        }
    }

    /// The caller in the project of the folder that the client's hook names.
    async fn in_folder(&self, caller: &Caller, folder: Option<&str>) -> Result<Caller> {
        let Some(folder) = folder.filter(|_| caller.is_client_process()) else {
            return Ok(caller.clone());
        };
        let project = self.core.projects.of_folder(folder).await?;
        self.core.projects.caller_in(caller, &project, Some(folder)).await
    }

    async fn profile(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
    ) -> Result<SessionProfile> {
        // Finding a project's root reads the disk, and a known session has its project already.
        let is_away = known.peer.as_ref().is_none_or(|peer| peer.status == PeerStatus::Offline);
        let is_new = known.session.is_none() || is_away || event.is_start();
        let cwd = event.cwd.as_deref().filter(|_| is_new);
        let project = self.core.projects.to_start(caller, cwd).await?;
        let root = match caller.session() {
            Some(_) => caller.root().map(str::to_owned),
            None => cwd.map(project_root),
        };
        let base = base_name(event.client, root.as_deref());
        let needs_name = match &known.peer {
            _ if event.is_of_sub_agent() => false,
            None => true,
            // The peer comes back. Another peer may have its name by now, or the name without a
            // number may be free again.
            Some(own) => own.status == PeerStatus::Offline && is_numbered(&own.display_name, &base),
        };
        let peer_name =
            if needs_name { Some(self.free_peer_name(&base, known).await?) } else { None };
        Ok(SessionProfile { project, root, peer_name })
    }

    /// A name for a session's peer: client and folder, with a number if another peer that is
    /// present has that name. Names of absent peers are not reserved.
    async fn free_peer_name(&self, base: &str, known: &KnownSession) -> Result<String> {
        let own = known.peer.as_ref().map(|peer| &peer.peer_id);
        let mut name = base.to_owned();
        for number in 2..limits::PEER_NAMES {
            let namesakes = self.namesakes(&name).await?;
            let is_free = namesakes.iter().all(|row| {
                Some(&row.peer.peer_id) == own || row.peer.status == PeerStatus::Offline
            });
            if is_free {
                break;
            }
            name = format!("{base}-{number}");
        }
        Ok(name)
    }

    /// Peers of this name. If the process of one has ended and its row does not say so yet, sweeps
    /// the peers first.
    async fn namesakes(&self, name: &str) -> Result<Vec<PeerRow>> {
        let rows = self.core.store.peers().named(name, limits::PAGE_DEFAULT).await?;
        let is_gone = |row: &PeerRow| {
            row.peer.status != PeerStatus::Offline
                && row.process().is_some_and(|process| self.core.is_gone(&process))
        };
        if !rows.iter().any(is_gone) {
            return Ok(rows);
        }
        self.team.sweep_peers().await?;
        Ok(self.core.store.peers().named(name, limits::PAGE_DEFAULT).await?)
    }

    /// Composes the reply for the event's audience.
    async fn reply(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
        hook_id: Option<String>,
        writes: HookJobResult,
    ) -> Result<HookReply> {
        if writes.held.is_some() {
            return Ok(HookReply { held: writes.held, ..HookReply::default() });
        }
        let (reminder, run) = (writes.reminder, writes.run);
        match writes.audience {
            HookAudience::Nobody => Ok(HookReply::default()),
            HookAudience::SubAgent => Ok(HookReply { reminder, run, ..HookReply::default() }),
            HookAudience::Session => {
                let source = hook::session_source_of_start(event, known.peer.as_ref());
                // A record that the client does not show must not count as told.
                let record = match source.filter(|_| event.takes_context()) {
                    Some(source) => {
                        let hook_id = hook_id.as_deref();
                        self.open_record(caller, &known.acting, source, hook_id).await?
                    }
                    None => None,
                };
                let context = self.context_of_prompt(caller, event, hook_id).await;
                let (mail, headline) = (writes.mail, writes.headline);
                Ok(HookReply { held: None, mail, record, reminder, run, context, headline })
            }
        }
    }

    /// An open record that a session should be told of when it begins: its own, or one that was
    /// left open in its project and of which no session has been told since.
    async fn open_record(
        &self,
        caller: &Caller,
        acting: &ActingSession,
        source: SessionSource,
        hook_id: Option<&str>,
    ) -> Result<Option<ModelText>> {
        if let Some(own) = self.core.store.ghaps().active(&acting.session_id).await? {
            return Ok(Some(hook::own_record_note(&own)));
        }
        if !matches!(source, SessionSource::Startup | SessionSource::Clear | SessionSource::Resume)
        {
            return Ok(None);
        }
        for orphan in self.journal.orphans(caller, acting).await? {
            let (id, session) = (orphan.id.clone(), acting.session_id.clone());
            let hook_id = hook_id.map(str::to_owned);
            let is_first: Result<bool> = self
                .core
                .store
                .on_behalf_of(caller)
                .write(job!(|tx| {
                    let hook = hook_id.as_deref();
                    // The reply may have been given up since the event was written.
                    if let Some(hook) = hook
                        && tx.hooks().is_lost(hook).await?
                    {
                        return Ok::<_, Error>(false);
                    }
                    Ok(tx.seen().note_orphan_offer(&id, &session, hook).await?)
                }))
                .await;
            if is_first? {
                return Ok(Some(hook::abandoned_record_note(&orphan)));
            }
        }
        Ok(None)
    }

    /// The context that the journal has for a prompt, as Markdown; `None` for most prompts.
    async fn context_of_prompt(
        &self,
        caller: &Caller,
        event: &HookEvent,
        hook_id: Option<String>,
    ) -> Option<ModelText> {
        let HookMoment::Prompt { text } = &event.moment else { return None };
        if !self.policy.context || text.trim().is_empty() || !event.takes_context() {
            return None;
        }
        let request = ContextQuery {
            query: text.chars().take(limits::SEARCH_QUERY_CHARS).collect(),
            session_id: event.session_id.clone(),
            kinds: Vec::new(),
            limit: limits::HOOK_CONTEXT_ITEMS,
            budget: limits::HOOK_CONTEXT_BYTES,
            repeat: false,
            hook_id,
        };
        match self.journal.assemble_context(caller, request).await {
            Ok(context) => (!context.markdown.is_empty()).then_some(context.markdown),
            // The messages in the same reply already count as handed over, so the reply goes out
            // without context.
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot find context for a prompt");
                None
            }
        }
    }
}

/// The name that the daemon gives to a session's peer: client and folder.
fn base_name(client: HookClient, root: Option<&str>) -> String {
    let client = client.as_str();
    match root.map(Path::new).and_then(Path::file_name) {
        Some(folder) => format!("{client}@{}", folder.to_string_lossy()),
        None => client.to_owned(),
    }
}

/// The process of the client that calls a hook, if it runs.
fn client_process(caller: &Caller, call: &HookCall) -> Option<ProcessIdentity> {
    match caller {
        Caller::Operator => call.pid.and_then(process::running),
        // The process that the connection shows counts, not the claimed one. If the system does not
        // list processes, there is none.
        Caller::Session { process, .. } => {
            process.as_deref().filter(|process| !process.started.is_empty()).cloned()
        }
    }
}

/// Adds the end of a usage limit to a refusal, if the client has recorded it.
async fn add_limit_end(event: &mut HookEvent, process: Option<ProcessIdentity>, now: Timestamp) {
    let HookMoment::Refused(limit) = &mut event.moment else { return };
    let (None, Some(process)) = (limit.until, process) else { return };
    let (backend, session) = (event.client.as_str().to_owned(), event.session_id.clone());
    let read = move || client_records::limit_end(&backend, &process, &session, now);
    limit.until = tokio::task::spawn_blocking(read).await.ok().flatten();
}

/// Whether the client shows the reported prompt to a person, according to its own record.
async fn has_dialog(event: &HookEvent, process: Option<&ProcessIdentity>) -> bool {
    let HookMoment::Waiting(HookPrompt { asks: Some(asks), .. }) = &event.moment else {
        return false;
    };
    if let ClientPrompt::Opencode(_) = **asks {
        // The plugin of opencode runs in the process that shows the dialog.
        return true;
    }
    let Some(process) = process.cloned() else { return false };
    let session = event.session_id.clone();
    let read = move || client_records::shows_dialogs(client_records::CLAUDE, &process, &session);
    tokio::task::spawn_blocking(read).await.unwrap_or(false)
}

/// Whether the daemon gave a session's peer its name: the base name, or the base name with a
/// number.
fn is_numbered(name: &str, base: &str) -> bool {
    let is_number = |end: &str| !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix(base)
        .is_some_and(|end| end.is_empty() || end.strip_prefix('-').is_some_and(is_number))
}

fn check_call(event: &HookEvent, call: &HookCall) -> Result<()> {
    for (field, text) in [("id", &call.id), ("tmux_pane", &call.tmux_pane)] {
        check::short(field, text.as_deref())?;
    }
    write_job::check_lost(&call.lost)?;
    check::key("cwd", event.cwd.as_deref())
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Future as _, poll_fn},
        pin::pin,
        task::Poll,
    };

    use serde_json::json;
    use svc_model::{BudgetKind, MessageType, TokenId, session_id_in_process};
    use svc_store::testing::TestStore;

    use super::*;
    use crate::service::{
        Services, Tuning,
        hooks::mail_wait::{MailWait, MailWaiter},
        team,
        testing::{insert_agent, opened, services, services_in, services_with, session},
    };

    /// A hook has little time, and may disconnect before the reply. Its event is written all the
    /// same, with the secret by which the session can be taken over.
    #[tokio::test]
    async fn a_hook_that_leaves_early_leaves_no_session_without_its_secret() {
        let (test, home) = (TestStore::open().await, tempfile::tempdir().unwrap());
        let services = services_in(&test, home.path());
        let process = ProcessIdentity { pid: std::process::id(), started: "1".to_owned() };
        let caller = Caller::Session {
            key: "client-1".into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: Arc::new([]),
            project: Some("/p".into()),
            process: Some(Arc::new(process)),
            root: None,
            folder: None,
        };
        let payload = json!({
            "session_id": "s", "hook_event_name": "SessionStart", "source": "startup", "cwd": "/p",
        });
        let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
        {
            let mut told = pin!(services.hooks.hook(&caller, event, HookCall::default()));
            let mut is_over = false;
            // The hook disconnects as soon as its session is on record.
            while test.store.sessions().get("s").await.unwrap().is_none() {
                assert!(!is_over, "a session after the answer");
                is_over =
                    poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_ready())).await;
                tokio::task::yield_now().await;
            }
        }
        assert!(SessionSecrets::in_home(home.path()).read("s").is_some());
    }

    /// Puts a message of the operator into the inbox of a session.
    async fn tell_session(
        test: &TestStore,
        services: &Services,
        session: &str,
        text: &str,
    ) -> Result<()> {
        let Some(row) = test.store.peers().of_session(session).await? else {
            panic!("{session} has no peer");
        };
        let message = team::plain_message(text.to_owned(), MessageType::Notification);
        let to = row.peer.peer_id.as_str();
        services.team.send_message(&Caller::Operator, to, message).await.map(|_| ())
    }

    /// A process for each of two clients.
    fn callers_of(processes: &[ProcessIdentity; 2]) -> [Caller; 2] {
        [0, 1].map(|at: usize| Caller::Session {
            key: format!("client-{at}").into(),
            token: TokenId::from(format!("tok_{at}")),
            scopes: Arc::new([]),
            project: None,
            process: Some(Arc::new(processes[at].clone())),
            root: None,
            folder: None,
        })
    }

    /// The end of the client is noticed, so its peer's row has no process, before its waiter ends.
    #[tokio::test]
    async fn waiter_of_a_dead_client_gets_no_message() {
        let (test, services) = opened().await;
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let process = process::identity(child.id());
        let folder = folder.path().display().to_string();
        let report = services.access.caller_of_report(process, "claude-code", Some(folder.clone()));
        let caller = report.await.unwrap();
        for name in ["SessionStart", "Stop"] {
            let payload = json!({ "session_id": "k", "hook_event_name": name, "cwd": folder });
            let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
            let call = HookCall { is_from_hook: true, ..HookCall::default() };
            services.hooks.hook(&caller, event, call).await.unwrap();
        }
        let given = async |id: &str| {
            tell_session(&test, &services, "k", "is it green?").await.unwrap();
            let waiter = MailWaiter { id: id.to_owned(), lost: Vec::new() };
            let now = std::future::ready(());
            services.hooks.await_mail(&caller, "k", waiter, now).await.unwrap()
        };
        assert!(matches!(given("1").await, MailWait::Message(_)), "the client lives");
        test.execute("update peer set pid = null, process_started = null").await;
        test.execute("delete from hook_seen; update message set state = 'acked'").await;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(given("2").await, MailWait::Nothing);
    }

    /// The spool has the id by which the client knows its session.
    #[tokio::test]
    async fn what_a_session_with_an_id_of_its_own_did_not_print_is_given_again() {
        let test = TestStore::open().await;
        let services = services(&test);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let processes = [std::process::id(), child.id()].map(process::identity);
        let callers = callers_of(&processes);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let tell = async |at: usize, id: &str, mut payload: serde_json::Value| {
            payload["session_id"] = json!("s");
            payload["cwd"] = json!(folders[at].path());
            let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
            let id = Some(id.to_owned());
            let call = HookCall { id, is_from_hook: true, ..HookCall::default() };
            services.hooks.hook(&callers[at], event, call).await.unwrap()
        };
        let start = json!({ "hook_event_name": "SessionStart", "source": "startup" });
        tell(0, "start-0", start.clone()).await;
        tell(1, "start-1", start).await;
        let own = session_id_in_process("s", &processes[1]);
        tell_session(&test, &services, &own, "precious").await.unwrap();
        let used = json!({
            "hook_event_name": "PostToolUse", "tool_name": "Read", "tool_use_id": "t",
            "tool_input": {},
        });
        assert_ne!(tell(1, "first", used.clone()).await, HookReply::default());
        let process = Some(processes[1].clone());
        services.hooks.take_back_unprinted("s", process, "first".to_owned()).await.unwrap();
        assert_ne!(tell(1, "second", used.clone()).await, HookReply::default());
        assert_eq!(tell(1, "third", used).await, HookReply::default(), "it was printed");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn lost_ids_neither_refuse_an_event_nor_take_the_rows_of_their_session() {
        let test = TestStore::open().await;
        let mut tuning = Tuning::default();
        tuning.budget.set(BudgetKind::Rows, 20);
        let services = services_with(&test, tuning);
        let caller = session("greedy", &[]);
        let tell = async |name: &str, id: &str, lost: Vec<String>| {
            let payload = json!({
                "session_id": "s", "hook_event_name": name, "tool_name": "Read",
                "tool_use_id": id, "tool_input": {}, "cwd": "/p",
            });
            let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
            let call = HookCall { id: Some(id.to_owned()), lost, ..HookCall::default() };
            services.hooks.hook(&caller, event, call).await.unwrap()
        };
        tell("SessionStart", "begin", Vec::new()).await;
        tell_session(&test, &services, "s", "precious").await.unwrap();
        assert_ne!(tell("PostToolUse", "first", Vec::new()).await, HookReply::default());
        // The session may keep fewer rows than it reports ids.
        let others = (0..100).map(|number| format!("lost-{number}"));
        let lost: Vec<_> = std::iter::once("first".to_owned()).chain(others).collect();
        for id in ["second", "third"] {
            // Nobody saw the answers before this one either.
            let lost = lost.iter().cloned().chain((id == "third").then(|| "second".to_owned()));
            let reply = tell("PostToolUse", id, lost.collect()).await;
            assert_ne!(reply, HookReply::default(), "{id}");
        }
        // Half of the rows are left for what the session asks for.
        let budget = services.hooks.core.budget.clone();
        let check = test.store.write(job!(|tx| budget.check_rows(tx, &caller, 10).await));
        check.await.unwrap();
    }

    /// Both processes see that the session id is free, and then one process takes the id.
    #[tokio::test]
    async fn two_processes_that_begin_one_id_at_once_have_a_session_each() {
        let test = TestStore::open().await;
        let services = services(&test);
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let processes = [std::process::id(), child.id()].map(process::identity);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let callers = callers_of(&processes);
        for round in 0..10 {
            let id = format!("s-{round}");
            let begin = |at: usize| {
                let payload = json!({
                    "session_id": id, "hook_event_name": "SessionStart", "source": "startup",
                    "cwd": folders[at].path(),
                });
                let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
                let call = HookCall { is_from_hook: true, ..HookCall::default() };
                services.hooks.hook(&callers[at], event, call)
            };
            let (one, other) = tokio::join!(begin(0), begin(1));
            one.unwrap();
            other.unwrap();
            let sessions = test.store.sessions();
            assert!(sessions.get(&id).await.unwrap().is_some());
            let mut apart = 0;
            for process in &processes {
                let own = session_id_in_process(&id, process);
                apart += usize::from(test.store.sessions().get(&own).await.unwrap().is_some());
            }
            assert_eq!(apart, 1, "{id}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Nobody takes over the row of a removed session, which stays for the session's records.
    #[tokio::test]
    async fn client_that_resumes_a_removed_session_has_a_session_of_its_own() {
        let test = TestStore::open().await;
        let services = services(&test);
        test.execute(
            "
            insert into session (session_id, source, created_by, started_at, last_seen_at, ended_at)
            values ('kept', 'startup', 'removed', 1, 1, 1)",
        )
        .await;
        let process = process::identity(std::process::id());
        let [caller, _] = callers_of(&[process.clone(), process.clone()]);
        let folder = tempfile::tempdir().unwrap();
        let payload = json!({
            "session_id": "kept", "hook_event_name": "SessionStart", "source": "resume",
            "cwd": folder.path(),
        });
        let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
        let call = HookCall { is_from_hook: true, ..HookCall::default() };
        services.hooks.hook(&caller, event, call).await.unwrap();
        let own = session_id_in_process("kept", &process);
        assert!(test.store.sessions().get(&own).await.unwrap().is_some());
        assert!(test.store.sessions().get("kept").await.unwrap().is_none());
    }

    /// The agent was started with `cleanup: delete`, and its event was on the way.
    #[tokio::test]
    async fn late_event_of_a_removed_agent_begins_no_session() {
        let (test, services) = opened().await;
        insert_agent(&test).await;
        let processes = [std::process::id(); 2].map(process::identity);
        let [mut caller, _] = callers_of(&processes);
        if let Caller::Session { key, .. } = &mut caller {
            *key = "agent:pair:one".into();
        }
        let tell = async |id: &str, name: &str, timing: HookTiming| {
            let payload = json!({
                "session_id": id, "hook_event_name": name, "source": "startup", "prompt": "go",
                "cwd": "/p",
            });
            let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
            let call = HookCall { timing, is_from_hook: true, ..HookCall::default() };
            let reply = services.hooks.hook(&caller, event, call).await.unwrap();
            let peer = test.store.peers().of_session(id).await.unwrap();
            (reply, test.store.sessions().get(id).await.unwrap().is_some(), peer.is_some())
        };
        let (_, is_begun, _) = tell("before", "SessionStart", HookTiming::Live).await;
        assert!(is_begun);
        test.execute("delete from agent").await;
        for timing in [HookTiming::Live, HookTiming::Late { happened_at: services.now() }] {
            for name in ["SessionStart", "UserPromptSubmit", "Stop"] {
                let told = tell("after", name, timing).await;
                assert_eq!(told, (HookReply::default(), false, false), "{name} {timing:?}");
            }
        }
    }

    /// One process has looked for the session when another takes the id. The write job refuses, and
    /// a second look, with the event as it came, finds that the id is taken.
    #[tokio::test]
    async fn second_look_for_a_session_has_the_whole_event() {
        let test = TestStore::open().await;
        let services = services(&test);
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let processes = [std::process::id(), child.id()].map(process::identity);
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let callers = callers_of(&processes);
        let event_of = |at: usize, name: &str, words: &str| {
            let payload = json!({
                "session_id": "late", "hook_event_name": name, "source": "startup",
                "prompt_response": words, "cwd": folders[at].path(),
            });
            hook::read(HookClient::Gemini, None, &payload).unwrap()
        };
        let (hooks, call) =
            (&services.hooks, HookCall { is_from_hook: true, ..HookCall::default() });
        let mut earlier = event_of(1, "AfterAgent", "first");
        let principal = callers[1].principal();
        let told = hooks.earlier_texts.take_off(&principal, &mut earlier).unwrap();
        hooks.earlier_texts.note(&principal, "late", told);
        let late = event_of(1, "AfterAgent", "first\nsecond");
        let found = hooks.find_session(&callers[1], &late, &call).await.unwrap();
        for at in [0, 1] {
            let start = event_of(at, "SessionStart", "");
            hooks.hook(&callers[at], start, call.clone()).await.unwrap();
        }
        let own = session_id_in_process("late", &processes[1]);
        tell_session(&test, &services, &own, "go on").await.unwrap();
        let stop = HookCall { id: Some("stop".to_owned()), ..call };
        let acted = Box::pin(hooks.act(&callers[1], (late, found), stop, false)).await;
        let reply = acted.unwrap();
        assert_ne!(reply, HookReply::default(), "its turn goes on with the message");
        let mut next = event_of(1, "AfterAgent", "first\nsecond\nthird");
        next.session_id = own;
        hooks.earlier_texts.take_off(&principal, &mut next);
        let HookMoment::Stop { words: Some(words), .. } = next.moment else { panic!("words") };
        assert_eq!(words, "third");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
