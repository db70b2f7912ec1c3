//! The connection to the daemon. Reads the token for every request; waits for a daemon that is
//! away, or starts one.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use svc_client::{
    Client, ClientError, ClientProblem, DaemonFile, DaemonTarget, Discovery, StreamingReply, Token,
    TokenSource, backoff,
};
use svc_model::{PROCESS_TOKENS_PATH, limits};
use svc_server::daemon::stays_stopped;
use svc_sys::telemetry;
use svc_wire::json_rpc::{INTERNAL_ERROR, JsonRpcEnvelope};
use svc_wire::mcp_request::McpRequest;
use tokio::time::{Instant, sleep, timeout};

use super::super::{Context, daemon, output, program};

const STAYS_STOPPED: &str = "the daemon was stopped with `svc stop --stay`: `svc start` starts it, and then this client finds it";
const PATH: &str = "/mcp";
/// How long a request waits for a daemon that is away.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The daemon answers that its database is away: nothing was changed.
const STORE_UNAVAILABLE: &str = "store_unavailable";
/// The daemon answers that another one has taken its database: nothing was changed.
const FENCED: &str = "fenced";
/// The daemon answers that its database is away, and that nobody knows what was changed.
const OUTCOME_UNKNOWN: &str = "outcome_unknown";
/// How long a daemon that was connected may be away before this process starts one: `svc restart`
/// and service managers start it themselves, with the flags that they know.
const GRACE: Duration = Duration::from_secs(1);

/// How much effort a request deserves while the daemon is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    Once,
    /// The client waits: start a daemon if there is none, and retry for up to [`TIMEOUT`].
    Demand,
    /// Nobody waits: retry for ever but start nothing, since a person may have stopped the daemon
    /// on purpose.
    Background,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// The daemon was not reached: nothing was sent.
    #[error("{0}")]
    Away(String),
    /// The request was sent and its outcome is unknown.
    #[error("{0}")]
    Lost(String),
    /// The daemon's JSON-RPC error while its database is away.
    #[error("{}", .0["message"].as_str().unwrap_or("the database is away"))]
    Database(Value),
}

fn is_code_of_server(code: &str) -> bool {
    matches!(code, STORE_UNAVAILABLE | FENCED)
}

/// Whether a JSON-RPC error says that the daemon's database is away.
pub(super) fn is_of_database(error: &Value) -> bool {
    matches!(error["data"]["code"].as_str(), Some(STORE_UNAVAILABLE | FENCED | OUTCOME_UNKNOWN))
}

/// The JSON-RPC error of a 503 that says that the daemon's database is away. The reply has such an
/// error, or it is a problem document.
fn database_error(body: &[u8], problem: &ClientProblem) -> Option<Value> {
    let message = JsonRpcEnvelope::parse(body).ok();
    let error = message.and_then(|message| serde_json::from_str(message.error?.get()).ok());
    error.or_else(|| error_of(problem)).filter(is_of_database)
}

fn error_of(problem: &ClientProblem) -> Option<Value> {
    let data = json!({ "code": problem.code, "retryable": problem.retryable? });
    Some(json!({ "code": INTERNAL_ERROR, "message": problem.detail, "data": data }))
}

pub(super) struct DaemonLink {
    context: Context,
    discovery: Discovery,
    /// The token of the client's process. `None` if the connection uses `SVC_TOKEN`, or the
    /// operator's token for a person.
    process_token: Option<tokio::sync::Mutex<Option<Token>>>,
    state: Mutex<LinkState>,
    starting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct LinkState {
    was_there: bool,
    away_since: Option<Instant>,
    /// When a start was last attempted during this outage.
    start_tried: Option<Instant>,
    unauthorized: bool,
}

impl DaemonLink {
    /// Uses the token in a file if one is named; else the token of the client's process, or the
    /// operator's for a person.
    ///
    /// Fails if a URL is given and no token for it, or if the file holds none.
    pub(super) fn new(
        context: &Context,
        as_operator: bool,
        token_file: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let mut discovery = context.discovery()?;
        let trades = !as_operator && !discovery.has_token() && token_file.is_none();
        if let Some(file) = token_file {
            let is_there = Token::read(&file)?.is_some();
            anyhow::ensure!(is_there, "there is no token file {}", file.display());
            discovery = discovery.with_token_file(file);
        }
        if trades && discovery.fixed().is_some() {
            discovery.open_target()?;
        }
        Ok(Self {
            context: context.clone(),
            discovery,
            process_token: trades.then(tokio::sync::Mutex::default),
            state: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
        })
    }

