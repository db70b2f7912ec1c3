//! Messages: sending, acknowledging, and delivery states.

use axum::extract::Path;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Page,
    team::{BroadcastReach, MessageDetail},
};
use svc_model::{
    Caller, Message, MessageFilter, MessageId, MessageType, NewMessage, PageQuery, SentMessage,
};

use svc_store::ListedMessage;

use super::{
    App, Problem,
    api::Api,
    body::{Json, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_send = Operation::new("Put a message into a peer's inbox").body::<NewMessage>();
    let on_inbox =
        Operation::new("Take messages out of an inbox on a lease of 60 s, or peek").query::<Peek>();
    let on_list = Operation::new(
        "Messages between all peers, the latest first, with the beginnings of their texts (operator, read_all)",
    );
    let on_list = on_list.query::<MessageFilter>();
    let on_ack = Operation::new("Acknowledge messages").body::<Acknowledge>();
    let on_broadcast = Operation::new("Put a message into every inbox but the sender's");
    api.post("/v1/peers/{id}/messages", on_send.answer::<SentMessage>(200, "As stored"), send)
        .list("/v1/peers/{id}/messages", on_inbox.page_of::<Message>("In order"), inbox)
        .post("/v1/peers/{id}/messages/ack", on_ack.answer::<Acked>(200, "All of them"), ack)
        .post(
            "/v1/peers/broadcast",
            on_broadcast.body::<Broadcast>().answer::<BroadcastReach>(200, "How many took it"),
            broadcast,
        )
        .list("/v1/messages", on_list.page_of::<ListedMessage>("A page of messages"), list)
        .get(
            "/v1/messages/{id}",
            Operation::new("A message and what became of it")
                .answer::<MessageDetail>(200, "The message"),
            show,
        )
}

async fn send(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Json(input): Json<NewMessage>,
) -> Result<Json<SentMessage>, Problem> {
    Ok(Json(app.services.hooks.send_message(&caller, &id, input).await?))
}

#[derive(Deserialize, JsonSchema)]
struct Peek {
    /// Leaves the inbox as it is, and shows leased messages too. Only with it is there a `cursor`:
    /// else the next call gives the next messages.
    #[serde(default)]
    peek: bool,
}

async fn inbox(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    Query(Peek { peek }): Query<Peek>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Message>>, Problem> {
    Ok(Json(if peek {
        app.services.team.peek_messages(&caller, &id, &page).await?
    } else if page.cursor.is_some() {
        return Err(Problem::invalid("cursor", "goes with peek=true"));
    } else {
        app.services.team.take_messages(&caller, &id, &page).await?
    }))
}

async fn list(
    app: App,
    caller: Caller,
    Query(filter): Query<MessageFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<ListedMessage>>, Problem> {
    Ok(Json(app.services.team.messages(&caller, filter, &page).await?))
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
    app: App,
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
    /// Whether idle receivers are left idle.
    #[serde(default)]
    no_wake: bool,
}

async fn broadcast(
    app: App,
    caller: Caller,
    Json(input): Json<Broadcast>,
) -> Result<Json<BroadcastReach>, Problem> {
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

async fn show(
    app: App,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<MessageDetail>, Problem> {
    Ok(Json(app.services.team.message(&caller, &id).await?))
}
