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
    Caller, Message, MessageFilter, MessageId, MessageType, NewMessage, Peer, PeerFilter,
    RegisterInput, ReportedStatus, SentMessage,
};
use svc_store::ListedMessage;

use super::{
    App, Problem,
    api::Api,
    request::{ItemRequest, Json, JsonResult, ListRequest, MaybeJson, PageResult, Query},
};

pub(super) fn routes(api: Api) -> Api {
    api.list("/v1/peers", "Peers: online, busy, waiting, idle, unreachable, offline, by name", list)
        .post(
            "/v1/peers/register",
            "Register a peer, or update the one with the same identity",
            register,
        )
        .post("/v1/peers/{id}/heartbeat", "Say that a peer is there", heartbeat)
        .get("/v1/peers/{id}", "A peer", show)
        .delete("/v1/peers/{id}", "Remove a peer", remove)
        .post("/v1/peers/{id}/messages", "Put a message into a peer's inbox", send)
        .list(
            "/v1/peers/{id}/messages",
            "Take messages out of an inbox on a lease of 60 s, or peek",
            inbox,
        )
        .post("/v1/peers/{id}/messages/ack", "Acknowledge messages", ack)
        .post("/v1/peers/broadcast", "Put a message into every inbox but the sender's", broadcast)
        .list("/v1/messages", "All messages, the latest first (operator, read_all)", messages)
        .get("/v1/messages/{id}", "A message with the states of its delivery", message)
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