    /// Sends a request and returns the head of its response, with any status but 503. While the
    /// daemon's database is away, a request that somebody waits for gets the daemon's error at
    /// once: the daemon itself waits for its database.
    pub(super) async fn open(
        &self,
        outgoing: &McpRequest,
        effort: Effort,
    ) -> Result<StreamingReply, LinkError> {
        let (since, mut failures) = (Instant::now(), 0);
        loop {
            let mut of_database = None;
            let (problem, retry_after) = match self.try_open(outgoing, effort).await {
                // The daemon starts or ends, or has no database, and did not handle the request.
                Ok(stream) if stream.status == StatusCode::SERVICE_UNAVAILABLE => {
                    let retry_after = stream.retry_after();
                    if let Ok(Ok(reply)) = timeout(limits::STORE_WAIT, stream.collect()).await {
                        of_database = database_error(&reply.body, &reply.problem());
                    }
                    ("the daemon is not ready".to_owned(), retry_after)
                }
                Ok(stream) => return Ok(stream),
                Err(error) if was_sent(&error) => {
                    self.note_away();
                    return Err(LinkError::Lost(error.to_string()));
                }
                // A person stopped the daemon on purpose, so only a person starts it again.
                Err(ClientError::NotRunning { .. })
                    if effort == Effort::Demand && self.stays_stopped() =>
                {
                    return Err(LinkError::Away(STAYS_STOPPED.to_owned()));
                }
                Err(error) if error.is_transient() => {
                    // The request itself was not sent: the token for it could not be had.
                    let problem = error.problem().filter(|it| is_code_of_server(&it.code));
                    of_database = problem.and_then(error_of);
                    (error.to_string(), None)
                }
                Err(error) => return Err(LinkError::Away(error.to_string())),
            };
            self.note_away();
            if effort == Effort::Demand
                && let Some(error) = of_database
            {
                return Err(LinkError::Database(error));
            }
            let max_wait = match effort {
                Effort::Once => Duration::ZERO,
                Effort::Demand => TIMEOUT,
                Effort::Background => Duration::MAX,
            };
            if since.elapsed() >= max_wait {
                return Err(LinkError::Away(problem));
            }
            sleep(backoff(failures, retry_after)).await;
            failures += 1;
        }
    }

    /// Reports a refused token on standard error, once until a request is accepted again.
    pub(super) fn note_unauthorized(&self, problem: &ClientProblem) {
        if !std::mem::replace(&mut self.state().unauthorized, true) {
            output::note(&format!("svc: the daemon refuses the token: {problem}"));
        }
    }

    async fn try_open(
        &self,
        outgoing: &McpRequest,
        effort: Effort,
    ) -> Result<StreamingReply, ClientError> {
        let stream = match self.send(outgoing).await {
            Err(ClientError::NotRunning { .. })
                if effort == Effort::Demand
                    && self.discovery.fixed().is_none()
                    && !self.stays_stopped() =>
            {
                self.start().await;
                self.send(outgoing).await?
            }
            sent => sent?,
        };
        if stream.status != StatusCode::SERVICE_UNAVAILABLE {
            let mut state = self.state();
            state.was_there = true;
            (state.away_since, state.start_tried) = (None, None);
            state.unauthorized &= stream.status == StatusCode::UNAUTHORIZED;
        }
        Ok(stream)
    }

    /// One attempt with the current token. Replaces a process token that the daemon no longer
    /// knows: a request that got 401 was not carried out.
    async fn send(&self, outgoing: &McpRequest) -> Result<StreamingReply, ClientError> {
        let Some(kept) = &self.process_token else {
            return Client::new(self.discovery.target()?).open(PATH, outgoing).await;
        };
        let mut stale = None;
        loop {
            let token = self.process_token(kept, stale.as_ref()).await?;
            let target = DaemonTarget {
                token: Some(token.clone()),
                token_source: TokenSource::Process,
                ..self.discovery.open_target()?
            };
            let stream = Client::new(target).open(PATH, outgoing).await?;
            if stream.status != StatusCode::UNAUTHORIZED || stale.is_some() {
                return Ok(stream);
            }
            stale = Some(token);
        }
    }

    /// The token of the client's process, or a new one in place of `stale`. Concurrent requests
    /// share one new token.
    async fn process_token(
        &self,
        kept: &tokio::sync::Mutex<Option<Token>>,
        stale: Option<&Token>,
    ) -> Result<Token, ClientError> {
        #[derive(Deserialize)]
        struct Traded {
            token: String,
        }
        let mut kept = kept.lock().await;
        match &*kept {
            Some(token) if stale != Some(token) => return Ok(token.clone()),
            _ => {}
        }
        let client = Client::new(self.discovery.open_target()?);
        let input = json!({ "client_pid": program::client_or_own() });
        let Traded { token } = client.post(PROCESS_TOKENS_PATH, &input).await?;
        let token = Token::parse(&token, Path::new(PROCESS_TOKENS_PATH))?;
        Ok(kept.insert(token).clone())
    }

    /// Starts a daemon, at most once per outage. Concurrent requests wait for that start.
    async fn start(&self) {
        let _turn = self.starting.lock().await;
        {
            let mut state = self.state();
            let away = state.away_since.get_or_insert_with(Instant::now).elapsed();
            let early = state.was_there && away < GRACE;
            // By the time of a later request, the cause of a failed start may be gone.
            let tried = state.start_tried.is_some_and(|at| at.elapsed() < TIMEOUT);
            if early || tried {
                return;
            }
            state.start_tried = Some(Instant::now());
        }
        match daemon::ensure_apart(&self.context).await {
            Ok((DaemonFile { url, pid, .. }, true)) => {
                output::note(&format!("svc: started the daemon: {url} (pid {pid})"));
            }
            Ok((_, false)) => {}
            Err(error) => output::note(&format!("svc: {}", telemetry::chain(&*error))),
        }
    }

    fn stays_stopped(&self) -> bool {
        self.discovery.fixed().is_none() && stays_stopped(&self.context.paths)
    }

    fn note_away(&self) {
        self.state().away_since.get_or_insert_with(Instant::now);
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the daemon may have received the request. [`Client::open`] limits only the time to
/// connect.
fn was_sent(error: &ClientError) -> bool {
    matches!(error, ClientError::Connection { sent: true, .. })
}
