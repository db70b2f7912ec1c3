//! Messages to hosted agents become turns. The host has a queue and recognises each message by its
//! id, so a message that is handed over again, by this daemon or a later one, is taken once. The
//! host's `input` event confirms that it took the message.

use std::{collections::HashSet, time::Duration};

use svc_client::hosts::{HostClient, HostError};
use svc_model::{
    AgentId, MessageId, PeerId, StreamName,
    conversation::RunMode,
    hook, limits,
    stamp::{self, MessageSender},
};
use svc_store::{AgentMail, job};
use svc_sys::telemetry::chain;
use svc_wire::host_protocol::{SendAnswer, SendInput, SendMode};
use tokio::time::{Instant, sleep, sleep_until};

use super::Agents;
use crate::service::{
    Result, assignments,
    core::{Core, wait_for_event},
};

/// The wait before the next attempt to reach a host that does not answer.
const HOST_PAUSE: Duration = Duration::from_millis(200);

/// Waits while an agent is at a usage limit. The vendor would refuse the turn of a message, and the
/// message would be lost.
async fn wait_for_end_of_limit(core: &Core, peer: &PeerId) -> Result<()> {
    // The limit ends with a change of status, which is an event of the team.
    let mut team = core.store.bus().listen(&StreamName::fixed(StreamName::TEAM));
    loop {
        let head = team.last();
        let own = core.store.peers().get(peer).await?;
        if !own.is_some_and(|own| own.peer.is_limited()) {
            return Ok(());
        }
        team.wait(head).await;
    }
}

/// Whether an event is the progress of known mail or of a send, and no new mail.
fn is_of_known_mail(kind: &str) -> bool {
    kind.starts_with("run.") || matches!(kind, "message.injected" | "message.acked")
}

/// Delivers the messages of an agent to its host as they arrive, until the future is dropped.
pub(super) async fn deliver_mail(agents: &Agents, id: &AgentId) {
    loop {
        match hand_over_mail(agents, id).await {
            Ok(()) => std::future::pending().await,
            Err(error) => {
                tracing::error!(agent = %id, error = chain(&error), "cannot hand over messages");
                sleep(HOST_PAUSE).await;
            }
        }
    }
}

async fn hand_over_mail(agents: &Agents, id: &AgentId) -> Result<()> {
    let (core, store) = (&agents.core, &agents.core.store);
    let Some(agent) = store.agents().get(id).await? else { return Ok(()) };
    let key = agent.info.session_key.as_str();
    let own = store.peers().of_key(key).await?;
    let Some(own) = own.filter(|row| row.owner.as_deref() == Some(key)) else { return Ok(()) };
    let peer = own.peer.peer_id;
    let stream = StreamName::new("peer", &peer);
    // Listen first and read second, or a message in between waits for the next one.
    let mut listener = store.bus().listen(&stream);
    let host = agents.host(id);
    let mut mail = AgentMailing { core: core.clone(), peer, host, with_host: HashSet::new() };
    loop {
        wait_for_end_of_limit(core, &mail.peer).await?;
        let head = listener.last();
        let is_reached = mail.hand_over().await?;
        if !is_reached {
            agents.note_unreached(id).await;
        }
        let held = store.inboxes().next_held_mail(&mail.peer).await?;
        let until = held.map(|at| Instant::now() + at.since(core.now()));
        let retry = (!is_reached).then(|| Instant::now() + HOST_PAUSE);
        let next = [until, retry].into_iter().flatten().min();
        let is_full = mail.is_full();
        // If the host is full, each event may mean that it takes more.
        let is_news = |kind: &str| is_full || !is_of_known_mail(kind);
        tokio::select! {
            () = wait_for_event(&mut listener, head, is_news) => {}
            () = async { match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            } } => {}
        }
    }
}

struct AgentMailing {
    core: Core,
    peer: PeerId,
    host: HostClient,
    /// Messages that the host has and that have begun no turn yet.
    with_host: HashSet<MessageId>,
}

impl AgentMailing {
    /// Whether the host has [`limits::HOST_MAIL`] messages that have begun no turn, the most that
    /// it is given. It gets another one when a turn begins with one of them.
    fn is_full(&self) -> bool {
        u32::try_from(self.with_host.len()).is_ok_and(|count| count >= limits::HOST_MAIL)
    }

    /// Hands over the waiting messages. Returns whether the host was reached.
    async fn hand_over(&mut self) -> Result<bool> {
        let with_host_count = u32::try_from(self.with_host.len()).unwrap_or(u32::MAX);
        let limit = with_host_count.saturating_add(limits::AGENT_MAIL).min(limits::HOST_MAIL);
        let inboxes = self.core.store.inboxes();
        let mail = inboxes.mail_of_agent(&self.peer, self.core.now(), limit).await?;
        self.with_host.retain(|id| mail.iter().any(|waiting| waiting.message.id == *id));
        for waiting in mail {
            let id = waiting.message.id.clone();
            if self.with_host.contains(&id) {
                continue;
            }
            match self.hand_to_host(waiting).await? {
                Ok(_) => {
                    self.with_host.insert(id);
                }
                Err(HostError::Refused(why)) => {
                    let (core, store) = (self.core.clone(), &self.core.store);
                    let refused = store
                        .write(job!(|tx| assignments::mail_refused(tx, &core, &id, why).await));
                    refused.await?;
                }
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    async fn hand_to_host(&self, waiting: AgentMail) -> Result<Result<SendAnswer, HostError>> {
        let AgentMail { message, mode, turn } = waiting;
        let sender = match PeerId::parse(&message.from_peer) {
            Some(from) => self.core.store.peers().get(&from).await?,
            None => None,
        };
        let named = sender.as_ref().map(|row| &row.peer);
        let mut sender = MessageSender::new(&message.from_peer, named);
        if let Some((run, key)) = sender.removed_in(&message)
            && let Some(work) = self.core.store.assignments().get(run).await?
            && work.target_session == key
        {
            sender = sender.with_backend(&work.backend);
        }
        let most = self.core.sessions.policy.max_ping_pong;
        let goes_back = turn.filter(|turn| *turn < most).map(|turn| (turn + 1, most));
        let answered = match message.answered() {
            Some(first) => self.core.store.messages().get(&first).await?.map(|first| first.kind),
            None => None,
        };
        let begins_turn = mode != Some(RunMode::Steer);
        let stamp = stamp::stamp(&message, &sender, answered, begins_turn, goes_back);
        let input = SendInput {
            input: hook::turn_text(&message, &stamp).into_string(),
            idempotency_key: Some(message.id.as_str().to_owned()),
            mode: if begins_turn { SendMode::Queue } else { SendMode::Steer },
            message_id: Some(message.id.as_str().to_owned()),
            from: message.provenance.and_then(|it| it.source_session_key),
        };
        Ok(self.host.send(&input).await)
    }
}
