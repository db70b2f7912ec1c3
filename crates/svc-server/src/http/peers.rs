//! `/v1/peers`: who is here.

use std::sync::Arc;

use axum::extract::{Path, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{Page, shared_items};
use svc_model::{Caller, Peer, PeerStatus, RegisterInput, ReportedStatus, Timestamp, limits};
use svc_store::PeerFilter;

use super::{
    App, Problem,
    api::Api,
    body::{Json, MaybeJson, Query},
    openapi::Operation,
};

pub(super) fn routes(api: Api) -> Api {
    let on_list =
        Operation::new("Peers: online, busy, waiting, idle, unreachable, offline, by name")
            .query::<ListPeers>();
    let on_register = Operation::new("Register a peer, or update the one with the same identity")
        .body::<RegisterInput>();
    let on_beat = Operation::new("Say that a peer is there").optional_body::<Heartbeat>();
    api.list("/v1/peers", on_list.answer::<Peers>(200, "A page of peers"), list)
        .post("/v1/peers/register", on_register.answer::<Peer>(200, "The peer"), register)
        .post("/v1/peers/{id}/heartbeat", on_beat.answer::<Peer>(200, "The peer"), heartbeat)
        .get("/v1/peers/{id}", Operation::new("A peer").answer::<Peer>(200, "The peer"), show)
        .delete(
            "/v1/peers/{id}",
            Operation::new("Remove a peer").answer::<Peer>(200, "The peer that was removed"),
            remove,
        )
}

/// Filters match exactly, and all of them.
#[derive(Deserialize, JsonSchema)]
struct ListPeers {
    status: Option<PeerStatus>,
    backend: Option<String>,
    circle: Option<String>,
    path: Option<String>,
    /// Only those that are not offline, without the agents that were started for one task.
    #[serde(default)]
    live: bool,
    /// 1 to 500, by default 50.
    #[schemars(extend("minimum" = 1, "maximum" = limits::PAGE_MAX, "default" = limits::PAGE_DEFAULT))]
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Peers {
    #[serde(serialize_with = "shared_items")]
    #[schemars(with = "Vec<Peer>")]
    peers: Arc<Page<Peer>>,
    count: usize,
    /// The time of this list.
    as_of: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListPeers>,
) -> Result<Json<Peers>, Problem> {
    let filter = PeerFilter {
        status: query.status,
        backend: query.backend,
        circle: query.circle,
        path: query.path,
        is_living: query.live,
    };
    let as_of = app.services.now();
    let page =
        app.services.team.peers(&caller, &filter, query.cursor.as_deref(), query.limit).await?;
    let next_cursor = page.next_cursor.clone();
    let peers = Peers { count: page.items.len(), peers: page, as_of, next_cursor };
    Ok(Json(peers))
}

async fn register(
    State(app): State<App>,
    caller: Caller,
    Json(input): Json<RegisterInput>,
) -> Result<Json<Peer>, Problem> {
    Ok(Json(app.services.team.register_peer(&caller, input).await?))
}

#[derive(Default, Deserialize, JsonSchema)]
struct Heartbeat {
    /// The state from now on; without it, a peer that was idle or offline is online again.
    status: Option<ReportedStatus>,
}

async fn heartbeat(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    MaybeJson(input): MaybeJson<Heartbeat>,
) -> Result<Json<Peer>, Problem> {
    let status = input.unwrap_or_default().status;
    Ok(Json(app.services.team.heartbeat(&caller, &id, status).await?))
}

async fn show(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Peer>, Problem> {
    let peer = app.services.team.peer(&caller, &id).await?;
    Ok(Json(peer))
}

async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Peer>, Problem> {
    Ok(Json(app.services.team.remove_peer(&caller, &id).await?))
}
