//! How waiting messages get into a session: with the reply to a hook, or by its client's own way (a
//! plugin in its process, its inbox, its server), which also wakes an idle session.
//!
//! `mail` chooses the messages and makes one text of them. `engine` hands the text over by a
//! client's own way, a `NativeWay`. A text is handed over once: a row of `handover` is committed,
//! with the messages `offered`, before the text leaves, and from then on no other way takes the
//! messages. Only the client decides what follows. Its prompt hook with a message's stamp, or its
//! own record of the conversation, makes a message `injected`. If the record does not show the
//! messages, they are free for the next way: the wake by a hook, or the session's next turn. If the
//! record cannot be read, they are `undeliverable`.
//!
//! Claude Code writes a prompt into its record when the hooks of the prompt are done. If it is
//! killed before that, the prompt is lost. So for Claude Code the record is checked after the hook,
//! too: a message that the record does not show is handed over again, although it was `injected`.

mod engine;
mod mail;
mod native_way;
mod plugin;

use std::sync::{Arc, OnceLock};

use svc_model::{
    Caller, DeliveryState, HandoverId, HandoverWay, Ids, Message, Peer, PeerId, ProcessState,
    Timestamp, client_session_id, hook::HookClient, is_agent_key, stamp,
};
use svc_store::{HandoverRow, PeerRow, StoreError, WriteTx};

use self::{
    native_way::{NativeSession, NativeWay},
    plugin::PluginConnections,
};
use super::{
    Error, ResourceKind, Result,
    codex::AppServerConnections,
    core::Core,
    team::{advance, ids_of},
};

pub use mail::HandedMail;
pub(super) use mail::{MailGiver, TurnOfMail, confirm_given, hand_over, headlines_of_wake};
pub use plugin::{PluginHold, PluginReport, PluginWord};

#[derive(Debug, Clone)]
pub struct Handovers {
    core: Core,
    ways: Arc<[NativeWay; 3]>,
    plugins: Arc<PluginConnections>,
    /// Clients whose sessions are not woken by messages.
    off: Arc<OnceLock<Vec<HookClient>>>,
}

impl Handovers {
    pub(super) fn new(core: Core, app_servers: Arc<AppServerConnections>) -> Self {
        let plugins = Arc::<PluginConnections>::default();
        let ways = Arc::new([
            NativeWay::Plugin(Arc::clone(&plugins)),
            NativeWay::ClaudeInbox,
            NativeWay::AppServer(app_servers),
        ]);
        Self { core, ways, plugins, off: Arc::default() }
    }

    /// Sets the clients whose sessions are not woken by messages. Only the first call has an
    /// effect.
    pub(super) fn set_off(&self, clients: Vec<HookClient>) {
        self.off.set(clients).ok();
    }

    /// Whether the sessions of a client are not woken by messages.
    pub(super) fn is_off(&self, backend: &str) -> bool {
        let client = HookClient::parse(backend);
        let off = self.off.get().map_or(&[][..], Vec::as_slice);
        client.is_some_and(|client| off.contains(&client))
    }

    fn way(&self, via: HandoverWay) -> Option<&NativeWay> {
        self.ways.iter().find(|way| way.traits().via == via)
    }

    /// The way to a session that is open now.
    async fn open_way(&self, session: &NativeSession) -> Option<&NativeWay> {
        if self.is_off(&session.backend) {
            return None;
        }
        for way in self.ways.iter() {
            if way.traits().client.as_str() == session.backend && way.is_open(session).await {
                return Some(way);
            }
        }
        None
    }

    /// The session of a peer, as a client's own way names it; `None` if the peer has no session or
    /// its process does not run here.
    async fn session_of(&self, row: &PeerRow) -> Result<Option<NativeSession>, StoreError> {
        let is_hosted = row.owner.as_deref().is_some_and(is_agent_key);
        let (Some(session), Some(process), false) =
            (row.peer.session_id.clone(), row.process(), is_hosted)
        else {
            return Ok(None);
        };
        // A process of another machine is reached from that machine.
        if self.core.state_of(&process) != ProcessState::Running {
            return Ok(None);
        }
        let owned = self.core.store.sessions().owner(&session).await?;
        Ok(Some(NativeSession {
            peer: row.peer.peer_id.clone(),
            backend: row.peer.backend.clone(),
            session_id: client_session_id(&session).to_owned(),
            process: process.process,
            owner: owned.and_then(|owned| owned.owner),
        }))
    }

