//! Requests that came in whole, answered without hyper.
//!
//! Appends and calls of MCP tools are most of what a busy daemon is asked, and nearly all of them come in one piece. For each
//! request hyper makes a timer, a channel for the body and a second turn of its task: a third of what the request costs
//! here. So a connection begins here. The first request that is anything else, or that leaves any doubt, goes to hyper
//! with all its bytes, and the connection with it.
//!
//! Subscriptions begin here too: hyper's buffers are short-lived, and fragment the heap between those that thousands of idle
//! streams keep.

use std::{
    future::poll_fn,
    io,
    mem::MaybeUninit,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    client_socket::ClientSocket,
    edge::{Edge, is_event_stream},
    events,
    listener::Transport,
    response_head::{BodyLength, response_head},
    tasks,
};
use crate::{domain::limits, web::MCP};

/// Bytes that are read at once. A request that is longer goes to hyper.
const READ_BYTES: usize = 16 * 1024;
/// Header lines that a request has at most here.
const HEADERS: usize = 32;
/// Headers that say something of the connection or of how the body comes.
const OF_THE_CONNECTION: [HeaderName; 5] =
    [header::TRANSFER_ENCODING, header::EXPECT, header::UPGRADE, header::TE, header::TRAILER];

/// What becomes of a connection after the requests that came in whole.
pub(super) enum AfterRequests<S> {
    /// It has a request for hyper.
    Hyper(ClientSocket<S>),
    /// It has a stream to write: the answer to a request that has no body to come any more. Whether it ends with that.
    Stream(ClientSocket<S>, Response, bool),
    /// It is over.
    Closed,
}

/// Answers requests until one is not for here.
pub(super) async fn answer_whole_requests<S: AsyncRead + AsyncWrite + Unpin>(
    mut socket: ClientSocket<S>,
    transport: Transport,
    edge: &Edge,
    stop: &CancellationToken,
) -> AfterRequests<S> {
    let mut stopped = pin!(stop.cancelled());
    let mut alarm = pin!(sleep(limits::HEAD_TIMEOUT));
    loop {
        let deadline = Instant::now() + limits::HEAD_TIMEOUT;
        let arrival = poll_fn(|cx| {
            if let Poll::Ready(arrival) = poll_request(&mut socket, cx) {
                return Poll::Ready(arrival.unwrap_or(Arrival::End));
            }
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Arrival::End);
            }
            while alarm.as_mut().poll(cx).is_ready() {
                // Set for an earlier request: setting it anew for each costs more than that it goes off in vain.
                if alarm.deadline() >= deadline {
                    return Poll::Ready(Arrival::End);
                }
                alarm.as_mut().reset(deadline);
            }
            Poll::Pending
        });
        let WholeRequest { mut request, closes, .. } = match arrival.await {
            Arrival::Whole(request) => request,
            Arrival::Other => return AfterRequests::Hyper(socket),
            Arrival::End => return AfterRequests::Closed,
        };
        transport.describe(request.extensions_mut());
        // Boxed: a connection that is idle does not carry the room that a request takes.
        let mut answer = Box::pin(edge.answer(request.map(Into::into)));
        let answer = poll_fn(|cx| match answer.as_mut().poll(cx) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            // A client that goes away takes back what it asked.
            Poll::Pending => socket.poll_gone(cx).map(|_| None),
        });
        let Some(response) = answer.await else { return AfterRequests::Closed };
        if is_event_stream(&response) || response.body().size_hint().exact().is_none() {
            return AfterRequests::Stream(socket, response, closes);
        }
        let closes = closes || stop.is_cancelled();
        let written = write_response(&mut socket, response, edge, closes).await;
        if closes {
            // An error says that the client was faster.
            socket.shutdown().await.ok();
        }
        if closes || written.is_err() {
            return AfterRequests::Closed;
        }
    }
}

/// A request with its body.
#[derive(Debug)]
struct WholeRequest {
    request: Request<Bytes>,
    /// Bytes that it takes on the wire.
    length: usize,
    /// Whether the connection ends with its answer.
    closes: bool,
}

/// What came in.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be one more allocation for each request"
)]
enum Arrival {
    /// A request for here.
    Whole(WholeRequest),
    /// Something else. The socket has it back.
    Other,
    /// The end of the connection.
    End,
}

