//! One connection: requests, and for as long as an answer is a stream of events, that stream.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use axum::response::Response;
use http::{HeaderMap, Method, Request, Version, header};
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{
    client_socket::ClientSocket,
    edge::{Edge, is_event_stream},
    listener::Transport,
    stream_writer::StreamWriter,
    whole_requests::{AfterRequests, answer_whole_requests},
};
use crate::{domain::limits, telemetry};

/// What a connection on which nothing is under way gets to end by itself, at the end.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(super) async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    transport: Transport,
    edge: Edge,
    stop: CancellationToken,
) {
    let mut socket = ClientSocket::new(stream);
    loop {
        // Both are boxed: a connection that streams does not carry the room that requests take.
        let requests = Box::pin(answer_whole_requests(socket, transport, &edge, &stop));
        let taken = match requests.await {
            AfterRequests::Closed => return,
            AfterRequests::Stream(socket, response, closes) => {
                TakenStream { socket, response, closes }
            }
            AfterRequests::Hyper(socket) => {
                let requests = Box::pin(serve_requests(socket, transport, &edge, &stop));
                let Some(taken) = requests.await else { return };
                taken
            }
        };
        let TakenStream { socket: taken, response, closes } = taken;
        let now = edge.now();
        let written = tokio::select! {
            written = StreamWriter::new(taken, response, now, closes).run() => written,
            // At the end each stream ends by itself. A client that does not read is not waited for.
            () = after_stop(&stop) => return,
        };
        match written {
            Ok(next) if !closes && !stop.is_cancelled() => socket = next,
            Ok(_) => return,
            Err(error) => {
                // A client that went away.
                tracing::debug!(error = telemetry::chain(&error), "a stream ended early");
                return;
            }
        }
    }
}

/// Ends some time after the stop has begun: enough for a client that reads.
async fn after_stop(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(HALF_A_HEAD).await;
}

/// A stream of events, and the socket to write it to.
struct TakenStream<S> {
    socket: ClientSocket<S>,
    response: Response,
    /// The connection ends with it.
    closes: bool,
}

/// What the service of a connection says to whoever drives the connection.
struct SharedConnection {
    edge: Edge,
    under_way: AtomicUsize,
    /// A stream of events, and whether the connection ends with it.
    stream: Mutex<Option<(Response, bool)>>,
}

/// Serves requests until the end, or until an answer is a stream of events that we write ourselves.
async fn serve_requests<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: ClientSocket<S>,
    transport: Transport,
    edge: &Edge,
    stop: &CancellationToken,
) -> Option<TakenStream<S>> {
    let shared = Arc::new(SharedConnection {
        edge: edge.clone(),
        under_way: AtomicUsize::new(0),
        stream: Mutex::default(),
    });
    let mine = Arc::clone(&shared);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&mine);
        // Boxed: a connection that is idle does not carry the room that a request takes.
        Box::pin(async move {
            let is_plain = is_plain_get(&request);
            let closes = asks_to_close(request.headers());
            shared.under_way.fetch_add(1, Relaxed);
            let response = shared.edge.handle(request, transport).await;
            shared.under_way.fetch_sub(1, Relaxed);
            if is_plain && is_event_stream(&response) {
                *shared.stream.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((response, closes));
                // The connection is taken from hyper, and this is dropped with it.
                return std::future::pending().await;
            }
            Ok::<_, Infallible>(response)
        })
    });
    let flushed = socket.flushed();
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_buf_size(128 * 1024)
        .serve_connection(TokioIo::new(socket), service);
    let served = tokio::select! {
        served = drive(&mut connection, &shared, &flushed) => served,
        () = stop.cancelled() => {
            Pin::new(&mut connection).graceful_shutdown();
            loop {
                tokio::select! {
                    served = drive(&mut connection, &shared, &flushed) => break served,
                    () = tokio::time::sleep(HALF_A_HEAD) => {}
                }
                if shared.under_way.load(Relaxed) == 0 {
                    // It has sent half of a request's head, if anything: there is nothing to wait for.
                    break Ok(None);
                }
            }
        }
    };
    match served {
        Ok(None) => None,
        Ok(Some((response, closes))) => {
            let parts = connection.into_parts();
            let mut socket = parts.io.into_inner();
            socket.put_back(&parts.read_buf);
            Some(TakenStream { socket, response, closes })
        }
        Err(error) => {
            // A client that went away, or that does not speak HTTP.
            tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
            None
        }
    }
}

/// Drives a connection of hyper to its end, or until there is a stream and the answers before it are written.
async fn drive(
    connection: &mut (impl Future<Output = Result<(), hyper::Error>> + Unpin),
    shared: &SharedConnection,
    flushed: &AtomicBool,
) -> Result<Option<(Response, bool)>, hyper::Error> {
    poll_fn(|cx| match Pin::new(&mut *connection).poll(cx) {
        Poll::Pending if flushed.load(Relaxed) => {
            match shared.stream.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(stream) => Poll::Ready(Ok(Some(stream))),
                None => Poll::Pending,
            }
        }
        served => served.map_ok(|()| None),
    })
    .await
}

/// Whether we can write the answer ourselves: there is no body that may still come, and the client knows chunks.
fn is_plain_get(request: &Request<Incoming>) -> bool {
    let is_get = request.method() == Method::GET && request.version() == Version::HTTP_11;
    is_get && request.body().is_end_stream()
}

/// RFC 9112, 9.6.
fn asks_to_close(headers: &HeaderMap) -> bool {
    headers.get_all(header::CONNECTION).iter().any(|value| {
        let mut options = value.as_bytes().split(|byte| *byte == b',');
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
    })
}
