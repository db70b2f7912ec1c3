//! Tools for peers and messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_model::{
    ListQuery, MessageId, MessageType, NOT_BLANK, NewMessage, PageQuery, Peer, PeerFilter, PeerId,
    RegisterInput, ReportedStatus, SentMessage, limits,
};

use super::{Call, ErrorType, Failure, Tool, ToolError};
use crate::service::{
    self, Listed, Page, PageBounds, PeersAt, ResourceKind,
    team::{BroadcastReach, Stamped},
};

pub(super) fn tools() -> Vec<Tool> {
    [
        Tool::new("peer_list", LIST, list).title("See who is here").read_only(),
        Tool::new("peer_register", REGISTER, register).title("Register as a peer").idempotent(),
        Tool::new("peer_heartbeat", HEARTBEAT, heartbeat)
            .title("Say that you are alive")
            .idempotent(),
        Tool::new("peer_send", SEND, send).title("Send a message to a peer"),
        Tool::new("peer_inbox", INBOX, inbox).title("Read your inbox").quotes_itself(),
        Tool::new("peer_ack", ACK, ack).title("Acknowledge messages").idempotent(),
        Tool::new("peer_broadcast", BROADCAST, broadcast).title("Send a message to all peers"),
    ]
    .into_iter()
    .map(|tool| tool.family("peers"))
    .collect()
}

const LIST: &str = "\
Lists the peers: the agents and people that you may send messages to.

Messages to one that is offline wait for it.";

/// Which peers.
#[derive(Deserialize, JsonSchema)]
struct PeerListArguments {
    #[serde(flatten)]
    list: ListQuery<PeerFilter>,
    /// Include offline peers.
    #[schemars(extend("default" = false))]
    all: Option<bool>,
}

/// A peer in a list.
#[derive(Serialize, JsonSchema)]
struct ListedPeer {
    #[serde(flatten)]
    peer: Peer,
    /// True of your own.
    #[serde(skip_serializing_if = "Option::is_none")]
    you: Option<bool>,
}

impl Listed for ListedPeer {
    const NAME: &'static str = "peers";
}

async fn list(call: Call, input: PeerListArguments) -> Result<PeersAt<Page<ListedPeer>>, Failure> {
    let PeerListArguments { list: ListQuery { filter, page }, all } = input;
    let is_living = filter.status.is_none() && !all.unwrap_or(false);
    let page = PageBounds::from(&page).for_model();
    let as_of = call.services.now();
    let page = call.services.team.peers(&call.caller, &filter, is_living, page).await?;
    let own = match own_peer(&call).await? {
        None if call.caller.is_operator() => Some(PeerId::OPERATOR.to_owned()),
        own => own,
    };
    let listed = |peer: &Peer| {
        let is_own = own.as_deref() == Some(peer.peer_id.as_str());
        ListedPeer { peer: peer.clone(), you: is_own.then_some(true) }
    };
    let items = page.items.iter().map(listed).collect();
    Ok(PeersAt { page: Page { items, next_cursor: page.next_cursor.clone() }, as_of })
}

const REGISTER: &str = "\
Registers you as a peer, so that others see you and can send you messages; or updates your registration.

Call it once at the start of your work. It gives your peer_id, which is kept when you register again: the identity is \
backend and session_id, or without a session backend, path and tmux_pane. What you leave out keeps its value.";

async fn register(call: Call, input: RegisterInput) -> Result<Peer, Failure> {
    let session = call.session.as_deref();
    Ok(call.services.team.register_peer_in(&call.caller, session, input).await?)
}

const HEARTBEAT: &str = "\
Reports that you are still here, and your status.

Call it when your state changes (busy when you begin a long piece of work, online when you are free again), and about \
every 30 s if you have nothing else to say: after 60 s of silence a peer is offline. Without a status a busy peer \
stays busy and any other is online.";

/// Who is here.
#[derive(Deserialize, JsonSchema)]
struct PeerHeartbeatArguments {
    /// The peer; your own by default.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    peer_id: Option<String>,
    /// The new status: `busy` while you work, `online` when you are free, `offline` when you leave.
    status: Option<ReportedStatus>,
}

async fn heartbeat(call: Call, input: PeerHeartbeatArguments) -> Result<Peer, Failure> {
    let id = named_or_own_peer(&call, input.peer_id).await?;
    Ok(call.services.team.heartbeat(&call.caller, &id, input.status).await?)
}

const SEND: &str = "\
Sends a message to a peer, or to `operator`, the person. It is kept until it is read.

A query asks: the answer comes to you by itself. A response answers, with the correlation_id of the question, which it \
acknowledges. A notification tells. `delivery` says when it arrives.";

/// A message to one peer.
#[derive(Deserialize, JsonSchema)]
struct PeerSendArguments {
    /// A `peer_id`, name or session key, or `operator`.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    to: String,
    #[serde(flatten)]
    message: NewMessage,
}

async fn send(call: Call, input: PeerSendArguments) -> Result<SentMessage, Failure> {
    let kind = ResourceKind::Peer;
    let to = call.services.team.find_peer(&call.caller, &input.to, kind).await;
    let to = to.map_err(|error| peer_error_in(error, "to"))?;
    let mut message = input.message;
    message.from_peer = sender(&call, message.from_peer).await?;
    Ok(call.services.hooks.send_message(&call.caller, to.as_str(), message).await?)
}

const INBOX: &str = "\
Returns your waiting messages. Most clients' hooks deliver them without this call.

`stamp` says who a message is from; `answer` is the call that answers and acknowledges it. peer_ack acknowledges others, \
which come again after 60 s.";