    /// Whether the client's own way brings a message to a peer's session, while the session is idle
    /// and during a turn.
    pub(super) async fn reaches(&self, row: &PeerRow) -> Result<NativeReach, StoreError> {
        let Some(session) = self.session_of(row).await? else { return Ok(NativeReach::default()) };
        let way = self.open_way(&session).await;
        let reach = way.map(NativeWay::traits).map(|way| NativeReach {
            wakes: true,
            joins_turn: way.joins_turns,
            tries: way.tries,
        });
        Ok(reach.unwrap_or_default())
    }

    /// Opens the connection on which the plugin of the caller's process gets texts. It replaces an
    /// earlier connection.
    ///
    /// # Errors
    /// [`Error::Forbidden`] if the connection does not show that the caller is a client's process.
    pub fn hold(&self, caller: &Caller) -> Result<PluginHold> {
        if caller.process().is_none() {
            let why = "only the process of a client is given texts for its sessions";
            return Err(Error::Forbidden(why.to_owned()));
        }
        Ok(self.plugins.hold(caller.principal()))
    }

    /// Takes the plugin's report on a hand-over from the caller's process.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no report on this hand-over is expected.
    pub fn report(&self, caller: &Caller, id: &str, report: PluginReport) -> Result<()> {
        let unknown = || Error::not_found(ResourceKind::Handover, id);
        let id = HandoverId::parse(id).ok_or_else(unknown)?;
        if self.plugins.report(&caller.principal(), &id, report) {
            return Ok(());
        }
        Err(unknown())
    }
}

/// How a client's own way reaches a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct NativeReach {
    /// The way wakes an idle session.
    pub(super) wakes: bool,
    /// The way brings a message into the turn under way.
    pub(super) joins_turn: bool,
    /// How often the way is tried for one message.
    pub(super) tries: u32,
}

/// What a prompt shows of the texts that were handed to its client.
#[derive(Debug, Default)]
pub(super) struct ShownHandover {
    /// The messages that are in the prompt.
    pub(super) messages: Vec<Message>,
    /// All of them were handed over during a turn, and that turn goes on.
    pub(super) joins_turn: bool,
}

/// Notes that a client has the messages whose stamps are in this prompt.
pub(super) async fn confirm_shown(
    tx: &mut WriteTx,
    peer: &PeerId,
    prompt: &str,
) -> Result<ShownHandover, StoreError> {
    let mut shown = ShownHandover::default();
    if !prompt.contains(stamp::NAMING) {
        return Ok(shown);
    }
    let mut begins_turn = false;
    for row in tx.handovers().of_peer(peer).await? {
        let mut messages = tx.handovers().messages(&row.handover_id).await?;
        messages.retain(|message| prompt.contains(stamp::naming(&message.id).as_str()));
        if messages.is_empty() {
            continue;
        }
        begins_turn |= !row.joins_turn;
        if row.via.records_after_hook() {
            // The record decides: the client may be killed before it writes the prompt.
            advance(tx, peer, &mut messages, DeliveryState::Injected, None).await?;
        } else {
            confirm(tx, peer, &row.handover_id, &mut messages).await?;
        }
        shown.messages.append(&mut messages);
    }
    shown.joins_turn = !shown.messages.is_empty() && !begins_turn;
    Ok(shown)
}

/// Makes a hand-over of the messages that hooks gave to a session of opencode that now begins, so
/// that the session's own record, which the plugin reads, decides: the process that got the
/// messages may have been killed with them. Without the hand-over, the reply to this event could
/// not give them again, and the next event would show nothing about them.
pub(super) async fn leave_to_record(
    tx: &mut WriteTx,
    ids: &Ids,
    (peer, session): (&Peer, &str),
    arrived: Timestamp,
) -> Result<(), StoreError> {
    let given = tx.inboxes().given(&peer.peer_id, arrived).await?;
    if given.is_empty() {
        return Ok(());
    }
    let row = HandoverRow {
        handover_id: HandoverId::new(ids, tx.now()),
        peer_id: peer.peer_id.clone(),
        session_id: session.to_owned(),
        via: HandoverWay::Plugin,
        joins_turn: true,
        is_held: false,
        record: None,
        at: tx.now(),
    };
    tx.handovers().insert(&row, &ids_of(&given)).await
}

/// Notes that a client has these messages of a hand-over.
async fn confirm(
    tx: &mut WriteTx,
    peer: &PeerId,
    id: &HandoverId,
    messages: &mut [Message],
) -> Result<(), StoreError> {
    advance(tx, peer, messages, DeliveryState::Injected, None).await?;
    tx.handovers().release(id, &ids_of(messages)).await
}