fn poll_request<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut ClientSocket<S>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Arrival>> {
    let mut space = [const { MaybeUninit::<u8>::uninit() }; READ_BYTES];
    let mut buffer = ReadBuf::uninit(&mut space);
    ready!(Pin::new(&mut *socket).poll_read(cx, &mut buffer))?;
    if buffer.filled().is_empty() {
        return Poll::Ready(Ok(Arrival::End));
    }
    let bytes = Bytes::copy_from_slice(buffer.filled());
    let Some(whole) = parse(&bytes) else {
        socket.put_back(&bytes);
        return Poll::Ready(Ok(Arrival::Other));
    };
    // What follows is the next request.
    socket.put_back(&bytes[whole.length..]);
    Poll::Ready(Ok(Arrival::Whole(whole)))
}

/// The request at the beginning of `bytes`, if it is one for here and all of it is there.
fn parse(bytes: &Bytes) -> Option<WholeRequest> {
    let mut lines = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Request::new(&mut lines);
    let httparse::Status::Complete(head_len) = head.parse(bytes).ok()? else { return None };
    let path = head.path?;
    let method = match head.method? {
        "POST" if path == MCP || tasks::appended_task(path).is_some() => Method::POST,
        "GET" if events::is_path(path) => Method::GET,
        _ => return None,
    };
    if head.version != Some(1) {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for line in head.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(line.value)).ok()?;
        headers.append(name, value);
    }
    if OF_THE_CONNECTION.iter().any(|name| headers.contains_key(name)) {
        return None;
    }
    let mut options = headers.get_all(header::CONNECTION).iter();
    let closes = match (options.next().map(HeaderValue::as_bytes), options.next()) {
        (None, _) => false,
        (Some(option), None) if option.eq_ignore_ascii_case(b"keep-alive") => false,
        (Some(option), None) if option.eq_ignore_ascii_case(b"close") => true,
        _ => return None,
    };
    let end = head_len.checked_add(body_length(&method, &headers)?)?;
    if end > bytes.len() {
        return None;
    }
    let mut request = Request::new(bytes.slice(head_len..end));
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_maybe_shared(bytes.slice_ref(path.as_bytes())).ok()?;
    *request.headers_mut() = headers;
    Some(WholeRequest { request, length: end, closes })
}

/// How long the body is, if the headers leave no doubt of it.
fn body_length(method: &Method, headers: &HeaderMap) -> Option<usize> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let (length, None) = (lengths.next(), lengths.next()) else { return None };
    let Some(length) = length else { return (method == Method::GET).then_some(0) };
    // More digits than that are more than what came.
    let is_number =
        matches!(length.len(), 1..=9) && length.as_bytes().iter().all(u8::is_ascii_digit);
    if !is_number || method == Method::GET {
        return None;
    }
    length.to_str().ok()?.parse().ok()
}

