//! One event: the session is recognised, what follows is written in one commit, and the reply is composed.

use std::{path::Path, sync::Arc};

use super::{
    room::Hooks,
    unseen,
    write_job::{HookWriteJob, HookWrites},
};
use crate::{
    domain::{
        Caller, ClientProcess, Peer, PeerStatus, Timestamp, TokenHash,
        hook::{
            self, HookAudience, HookClient, HookEvent, HookMoment, HookNote, HookReply, HookTiming,
            ReplyParts,
        },
        journal::{Session, SessionSource},
        limits,
        quote::ModelText,
    },
    service::{
        Error, check,
        journal::ContextRequest,
        process,
        project::project_to_start,
        team::{self, ActingSession},
    },
    session_secret::SessionSecrets,
    store::PeerRow,
    telemetry,
};

/// What comes with an event, beside the client's own payload.
#[derive(Debug, Clone, Default)]
pub struct HookCall {
    /// Names the event: one that is sent again counts once. A late repeat shows that nobody saw the first reply.
    pub id: Option<String>,
    /// The client's process on the daemon's machine.
    pub pid: Option<u32>,
    /// The tmux pane that it runs in.
    pub tmux_pane: Option<String>,
    /// Whether the hook waits for the reply.
    pub timing: HookTiming,
    /// Ids of this session's events whose replies nobody saw, or will see.
    pub lost: Vec<String>,
    /// SHA-256 of the session's secret, which the hook read in the data folder.
    pub secret: Option<TokenHash>,
}

/// What is known of the session when an event arrives.
struct KnownSession {
    acting: ActingSession,
    /// Whether it was the caller's already.
    is_own: bool,
    session: Option<Session>,
    peer: Option<Peer>,
    arrived: Timestamp,
}

/// What an event may write of a session that is not known yet or begins.
struct SessionProfile {
    /// Root of its project.
    project: Option<String>,
    /// The name of its peer, if it has none yet.
    peer_name: Option<String>,
}

impl Hooks {
    /// Takes in an event, and composes the reply.
    ///
    /// # Errors
    /// [`Error::NotYours`] if the session is another principal's, and the hook does not show that it is its client's;
    /// [`Error::Conflict`] if it does, and another process of that client lives. Then nothing is changed or given.
    pub async fn hook(
        &self,
        caller: &Caller,
        event: HookEvent,
        call: HookCall,
    ) -> Result<HookReply, Error> {
        check_call(&event, &call)?;
        let known = self.recognise(caller, &event).await?;
        let is_small = call.lost.is_empty() && known.is_own;
        if is_small && self.changes_nothing(&event, &known).await? {
            self.announce_call(caller, &event, call.timing, known.arrived);
            return Ok(HookReply::default());
        }
        let event = Arc::new(event);
        let (hook_id, timing) = (call.id.clone(), call.timing);
        let writes = self.write(caller, &event, &known, call).await?;
        self.access.forget(&writes.ended_tokens);
        // Only now it is certain that the session is the caller's.
        self.announce_call(caller, &event, timing, known.arrived);
        self.reply(caller, &event, &known, hook_id, writes).await
    }

    /// The session of an event, and its peer, as they are known so far. Whose it is, the write job decides.
    async fn recognise(&self, caller: &Caller, event: &HookEvent) -> Result<KnownSession, Error> {
        let arrived = self.core.now();
        let session_id = event.session_id.clone();
        check::key("session_id", Some(&session_id))?;
        let sub_agent = event.is_of_sub_agent().then_some(event.agent_id.as_str());
        check::short("agent_id", sub_agent)?;
        let is_own = self.team.owns(caller, &session_id).await?;
        let peer = self.core.store.peer_of_session(&session_id).await?.map(|row| row.peer);
        let session = self.core.store.session(&session_id).await?;
        let agent_id = sub_agent.unwrap_or_default().to_owned();
        let acting = ActingSession { session_id, agent_id };
        Ok(KnownSession { acting, is_own, session, peer, arrived })
    }

