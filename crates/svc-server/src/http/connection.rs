//! Accepts connections and serves each with hyper, streams included. Not with `axum::serve`, which
//! allows neither this shutdown nor the bounds of connections.

use std::{
    convert::Infallible,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use futures_util::FutureExt as _;
use http::{HeaderValue, Request, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use svc_model::limits;
use svc_sys::telemetry;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    edge::Edge,
    listener::{ClientConnection, ConnectionBounds, Listener, Transport},
};

/// During shutdown, a connection is closed when it has had no request and has written no byte for
/// this long.
const HALF_A_HEAD: Duration = Duration::from_secs(1);

/// Serves until `stop`; then accepts no more connections and lets open ones finish their requests.
/// `connections` tracks when the last one has ended.
pub async fn serve(
    mut listener: impl Listener,
    bounds: ConnectionBounds,
    edge: Edge,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let accept = async {
        loop {
            let slot = bounds.slot().await;
            match listener.next().await {
                Ok((stream, transport)) => {
                    let (client, edge, stop) = (bounds.connection(), edge.clone(), stop.clone());
                    connections.spawn(async move {
                        connection(stream, transport, client, edge, stop).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Most likely out of file descriptors: a pause lets others close.
                    tracing::warn!(error = telemetry::chain(&error), "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop.cancelled() => {}
    }
}

/// Serves a connection to its end. During shutdown an idle connection stays open until every
/// request on any connection has its response: a request on it then gets a 503 with a retry, while
/// a closed connection would not say whether the request arrived.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    transport: Transport,
    client: Arc<ClientConnection>,
    edge: Edge,
    stop: CancellationToken,
) {
    let io = ClientIo::new(stream, Arc::clone(&client), edge.body_stall());
    let requests = Arc::clone(&client);
    let draining = edge.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (edge, client) = (edge.clone(), Arc::clone(&requests));
        let under_way = (client.begin(), edge.begin());
        // Boxed, so that an idle connection does not hold the memory of a request's future.
        Box::pin(async move {
            client.flows().await;
            transport.describe(request.extensions_mut());
            request.extensions_mut().insert(client);
            let mut response = edge.answer(request.map(Body::new)).await;
            if edge.is_draining() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            drop(under_way);
            Ok::<_, Infallible>(response)
        })
    });
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits::HEAD_TIMEOUT)
            .max_buf_size(limits::CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(io), service)
    );
    let ended = tokio::select! {
        ended = serve_until_closed(served.as_mut(), &client) => Some(ended),
        () = stop.cancelled() => {
            draining.drain();
            tokio::select! {
                ended = served.as_mut() => Some(ended),
                () = draining.is_drained() => None,
            }
        }
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        served.as_mut().graceful_shutdown();
        finish(served.as_mut(), &client).await
    };
    client.leave();
    if let Err(error) = ended {
        // The client disconnected, or does not speak HTTP.
        tracing::debug!(error = telemetry::chain(&error), "a connection ended early");
    }
}

async fn finish<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        let writes = client.writes();
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = tokio::time::sleep(HALF_A_HEAD) => {}
        }
        if !client.is_at_work() && client.writes() == writes {
            // The client has sent half of a request head, or does not read its response.
            return Ok(());
        }
    }
}

async fn serve_until_closed<F: Future<Output = Result<(), hyper::Error>>>(
    mut served: Pin<&mut F>,
    client: &ClientConnection,
) -> Result<(), hyper::Error> {
    loop {
        tokio::select! {
            ended = served.as_mut() => return ended,
            () = client.closed() => {}
        }
        // On a busy machine the client's request may have arrived unread.
        tokio::task::yield_now().await;
        if let Some(ended) = served.as_mut().now_or_never() {
            return ended;
        }
        if client.is_to_go() {
            return Ok(());
        }
    }
}

/// The socket of a client, as hyper reads and writes it. The connection ends if the client takes no
/// byte for too long while bytes wait for it.
struct ClientIo<S> {
    socket: S,
    client: Arc<ClientConnection>,
    max_wait: Duration,
    /// Runs while the system takes no bytes. When it expires, the connection ends.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> ClientIo<S> {
    fn new(socket: S, client: Arc<ClientConnection>, max_wait: Duration) -> Self {
        Self { socket, client, max_wait, stalled: None }
    }

    /// The result of a write, or a timeout if the client has taken nothing for too long.
    fn note(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.client.wrote();
            if self.stalled.take().is_some() {
                self.client.set_stalled(false);
            }
            return written;
        }
        let max_wait = self.max_wait;
        let alarm = self.stalled.get_or_insert_with(|| {
            self.client.set_stalled(true);
            Box::pin(tokio::time::sleep(max_wait))
        });
        ready!(alarm.as_mut().poll(cx));
        tracing::info!(
            seconds = max_wait.as_secs_f32(),
            "closing the connection of a client that reads nothing"
        );
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientIo<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.socket).poll_read(cx, buffer);
        match &read {
            Poll::Pending => this.client.waits_for_client(),
            Poll::Ready(_) => this.client.note_activity(),
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientIo<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, bytes);
        this.note(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, slices);
        this.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn write_times_out_for_a_stalled_client_but_not_a_slow_one() {
        let (ours, mut theirs) = duplex(16);
        let mut io = ClientIo::new(ours, Arc::default(), Duration::from_hours(1));
        for _ in 0..64 {
            io.write_all(&[0; 16]).await.unwrap();
            assert!(io.write_all(&[0]).now_or_never().is_none(), "there is no room");
            assert!(io.stalled.is_some());
            theirs.read_exact(&mut [0; 16]).await.unwrap();
            io.write_all(&[0]).await.unwrap();
            // Each byte that is taken ends the timeout.
            assert!(io.stalled.is_none());
            theirs.read_u8().await.unwrap();
        }
        io.max_wait = Duration::from_millis(20);
        let error = io.write_all(&[0; 64]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
