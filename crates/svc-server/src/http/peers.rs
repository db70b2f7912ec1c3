//! `/v1/peers`: participants.

use std::sync::Arc;

use axum::extract::Path;
use schemars::JsonSchema;
use serde::Deserialize;
use svc_core::service::{Page, PeersAt};
use svc_model::{Caller, PageQuery, Peer, PeerFilter, RegisterInput, ReportedStatus};

use super::{
    App, Problem,
    api::Api,
    body::{Json, MaybeJson, Query},
    openapi::Operation,
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
    api.list("/v1/peers", on_list.answer::<PeersAt<Page<Peer>>>(200, "A page of peers"), list)
        .post("/v1/peers/register", on_register.answer::<Peer>(200, "The peer"), register)
        .post("/v1/peers/{id}/heartbeat", on_beat.answer::<Peer>(200, "The peer"), heartbeat)
        .get("/v1/peers/{id}", Operation::new("A peer").answer::<Peer>(200, "The peer"), show)
        .delete(
            "/v1/peers/{id}",
            Operation::new("Remove a peer").answer::<Peer>(200, "The peer that was removed"),
            remove,
        )
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
    Query(filter): Query<PeerFilter>,
    Query(page): Query<PageQuery>,
) -> Result<Json<PeersAt<Arc<Page<Peer>>>>, Problem> {
    let as_of = app.services.now();
    let page = app.services.team.peers(&caller, &filter, live, &page).await?;
    Ok(Json(PeersAt { page, as_of }))
}

async fn register(
    app: App,
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
    app: App,
    caller: Caller,
    Path(id): Path<String>,
    MaybeJson(input): MaybeJson<Heartbeat>,
) -> Result<Json<Peer>, Problem> {
    let status = input.unwrap_or_default().status;
    Ok(Json(app.services.team.heartbeat(&caller, &id, status).await?))
}

async fn show(app: App, caller: Caller, Path(id): Path<String>) -> Result<Json<Peer>, Problem> {
    let peer = app.services.team.peer(&caller, &id).await?;
    Ok(Json(peer))
}

async fn remove(app: App, caller: Caller, Path(id): Path<String>) -> Result<Json<Peer>, Problem> {
    Ok(Json(app.services.team.remove_peer(&caller, &id).await?))
}