/// Writes a response that has a body of known length.
async fn write_response<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut ClientSocket<S>,
    response: Response,
    edge: &Edge,
    closes: bool,
) -> io::Result<()> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut text = response_head(&parts, edge.now(), BodyLength::Known(body.len()), closes);
    text.extend_from_slice(&body);
    socket.write_all(&text).await?;
    socket.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = "POST /v1/tasks/task_1/events HTTP/1.1\r\nHost: a\r\n";

    fn parsed(text: &str) -> Option<WholeRequest> {
        parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_request_is_taken_apart_as_it_was_sent() {
        let text = format!("{POST}x-A: \t1, 2 \r\nCONTENT-length: 2\r\nX-a: 3\r\n\r\n{{}}GET / ");
        let WholeRequest { request, length, closes } = parsed(&text).unwrap();
        assert_eq!(
            (request.method(), request.uri().path()),
            (&Method::POST, "/v1/tasks/task_1/events")
        );
        assert_eq!(&text[length..], "GET / ");
        assert!(!closes);
        let values: Vec<_> = request.headers().get_all("x-a").iter().collect();
        assert_eq!(values, ["1, 2", "3"]);
        assert_eq!(request.headers()[header::HOST], "a");
        assert_eq!(&request.body()[..], b"{}");
    }

    #[test]
    fn a_subscription_has_no_body() {
        let get = "GET /v1/events?stream=team HTTP/1.1\r\nHost: a\r\n";
        let WholeRequest { request, length, .. } = parsed(&format!("{get}\r\nGET")).unwrap();
        assert_eq!((request.method(), length), (&Method::GET, get.len() + 2));
        assert_eq!(request.uri(), "/v1/events?stream=team");
        for other in [
            format!("{get}Content-Length: 2\r\n\r\n{{}}"),
            format!("{get}Content-Length: 0\r\n\r\n"),
            format!("{get}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            get.to_owned(),
            get.replace("GET", "HEAD") + "\r\n",
            get.replace("/events?", "/eventss?") + "\r\n",
            get.replace("GET /", "GET http://a/") + "\r\n",
            get.replace("1.1", "1.0") + "\r\n",
        ] {
            assert!(parsed(&other).is_none(), "{other}");
        }
    }

    /// Each of these is for hyper, which knows what to do with it.
    #[test]
    fn what_leaves_any_doubt_is_not_for_here() {
        let plain = "Content-Length: 2\r\n";
        for (head, lines, body) in [
            (POST, "", ""),
            (POST, plain, "{"),
            (POST, "Content-Length: 2\r\nContent-Length: 2\r\n", "{}"),
            (POST, "Content-Length: 2, 2\r\n", "{}"),
            (POST, "Content-Length: +2\r\n", "{}"),
            (POST, "Content-Length: -0\r\n", "{}"),
            (POST, "Content-Length:\r\n", "{}"),
            (POST, "Content-Length: 2x\r\n", "{}"),
            (POST, "Content-Length: 18446744073709551618\r\n", "{}"),
            (POST, "Content-Length: 18446744073709551615\r\n", "{}"),
            (POST, "Content-Length : 2\r\n", "{}"),
            (POST, "Content-Length: 2\r\n x\r\n", "{}"),
            (POST, "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "{}"),
            (POST, "Content-Length: 2\r\nExpect: 100-continue\r\n", "{}"),
            (POST, "Content-Length: 2\r\nUpgrade: h2c\r\n", "{}"),
            (POST, "Content-Length: 2\r\nTE: trailers\r\n", "{}"),
            (POST, "Content-Length: 2\r\nTrailer: x\r\n", "{}"),
            (POST, "Content-Length: 2\r\nConnection: upgrade\r\n", "{}"),
            (POST, "Content-Length: 2\r\nConnection: close, x\r\n", "{}"),
            (POST, "Content-Length: 2\r\nConnection: close\r\nConnection: close\r\n", "{}"),
            (POST, "Content-Length: 2\r\na: \u{1}\r\n", "{}"),
            ("GET /v1/tasks/task_1/events HTTP/1.1\r\n", plain, "{}"),
            ("PUT /mcp HTTP/1.1\r\n", plain, "{}"),
            ("post /mcp HTTP/1.1\r\n", plain, "{}"),
            ("POST /mcp HTTP/1.0\r\n", plain, "{}"),
            ("POST /mcp HTTP/2.0\r\n", plain, "{}"),
            ("POST /mcp/ HTTP/1.1\r\n", plain, "{}"),
            ("POST /mcp?a HTTP/1.1\r\n", plain, "{}"),
            ("POST http://a/mcp HTTP/1.1\r\n", plain, "{}"),
            ("POST /v1/tasks HTTP/1.1\r\n", plain, "{}"),
            ("POST /v1/tasks/a%2Fb/events HTTP/1.1\r\n", plain, "{}"),
            ("POST /v1/tasks/task_1/events?a=b HTTP/1.1\r\n", plain, "{}"),
        ] {
            assert!(parsed(&format!("{head}{lines}\r\n{body}")).is_none(), "{head}{lines}");
        }
        let many = "a: b\r\n".repeat(HEADERS);
        assert!(parsed(&format!("{POST}{plain}{many}\r\n{{}}")).is_none());
        let whole = format!("{POST}{plain}\r\n{{}}");
        assert!(parsed(&whole).is_some());
        for cut in 0..whole.len() {
            assert!(parsed(&whole[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn who_asks_for_it_gets_the_connection_closed() {
        for (value, closes) in [("keep-alive", false), ("Close", true)] {
            let text =
                format!("POST /mcp HTTP/1.1\r\nConnection: {value}\r\nContent-Length: 0\r\n\r\n");
            assert_eq!(parsed(&text).map(|whole| whole.closes), Some(closes));
        }
    }
}
