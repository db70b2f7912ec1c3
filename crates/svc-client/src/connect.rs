//! Connects to a daemon. A connection is returned only if its peer is the daemon, so that no token
//! goes to anybody else: on the Unix socket the kernel says whose process listens, and over TCP the
//! daemon proves that it knows the token.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use svc_model::{ProofQuestion, TokenFingerprint, new_secret, token_hash};
use svc_sys::local_socket::{self, ConnectError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::discover::{DaemonTarget, Endpoint, Token, Url};
use super::error::{ClientError, ClientProblem};

/// Time limit for connecting, and for a proof.
const CONNECT: Duration = Duration::from_secs(5);
/// Largest proof, in bytes.
const MAX_PROOF: usize = 64 * 1024;

pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Returns the connection, and the daemon's process, which the kernel reports only on the socket.
pub(super) async fn connect(target: &DaemonTarget) -> Result<(Sender, Option<i32>), ClientError> {
    match &target.endpoint {
        Endpoint::Socket(path) => {
            let stream = in_time(target, local_socket::connect(path)).await?;
            let stream = stream.map_err(|error| refused(target, error))?;
            let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
            Ok((open(target, stream).await?, pid))
        }
        Endpoint::Tcp(url) => {
            let stream = match in_time(target, TcpStream::connect(url.socket())).await? {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    return Err(ClientError::NotRunning { url: target.endpoint.to_string() });
                }
                Err(error) => return Err(broken(target, &error)),
            };
            // With Nagle's algorithm each small message would take 40 ms longer.
            stream.set_nodelay(true).map_err(|error| broken(target, &error))?;
            let address = stream.peer_addr().map_err(|error| broken(target, &error))?;
            let mut sender = open(target, stream).await?;
            if let Some(token) = &target.token {
                in_time(target, prove(target, url, address, token, &mut sender)).await??;
            }
            Ok((sender, None))
        }
    }
}

async fn open(
    target: &DaemonTarget,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Sender, ClientError> {
    let (sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| broken(target, &error))?;
    // The task ends when the sender is dropped or the peer closes the connection.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

/// Requires a proof that the peer knows the token. The question reveals nothing about the token.
async fn prove(
    target: &DaemonTarget,
    url: &Url,
    address: SocketAddr,
    token: &Token,
    sender: &mut Sender,
) -> Result<(), ClientError> {
    let unproven = |problem: String, is_unknown_token| ClientError::Unproven {
        url: url.to_string(),
        problem,
        is_unknown_token,
    };
    let (hash, nonce) = (token_hash(token.expose()), new_secret());
    // The name of this machine may have several addresses; the proof is for the connected one.
    let authority =
        if url.is_address_or_localhost() { address.to_string() } else { url.authority() };
    let question = ProofQuestion { nonce: &nonce, authority: &authority };
    let body = json!({ "token": TokenFingerprint::from_hash(&hash).to_string(), "nonce": nonce });
    let request = Request::builder()
        .method(Method::POST)
        .uri(url.path("/v1/daemon_proof"))
        .header(HOST, &authority)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body.to_string().into()))
        .map_err(|error| unproven(error.to_string(), false))?;
    let response = sender.send_request(request).await.map_err(|error| broken(target, &error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_PROOF).collect().await;
    let body = body.map_err(|error| broken(target, error.as_ref()))?.to_bytes();
    let source = &target.token_source;
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => {
            let problem = format!(
                "it does not know {source}: it is the daemon of another data folder, or the token is no longer good"
            );
            return Err(unproven(problem, true));
        }
        StatusCode::FORBIDDEN => {
            let problem = format!(
                "it was not reached at an address of its own: behind a proxy or a mapped port it needs --allowed-host {authority}"
            );
            return Err(unproven(problem, false));
        }
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let problem = ClientProblem::parse(status, None, &body, source.clone());
            return Err(ClientError::Problem(Box::new(problem)));
        }
        _ => {
            let problem = format!(
                "it gives no proof ({status}): it is no svc daemon, or one of an earlier version (`svc restart` there)"
            );
            return Err(unproven(problem, false));
        }
    }
    let reply: Value = serde_json::from_slice(&body).unwrap_or_default();
    if reply["proof"].as_str().is_some_and(|proof| question.accepts(&hash, proof)) {
        return sender.ready().await.map_err(|error| broken(target, &error));
    }
    let problem = "its proof is wrong: it is another program, or one that passes requests on under another Host";
    Err(unproven(problem.to_owned(), false))
}

async fn in_time<T>(
    target: &DaemonTarget,
    work: impl Future<Output = T>,
) -> Result<T, ClientError> {
    timeout(CONNECT, work).await.map_err(|_| ClientError::Timeout {
        url: target.endpoint.to_string(),
        seconds: CONNECT.as_secs(),
    })
}

fn refused(target: &DaemonTarget, error: ConnectError) -> ClientError {
    let url = target.endpoint.to_string();
    match error {
        ConnectError::Absent(_) => ClientError::NotRunning { url },
        ConnectError::Foreign { .. } | ConnectError::OtherProcess { .. } => {
            ClientError::Foreign(error.to_string())
        }
        ConnectError::Io { source, .. } => {
            ClientError::Connection { url, problem: source.to_string(), sent: false }
        }
    }
}

fn broken(target: &DaemonTarget, error: &(dyn std::error::Error + '_)) -> ClientError {
    let url = target.endpoint.to_string();
    ClientError::Connection { url, problem: error.to_string(), sent: false }
}