    /// Where the session's secret is to be kept, if the event is one with which a session gets it: its first event, and each
    /// with which it begins again. It takes a client's process, whose end can be seen: nothing goes over from anybody else.
    fn secrets_to_keep(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
    ) -> Option<SessionSecrets> {
        let is_due = caller.process().is_some() && (event.is_start() || known.session.is_none());
        self.core.session_secrets().filter(|_| is_due).cloned()
    }

    /// Remembers that a tool is about to be called in the session.
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

    /// Whether an event changes nothing that is worth a commit.
    async fn changes_nothing(
        &self,
        event: &HookEvent,
        known: &KnownSession,
    ) -> Result<bool, Error> {
        let (Some(session), Some(peer)) = (&known.session, &known.peer) else { return Ok(false) };
        Ok(hook::is_sign_of_life(event, session, peer, known.arrived)
            && !self.core.store.has_mail(&peer.peer_id, known.arrived).await?)
    }

    /// Writes all that follows from an event, in one commit.
    async fn write(
        &self,
        caller: &Caller,
        event: &Arc<HookEvent>,
        known: &KnownSession,
        call: HookCall,
    ) -> Result<HookWrites, Error> {
        let process = match caller {
            Caller::Operator => call.pid.and_then(process::running),
            // What is known counts, and not what is claimed. Where the system lists no processes, nothing is.
            Caller::Session { process, .. } => {
                process.as_deref().filter(|process| !process.started.is_empty()).cloned()
            }
        };
        let SessionProfile { project, peer_name } =
            self.profile(caller, event, known, process.as_ref()).await?;
        let job = HookWriteJob {
            core: self.core.clone(),
            caller: caller.clone(),
            budget: self.core.budget.clone(),
            event: Arc::clone(event),
            acting: known.acting.clone(),
            arrived: known.arrived,
            id: call.id,
            timing: call.timing,
            lost: call.lost,
            shown: call.secret,
            secrets: self.secrets_to_keep(caller, event, known),
            project,
            peer_name,
            is_renamed: known.peer.is_some(),
            process,
            pid: match caller {
                Caller::Operator => call.pid,
                // What is known counts, and not what is claimed.
                Caller::Session { process, .. } => process.as_ref().map(|process| process.pid),
            },
            tmux_pane: call.tmux_pane,
            ids: self.core.ids.clone(),
            lease: self.core.tuning.lease,
            policy: self.policy,
        };
        self.core.store.on_behalf_of(caller).write(move |tx| Box::pin(job.run(tx))).await
    }

    async fn profile(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
        process: Option<&ClientProcess>,
    ) -> Result<SessionProfile, Error> {
        // Finding a project's root looks at the disk, and a known session has its project already.
        let is_new = known.session.is_none() || known.peer.is_none() || event.is_start();
        let cwd = event.cwd.as_deref().filter(|_| is_new);
        let project = project_to_start(caller, cwd);
        let base = base_name(event.client, project.as_deref());
        let needs_name = match &known.peer {
            _ if event.is_of_sub_agent() => false,
            None => true,
            // It comes back, and another has or had its name by now.
            Some(own) => event.is_start() && self.is_taken_from(own, &base).await?,
        };
        let peer_name =
            if needs_name { Some(self.free_peer_name(&base, known, process).await?) } else { None };
        Ok(SessionProfile { project, peer_name })
    }

    /// Whether a peer that is here has the name that the daemon once gave to this one.
    async fn is_taken_from(&self, own: &Peer, base: &str) -> Result<bool, Error> {
        if !own.display_name.starts_with(base) {
            return Ok(false);
        }
        if own.is_put_aside() {
            return Ok(true);
        }
        let namesakes =
            self.core.store.peers_named(&own.display_name, limits::PAGE_DEFAULT).await?;
        let is_taken_by = |row: &PeerRow| {
            row.peer.peer_id != own.peer_id && row.peer.status != PeerStatus::Offline
        };
        Ok(namesakes.iter().any(is_taken_by))
    }

