//! `/v1/peers` and `/v1/messages`: participants, their inboxes, and the delivery states of
//! messages.

use std::sync::Arc;

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Page, PeersAt,
    team::{BroadcastReach, MessageDetail},
};
use svc_model::{
    Caller, Message, MessageFilter, MessageId, MessageType, NewMessage, PageQuery, Peer,
    PeerFilter, RegisterInput, ReportedStatus, SentMessage,
};
use svc_store::ListedMessage;

use super::{
    App, Problem,
    api::{Api, Operation},
    request::{ItemRequest, Json, JsonResult, ListRequest, MaybeJson, PageResult, Query},
};

pub(super) fn routes(api: Api) -> Api {
    let on_list =
        Operation::new("Peers: online, busy, waiting, idle, unreachable, offline, by name")
            .query::<PeerFilter>()
            .query::<Living>()
            .query::<PageQuery>();
    let on_register = Operation::new("Register a peer, or update the one with the same identity")
        .body::<RegisterInput>();
    let on_beat = Operation::new("Say that a peer is there").optional_body::<Heartbeat>();
    let on_peer = Operation::new("A peer").answer::<Peer>(200, "The peer");
    let on_remove =
        Operation::new("Remove a peer").answer::<Peer>(200, "The peer that was removed");
    let on_send = Operation::new("Put a message into a peer's inbox").body::<NewMessage>();
    let on_inbox =
        Operation::new("Take messages out of an inbox on a lease of 60 s, or peek").query::<Peek>();
    let on_messages = Operation::new(
        "Messages between all peers, the latest first, with the beginnings of their texts (operator, read_all)",
    );
    let on_messages = on_messages.query::<MessageFilter>();
    let on_ack = Operation::new("Acknowledge messages").body::<Acknowledge>();
    let on_broadcast = Operation::new("Put a message into every inbox but the sender's");
    let on_broadcast = on_broadcast.body::<Broadcast>();
    let on_message = Operation::new("A message with the states of its delivery");
    let on_broadcast = on_broadcast.answer::<BroadcastReach>(200, "How many took it");
    api.list("/v1/peers", on_list.answer::<PeersAt<Page<Peer>>>(200, "A page of peers"), list)
        .post("/v1/peers/register", on_register.answer::<Peer>(200, "The peer"), register)
        .post("/v1/peers/{id}/heartbeat", on_beat.answer::<Peer>(200, "The peer"), heartbeat)
        .get("/v1/peers/{id}", on_peer, show)
        .delete("/v1/peers/{id}", on_remove, remove)
        .post("/v1/peers/{id}/messages", on_send.answer::<SentMessage>(200, "As stored"), send)
        .list("/v1/peers/{id}/messages", on_inbox.page_of::<Message>("In order"), inbox)
        .post("/v1/peers/{id}/messages/ack", on_ack.answer::<Acked>(200, "All of them"), ack)
        .post("/v1/peers/broadcast", on_broadcast, broadcast)
        .list("/v1/messages", on_messages.page_of::<ListedMessage>("A page of messages"), messages)
        .get("/v1/messages/{id}", on_message.answer::<MessageDetail>(200, "The message"), message)
}

#[derive(Deserialize, JsonSchema)]
struct Living {
    /// Only those that are not offline, without the agents that were started for one task.
    #[serde(default)]
    live: bool,
}

async fn list(
    app: App,
    caller: Caller,
    Query(Living { live }): Query<Living>,
    list: ListRequest<PeerFilter>,
) -> JsonResult<PeersAt<Arc<Page<Peer>>>> {
    let as_of = app.services.now();
    let page = app.services.team.peers(&caller, &list.filter, live, &list.page).await?;
    Ok(Json(PeersAt { page, as_of }))
}

async fn register(app: App, caller: Caller, Json(input): Json<RegisterInput>) -> JsonResult<Peer> {
    Ok(Json(app.services.team.register_peer(&caller, None, input).await?))
}

#[derive(Default, Deserialize, JsonSchema)]
struct Heartbeat {
    /// The state from now on; without it, a peer that was idle or offline is online again.
    status: Option<ReportedStatus>,
}

async fn heartbeat(item: ItemRequest, MaybeJson(input): MaybeJson<Heartbeat>) -> JsonResult<Peer> {
    let status = input.unwrap_or_default().status;
    Ok(Json(item.app.services.team.heartbeat(&item.caller, &item.id, status).await?))
}

async fn show(item: ItemRequest) -> JsonResult<Peer> {
    Ok(Json(item.app.services.team.peer(&item.caller, &item.id).await?))
}

async fn remove(item: ItemRequest) -> JsonResult<Peer> {
    Ok(Json(item.app.services.team.remove_peer(&item.caller, &item.id).await?))
}

async fn send(item: ItemRequest, Json(input): Json<NewMessage>) -> JsonResult<SentMessage> {
    Ok(Json(item.app.services.hooks.send_message(&item.caller, &item.id, input).await?))
}

#[derive(Deserialize, JsonSchema)]
struct Peek {
    /// Leaves the inbox as it is, and shows leased messages too. Only with it is there a `cursor`:
    /// else the next call gives the next messages.
    #[serde(default)]
    peek: bool,
}

async fn inbox(item: ItemRequest, method: Method, list: ListRequest<Peek>) -> PageResult<Message> {
    let ListRequest { filter: Peek { peek }, page, .. } = list;
    if !peek && page.cursor.is_some() {
        return Err(Problem::invalid("cursor", "goes with peek=true"));
    }
    // Messages would be leased to a client that is not sent them.
    Ok(Json(if peek || method == Method::HEAD {
        item.app.services.team.peek_messages(&item.caller, &item.id, &page).await?
    } else {
        item.app.services.team.take_messages(&item.caller, &item.id, &page).await?
    }))
}

async fn messages(list: ListRequest<MessageFilter>) -> PageResult<ListedMessage> {
    Ok(Json(list.app.services.team.messages(&list.caller, list.filter, &list.page).await?))
}

#[derive(Deserialize, JsonSchema)]
struct Acknowledge {
    ids: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct Acked {
    acked: Vec<MessageId>,
    count: usize,
}

async fn ack(item: ItemRequest, Json(input): Json<Acknowledge>) -> JsonResult<Acked> {
    let acked = item.app.services.team.ack_messages(&item.caller, &item.id, input.ids).await?;
    let count = acked.len();
    Ok(Json(Acked { acked, count }))
}

/// A message with where it goes.
#[derive(Deserialize, JsonSchema)]
struct Broadcast {
    /// Only to peers of this circle.
    circle: Option<String>,
    #[serde(rename = "type")]
    kind: Option<MessageType>,
    from_peer: Option<String>,
    /// The text. Not blank.
    text: String,
    correlation_id: Option<String>,
    idempotency_key: Option<String>,
    /// Whether idle receivers are left idle.
    #[serde(default)]
    no_wake: bool,
}

async fn broadcast(
    app: App,
    caller: Caller,
    Json(input): Json<Broadcast>,
) -> JsonResult<BroadcastReach> {
    let message = NewMessage {
        kind: input.kind,
        from_peer: input.from_peer,
        text: input.text,
        correlation_id: input.correlation_id,
        idempotency_key: input.idempotency_key,
        no_wake: input.no_wake,
    };
    Ok(Json(app.services.team.broadcast(&caller, input.circle, message).await?))
}

async fn message(item: ItemRequest) -> JsonResult<MessageDetail> {
    Ok(Json(item.app.services.team.message(&item.caller, &item.id).await?))
}
