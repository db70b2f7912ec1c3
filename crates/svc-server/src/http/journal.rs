//! `/v1/sessions` and `/v1/ghap`: sessions, their texts, and their records. Tools write the
//! records; over REST a record can only be abandoned.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use svc_core::service::{
    Error,
    conversations::{SessionHistory, SessionHistoryQuery},
    hooks::{MailWait, MailWaiter},
    journal::GhapDetail,
    search::{ExperienceHit, ExperienceQuery},
    team::{ActingSession, SessionDetail},
};
use svc_model::{
    Caller, GhapFilter, GhapSearch, SessionFilter,
    journal::{Domain, Ghap, Session},
    limits,
};
use svc_store::{SearchFilter, VerdictWeek};

use super::{
    App, Problem,
    api::Api,
    request::{ItemRequest, Json, JsonResult, ListRequest, MaybeJson, PageResult, Query},
};

pub(super) fn routes(api: Api) -> Api {
    api.list("/v1/sessions", "Sessions, those heard of last first", sessions)
        .get("/v1/sessions/{id}", "A session with its counters and its active record", session)
        .list("/v1/sessions/{id}/history", "What was said in a session, by its key", history)
        .post("/v1/sessions/{id}/wait", "Wait for a message to the peer of an idle session", wait)
        .list("/v1/ghap", "Records of attempts, the latest made first", ghaps)
        .list("/v1/ghap/search", "Records that fit a text, the best first", search)
        .list("/v1/ghap/calibration", "How often predictions came true", calibration)
        .get("/v1/ghap/{id}", "A record with what it said before each change", ghap)
        .post("/v1/ghap/{id}/abandon", "End a record without a verdict", abandon)
}

async fn sessions(list: ListRequest<SessionFilter>) -> PageResult<Session> {
    Ok(Json(list.app.services.team.sessions(&list.caller, &list.filter, &list.page).await?))
}

async fn session(item: ItemRequest) -> JsonResult<SessionDetail> {
    Ok(Json(item.app.services.team.session_detail(&item.caller, &item.id).await?))
}

async fn history(
    item: ItemRequest,
    Query(query): Query<SessionHistoryQuery>,
) -> JsonResult<SessionHistory> {
    let ItemRequest { app, caller, id } = item;
    let own = app.services.team.default_session(&caller).await?;
    let history = app.services.conversations.history(&caller, own.as_deref(), &id, &query).await?;
    Ok(Json(history))
}