    /// A name for a session's peer: client and folder, with a number if another has that name, or had it lately.
    async fn free_peer_name(
        &self,
        base: &str,
        known: &KnownSession,
        process: Option<&ClientProcess>,
    ) -> Result<String, Error> {
        let own = known.peer.as_ref().map(|peer| &peer.peer_id);
        let mut name = base.to_owned();
        for number in 2..limits::PEER_NAMES {
            let mut is_free = true;
            for row in self.namesakes(&name).await? {
                is_free &= Some(&row.peer.peer_id) == own
                    || self.frees_its_name(&row, process, known.arrived).await?;
            }
            if is_free {
                break;
            }
            name = format!("{base}-{number}");
        }
        Ok(name)
    }

    /// Peers of this name. Of one whose process is gone the daemon may not have heard yet.
    async fn namesakes(&self, name: &str) -> Result<Vec<PeerRow>, Error> {
        let rows = self.core.store.peers_named(name, limits::PAGE_DEFAULT).await?;
        let is_gone = |row: &PeerRow| {
            row.peer.status != PeerStatus::Offline
                && row.process().is_some_and(|process| !process::is_running(&process))
        };
        if !rows.iter().any(is_gone) {
            return Ok(rows);
        }
        self.team.sweep_peers().await?;
        Ok(self.core.store.peers_named(name, limits::PAGE_DEFAULT).await?)
    }

    async fn frees_its_name(
        &self,
        row: &PeerRow,
        process: Option<&ClientProcess>,
        now: Timestamp,
    ) -> Result<bool, Error> {
        // The sessions of one process follow each other, as after `/clear`.
        let is_predecessor = process.is_some() && row.process().as_ref() == process;
        let is_unmentioned = row.peer.status == PeerStatus::Offline
            && !self.was_killed(&row.peer).await?
            && self.core.store.is_unmentioned(&row.peer.peer_id).await?;
        Ok(row.peer.frees_its_name(is_predecessor, is_unmentioned, now))
    }

    /// Whether a peer's session is over because its process is gone: who killed it may resume it.
    async fn was_killed(&self, peer: &Peer) -> Result<bool, Error> {
        let Some(session) = &peer.session_id else { return Ok(false) };
        let session = self.core.store.session(session).await?;
        Ok(session.is_some_and(|session| session.end_reason.as_deref() == Some(team::PROCESS_GONE)))
    }

    /// Composes the reply for whoever reads it.
    async fn reply(
        &self,
        caller: &Caller,
        event: &HookEvent,
        known: &KnownSession,
        hook_id: Option<String>,
        writes: HookWrites,
    ) -> Result<HookReply, Error> {
        let (reminder, run) = (writes.reminder, writes.run);
        match writes.audience {
            HookAudience::Nobody => Ok(HookReply::default()),
            HookAudience::SubAgent => {
                Ok(ReplyParts { reminder, run, ..ReplyParts::default() }.into())
            }
            HookAudience::Session => {
                let source = hook::session_source_of_start(event, known.peer.as_ref());
                // What the client does not take would count as told.
                let record = match source.filter(|_| event.takes_context()) {
                    Some(source) => {
                        let hook_id = hook_id.as_deref();
                        self.open_record(caller, &known.acting, source, hook_id).await?
                    }
                    None => None,
                };
                let context = self.context_of_prompt(caller, event, hook_id).await;
                let (is_start, mail, headline) = (event.is_start(), writes.mail, writes.headline);
                Ok(ReplyParts { is_start, record, reminder, run, mail, headline, context }.into())
            }
        }
    }