/// Which messages.
#[derive(Deserialize, JsonSchema)]
struct PeerInboxArguments {
    /// The reader; your own peer by default.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    peer_id: Option<String>,
    /// Only look.
    #[schemars(extend("default" = false))]
    peek: Option<bool>,
    #[serde(flatten)]
    page: PageQuery,
    /// Only this message, whole, even if it does not wait.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    message_id: Option<String>,
}

async fn inbox(call: Call, input: PeerInboxArguments) -> Result<Page<Stamped>, Failure> {
    let peek = input.peek.unwrap_or(false);
    if input.page.cursor.is_some() && !peek {
        return Err(ToolError::invalid("cursor", "cursor: goes with peek = true").into());
    }
    if let Some(id) = &input.message_id {
        let message = call.services.team.message(&call.caller, id).await?.message;
        return Ok(Page::last(call.services.team.stamped(vec![message]).await?));
    }
    let id = named_or_own_peer(&call, input.peer_id).await?;
    let bounds = PageBounds::from(&input.page).for_stamped();
    let page = if peek {
        call.services.team.peek_messages(&call.caller, &id, bounds).await?
    } else {
        call.services.team.take_messages(&call.caller, &id, bounds).await?
    };
    let items = call.services.team.stamped(page.items).await?;
    Ok(Page { items, next_cursor: page.next_cursor })
}

const ACK: &str = "\
Acknowledges messages that you have read, so that they do not come again.

Takes the ids from peer_inbox. Calling it again is harmless.";

/// Which messages were read.
#[derive(Deserialize, JsonSchema)]
struct PeerAckArguments {
    /// Ids of messages.
    #[schemars(length(min = 1, max = limits::PAGE_MAX), inner(regex(pattern = NOT_BLANK)))]
    ids: Vec<String>,
    /// The reader; your own peer by default.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    peer_id: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct PeerAckResult {
    /// All of them.
    acked: Vec<MessageId>,
}

async fn ack(call: Call, input: PeerAckArguments) -> Result<PeerAckResult, Failure> {
    let id = named_or_own_peer(&call, input.peer_id).await?;
    let acked = call.services.team.ack_messages(&call.caller, &id, input.ids).await?;
    Ok(PeerAckResult { acked })
}

const BROADCAST: &str = "\
Sends a message to all other peers, or to those of a circle.

Use it to tell all of them what concerns them (main is frozen, the test machine is down); for one receiver use \
peer_send. It reaches peers that are offline, too, when they come back.";

/// A message to many.
#[derive(Deserialize, JsonSchema)]
struct PeerBroadcastArguments {
    /// The text.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::MESSAGE_BYTES))]
    text: String,
    /// Only to peers of this circle.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    circle: Option<String>,
    /// Not needed: a broadcast is stored as `broadcast`.
    #[serde(rename = "type")]
    #[schemars(extend("default" = "broadcast"))]
    kind: Option<MessageType>,
    /// Answers name this id.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    correlation_id: Option<String>,
    /// A repeat with the same key sends no second copy.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    idempotency_key: Option<String>,
    /// The sender; your own peer by default. Only the operator may choose another.
    #[schemars(regex(pattern = NOT_BLANK), length(max = limits::SHORT_TEXT_BYTES))]
    from_peer: Option<String>,
}

async fn broadcast(call: Call, input: PeerBroadcastArguments) -> Result<BroadcastReach, Failure> {
    let message = NewMessage {
        kind: input.kind,
        from_peer: sender(&call, input.from_peer).await?,
        text: input.text,
        correlation_id: input.correlation_id,
        idempotency_key: input.idempotency_key,
        no_wake: false,
    };
    Ok(call.services.team.broadcast(&call.caller, input.circle, message).await?)
}

/// The id of the named peer, or of the caller's own.
async fn named_or_own_peer(call: &Call, named: Option<String>) -> Result<String, Failure> {
    match named {
        Some(id) => Ok(id),
        None => match own_peer(call).await? {
            Some(own) => Ok(own),
            // Without a session, the operator is its own peer.
            None if call.caller.is_operator() => Ok(PeerId::OPERATOR.to_owned()),
            None => Err(no_peer_error(call).into()),
        },
    }
}

/// The error of a peer that is named in the argument `field`.
fn peer_error_in(error: service::Error, field: &str) -> Failure {
    let is_choice = matches!(error, service::Error::Ambiguous { .. });
    let error = ToolError::from(error);
    let field = is_choice.then(|| field.to_owned()).or_else(|| error.field.clone());
    ToolError { field, ..error }.into()
}

/// The id of the caller's own peer: the one that is registered with its session.
pub(super) async fn own_peer(call: &Call) -> Result<Option<String>, Failure> {
    let Some(session) = &call.session else { return Ok(None) };
    let peer = call.services.team.own_peer_of_session(&call.caller, session).await?;
    Ok(peer.map(|peer| peer.peer_id.as_str().to_owned()))
}

/// The sender of a message. The service refuses a session that names another peer than its own.
async fn sender(call: &Call, named: Option<String>) -> Result<Option<String>, Failure> {
    if call.caller.is_operator() && named.is_some() {
        return Ok(named);
    }
    match own_peer(call).await? {
        None if !call.caller.is_operator() => Err(no_peer_error(call).into()),
        own => Ok(named.or(own)),
    }
}

fn no_peer_error(call: &Call) -> ToolError {
    let message = match &call.session {
        Some(session) => format!("session {session:?} has no peer yet: call peer_register first"),
        None => "this call belongs to no session, and so to no peer: call peer_register first, and pass the peer_id \
                 that it gives"
            .to_owned(),
    };
    ToolError::new(ErrorType::Conflict, message)
}