#[derive(Deserialize, JsonSchema)]
struct WaitQuery {
    /// Who waits. The one whose id is the greatest does, and the others are told; so ids begin with
    /// a time.
    waiter: String,
    /// Who asked for this session before and got no answer: what was given then is given again.
    #[serde(default)]
    lost: Vec<String>,
    /// How long, 1 to 25; 25 by default.
    seconds: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
enum Waited {
    /// There are messages. They are offered from now on.
    Message {
        /// For the session's model.
        text: String,
        /// One line that says who wrote; empty where the words around the text have no room for it.
        headline: String,
    },
    /// Nothing came: ask again.
    Nothing,
    /// Somebody else waits by now.
    Retired,
    /// The session is over.
    Over,
}

async fn wait(item: ItemRequest, Json(input): Json<WaitQuery>) -> JsonResult<Waited> {
    let ItemRequest { app, caller, id } = item;
    let seconds = input.seconds.unwrap_or(limits::MAIL_WAIT_SECONDS);
    if !(1..=limits::MAIL_WAIT_SECONDS).contains(&seconds) {
        return Err(Error::invalid("seconds", "must be from 1 to 25").into());
    }
    let bound = Duration::from_secs(seconds.into());
    // The wait must not delay shutdown: the client asks the next daemon again.
    let end = async {
        tokio::time::timeout(bound, app.stop.cancelled()).await.ok();
    };
    let waiter = MailWaiter { id: input.waiter, lost: input.lost };
    Ok(Json(match app.services.hooks.await_mail(&caller, &id, waiter, end).await? {
        MailWait::Message(mail) => Waited::Message {
            text: mail.text.into_string(),
            headline: mail.wake_line.into_string(),
        },
        MailWait::Nothing => Waited::Nothing,
        MailWait::Retired => Waited::Retired,
        MailWait::Over => Waited::Over,
    }))
}

async fn ghaps(list: ListRequest<GhapFilter>) -> PageResult<Ghap> {
    Ok(Json(list.app.services.journal.ghaps(&list.caller, &list.filter, &list.page).await?))
}

#[derive(Serialize, JsonSchema)]
struct GhapHits {
    ghap: Vec<ExperienceHit>,
    count: usize,
}

async fn search(app: App, caller: Caller, Query(query): Query<GhapSearch>) -> JsonResult<GhapHits> {
    let limit = query.limit.map_or(10, |limit| limit as usize);
    if !(1..=limits::SEARCH_HITS).contains(&limit) {
        let rule = format!("must be from 1 to {}", limits::SEARCH_HITS);
        return Err(Problem::invalid("limit", rule));
    }
    let project = app.services.projects.named(query.project.as_deref()).await?;
    let search = ExperienceQuery {
        prompt: &query.q,
        project: project.as_deref(),
        filter: SearchFilter { domain: query.domain, status: query.status, part: None },
        limit,
        only_relevant: false,
        with_open: true,
    };
    let ghap = app.services.search.search_ghaps(&caller, &search).await?;
    Ok(Json(GhapHits { count: ghap.len(), ghap }))
}

#[derive(Deserialize, JsonSchema)]
struct ReadCalibration {
    project: Option<String>,
    domain: Option<Domain>,
}

#[derive(Serialize, JsonSchema)]
struct Calibration {
    /// Only tenths that have records, in order.
    bins: Vec<CalibrationBin>,
    /// Only weeks that have records, in order; the latest 104.
    weeks: Vec<VerdictWeek>,
}

#[derive(Serialize, JsonSchema)]
struct CalibrationBin {
    /// The least probability in it; the greatest is a tenth more.
    from: f64,
    /// Mean of the probabilities that were stated.
    mean: f64,
    records: i64,
    confirmed: i64,
}

async fn calibration(
    app: App,
    caller: Caller,
    Query(query): Query<ReadCalibration>,
) -> JsonResult<Calibration> {
    let (project, domain) = (query.project.as_deref(), query.domain);
    let (bins, weeks) = app.services.journal.verdicts(&caller, project, domain).await?;
    let tenths = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
    let bins = bins.into_iter().filter_map(|bin| {
        let from = *tenths.get(usize::try_from(bin.tenth).ok()?)?;
        let (mean, records, confirmed) = (bin.mean, bin.records, bin.confirmed);
        Some(CalibrationBin { from, mean, records, confirmed })
    });
    Ok(Json(Calibration { bins: bins.collect(), weeks }))
}

async fn ghap(item: ItemRequest) -> JsonResult<GhapDetail> {
    Ok(Json(item.app.services.journal.ghap(&item.caller, &item.id).await?))
}

#[derive(Default, Deserialize, JsonSchema)]
struct AbandonGhap {
    /// Why nobody will know; by default that it was given up.
    reason: Option<String>,
}

async fn abandon(item: ItemRequest, MaybeJson(body): MaybeJson<AbandonGhap>) -> JsonResult<Ghap> {
    let ItemRequest { app, caller, id } = item;
    let session_id = caller.session().unwrap_or_default().to_owned();
    let acting = ActingSession { session_id, agent_id: String::new() };
    let reason = body.unwrap_or_default().reason.unwrap_or_else(|| "Given up.".to_owned());
    Ok(Json(app.services.journal.abandon_orphan(&caller, acting, Some(&id), reason).await?))
}