    /// An open record that a session should know of when it begins: its own, or one that was left open in its project and
    /// that no session has been told of since.
    async fn open_record(
        &self,
        caller: &Caller,
        acting: &ActingSession,
        source: SessionSource,
        hook_id: Option<&str>,
    ) -> Result<Option<HookNote>, Error> {
        if let Some(own) = self.core.store.active_ghap(&acting.session_id).await? {
            return Ok(Some(hook::own_record_note(&own)));
        }
        if !matches!(source, SessionSource::Startup | SessionSource::Clear | SessionSource::Resume)
        {
            return Ok(None);
        }
        for orphan in self.journal.orphans(caller, acting).await? {
            let (id, session) = (orphan.id.clone(), acting.session_id.clone());
            let hook_id = hook_id.map(str::to_owned);
            let is_first: Result<bool, Error> = self
                .core
                .store
                .on_behalf_of(caller)
                .write(move |tx| {
                    Box::pin(async move {
                        Ok(tx.note_orphan_offer(&id, &session, hook_id.as_deref()).await?)
                    })
                })
                .await;
            if is_first? {
                return Ok(Some(hook::abandoned_record_note(&orphan)));
            }
        }
        Ok(None)
    }

    /// What the team knows about a prompt, as Markdown; nothing for most.
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
        let request = ContextRequest {
            query: text.chars().take(limits::SEARCH_QUERY_CHARS).collect(),
            session_id: Some(event.session_id.clone()),
            project: None,
            kinds: Vec::new(),
            limit: limits::HOOK_CONTEXT_ITEMS,
            budget: limits::HOOK_CONTEXT_BYTES,
            repeat: false,
            remember: true,
            hook_id,
        };
        match self.journal.assemble_context(caller, &request).await {
            Ok(context) => (!context.markdown.is_empty()).then_some(context.markdown),
            // The messages in the same reply count as handed over, so the reply goes out without context.
            Err(error) => {
                let error = telemetry::chain(&error);
                tracing::warn!(error, "cannot look for what a prompt brings up");
                None
            }
        }
    }
}

/// What the daemon calls a session's peer: client and folder.
fn base_name(client: HookClient, project: Option<&str>) -> String {
    let client = client.as_str();
    match project.map(Path::new).and_then(Path::file_name) {
        Some(folder) => format!("{client}@{}", folder.to_string_lossy()),
        None => client.to_owned(),
    }
}

fn check_call(event: &HookEvent, call: &HookCall) -> Result<(), Error> {
    for (field, text) in [("id", &call.id), ("tmux_pane", &call.tmux_pane)] {
        check::short(field, text.as_deref())?;
    }
    unseen::check_lost(&call.lost)?;
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

    use super::*;
    use crate::{domain::TokenId, service::testing::services, store::testing::TestStore};

    /// A hook has little time, and may leave before its answer. What it told is written all the same, and so is the secret by
    /// which its session is taken up again.
    #[tokio::test]
    async fn a_hook_that_leaves_early_leaves_no_session_without_its_secret() {
        let (test, home) = (TestStore::open().await, tempfile::tempdir().unwrap());
        let services = services(&test).with_home(home.path());
        let process = ClientProcess { pid: std::process::id(), started: "1".to_owned() };
        let caller = Caller::Session {
            key: "client-1".into(),
            token: TokenId::from("tok_1".to_owned()),
            scopes: Arc::new([]),
            project: Some("/p".into()),
            process: Some(Arc::new(process)),
            folder: None,
        };
        let payload = json!({
            "session_id": "s", "hook_event_name": "SessionStart", "source": "startup", "cwd": "/p",
        });
        let event = hook::read(HookClient::ClaudeCode, None, &payload).unwrap();
        {
            let mut told = pin!(services.hooks.hook(&caller, event, HookCall::default()));
            let mut is_over = false;
            // It leaves as soon as its session is on record.
            while test.store.session("s").await.unwrap().is_none() {
                assert!(!is_over, "a session after the answer");
                is_over =
                    poll_fn(|context| Poll::Ready(told.as_mut().poll(context).is_ready())).await;
                tokio::task::yield_now().await;
            }
        }
        assert!(SessionSecrets::in_home(home.path()).read("s").is_some());
    }
}
