//! Messages: sending them, taking them out of an inbox, and what became of them.

use axum::extract::{Path, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::team::{BroadcastReach, ListedMessage};
use svc_model::{
    Caller, Delivery, DeliveryState, Message, MessageId, MessageType, NewMessage, SentMessage,
    limits,
};
use svc_store::MessageFilter;

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    list::List,
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_send = Operation::new("Put a message into a peer's inbox").body::<NewMessage>();
    let on_inbox =
        Operation::new("Take messages out of an inbox on a lease of 60 s, or peek").query::<Look>();
    let on_list = Operation::new(
        "Messages between all peers, the latest first, with the beginnings of their texts (operator, read_all)",
    );
    let on_list = on_list.query::<ListMessages>();
    let on_ack = Operation::new("Acknowledge messages").body::<Acknowledge>();
    let on_broadcast = Operation::new("Put a message into every inbox but the sender's");
    api.post("/v1/peers/{id}/messages", on_send.answer::<SentMessage>(200, "As stored"), send)
        .list("/v1/peers/{id}/messages", on_inbox.answer::<List<Message>>(200, "In order"), inbox)
        .post("/v1/peers/{id}/messages/ack", on_ack.answer::<Acked>(200, "All of them"), ack)
        .post(
            "/v1/peers/broadcast",
            on_broadcast.body::<Broadcast>().answer::<BroadcastReach>(200, "How many took it"),
            broadcast,
        )
        .list(
            "/v1/messages",
            on_list.answer::<List<ListedMessage>>(200, "A page of messages"),
            list,
        )
        .get(
            "/v1/messages/{id}",
            Operation::new("A message and what became of it").answer::<Detail>(200, "The message"),
            show,
        )
}

async fn send(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<NewMessage>,
) -> Result<Json<SentMessage>, Problem> {
    Ok(Json(app.services.hooks.send_message(&caller, &id, input).await?))
}

#[derive(Deserialize, JsonSchema)]
struct Look {
    /// Leaves the inbox as it is, and shows leased messages too.
    #[serde(default)]
    peek: bool,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    /// Only with `peek`: without it, the next call gives the next messages.
    cursor: Option<String>,
}

async fn inbox(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<Look>,
) -> Result<Json<List<Message>>, Problem> {
    let page = if query.peek {
        app.services.team.peek_messages(&caller, &id, query.cursor.as_deref(), query.limit).await?
    } else if query.cursor.is_some() {
        return Err(Problem::invalid("cursor", "goes with peek=true"));
    } else {
        app.services.team.take_messages(&caller, &id, query.limit).await?
    };
    Ok(Json(page.into()))
}

#[derive(Deserialize, JsonSchema)]
struct ListMessages {
    /// Only those from or to this peer: its id, its name, or what else names it; `operator` for the operator's.
    peer: Option<String>,
    /// Only those in this state.
    state: Option<DeliveryState>,
    /// Only those of this type.
    #[serde(rename = "type")]
    kind: Option<MessageType>,
    /// Only questions that wait for an answer of the peer that was asked.
    #[serde(default)]
    open: bool,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListMessages>,
) -> Result<Json<List<ListedMessage>>, Problem> {
    let ListMessages { peer, state, kind, open, limit, cursor } = query;
    let filter = MessageFilter { peer, state, kind, open };
    let page = app.services.team.messages(&caller, filter, cursor.as_deref(), limit).await?;
    Ok(Json(page.into()))
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

async fn ack(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<Acknowledge>,
) -> Result<Json<Acked>, Problem> {
    let acked = app.services.team.ack_messages(&caller, &id, input.ids).await?;
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
}

async fn broadcast(
    State(app): State<App>,
    caller: Caller,
    Json(input): Json<Broadcast>,
) -> Result<Json<BroadcastReach>, Problem> {
    let message = NewMessage {
        kind: input.kind,
        from_peer: input.from_peer,
        text: input.text,
        correlation_id: input.correlation_id,
        idempotency_key: input.idempotency_key,
    };
    Ok(Json(app.services.team.broadcast(&caller, input.circle, message).await?))
}

#[derive(Serialize, JsonSchema)]
struct Detail {
    #[serde(flatten)]
    message: Message,
    states: Vec<Delivery>,
}

async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Detail>, Problem> {
    let detail = app.services.team.message(&caller, &id).await?;
    let detail = Detail { message: detail.message, states: detail.states };
    Ok(Json(detail))
}
