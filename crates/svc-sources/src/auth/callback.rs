//! The redirect target of a login: a port of this machine, for as long as the login takes.

use std::{
    convert::Infallible,
    io::{self, ErrorKind},
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use svc_sys::connection_owner::ConnectionOwner;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{sleep, timeout},
};

const STRANGE: &str = "<!doctype html><meta charset=utf-8><title>svc</title><p>svc does not wait for this login. The login that it waits for is still open.";
const PAGE: &str = "<!doctype html><meta charset=utf-8><title>svc</title><p>The login continues in svc. You can close this page.";
/// Whether the query of a redirect belongs to the login.
pub(crate) type RedirectCheck = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Capacity of the queue of redirects.
const WAITING: usize = 16;
/// Concurrent connections; more wait. Any web page and any user of this machine may connect.
const CONNECTIONS: usize = 32;
/// Deadline for a connection.
const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// Attempts for a port that is in use, and the delay between two attempts.
const TRIES: u32 = 20;
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct CallbackListener {
    listeners: Vec<TcpListener>,
    port: u16,
}

impl CallbackListener {
    /// Binds a port, 0 for any. The error is for people.
    pub(crate) async fn bind(port: u16) -> Result<Self, String> {
        let mut tries = 1;
        let bound = loop {
            match bind_both(port).await {
                // A login that was cancelled a moment ago may still hold the port.
                Err(error) if error.kind() == ErrorKind::AddrInUse && tries < TRIES => {
                    tries += 1;
                    sleep(RETRY).await;
                }
                bound => break bound,
            }
        };
        bound.map_err(|error| format!("the port {port} of this machine cannot be used: {error}"))
    }

    pub(crate) fn redirect(&self) -> String {
        format!("http://localhost:{}/callback", self.port)
    }

    /// The queries of redirects that belong to the login, until the receiver is dropped. Any web
    /// page can send the browser here with another query, which is ignored.
    pub(crate) fn redirects(self, is_own: &RedirectCheck) -> mpsc::Receiver<String> {
        let (redirects, taken) = mpsc::channel(WAITING);
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        for listener in self.listeners {
            let (redirects, room, is_own) =
                (redirects.clone(), Arc::clone(&room), Arc::clone(is_own));
            tokio::spawn(async move {
                loop {
                    let next = async {
                        let permit = Arc::clone(&room).acquire_owned().await;
                        (permit, listener.accept().await)
                    };
                    match tokio::select! { () = redirects.closed() => return, next = next => next }
                    {
                        (Ok(permit), Ok((stream, _))) => {
                            tokio::spawn(serve(
                                stream,
                                redirects.clone(),
                                Arc::clone(&is_own),
                                permit,
                            ));
                        }
                        // Most likely out of file descriptors.
                        _ => sleep(RETRY).await,
                    }
                }
            });
        }
        taken
    }
}

/// Binds both addresses that `localhost` may resolve to: if another user held one of them, the
/// browser might connect to that user.
async fn bind_both(port: u16) -> io::Result<CallbackListener> {
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let port = first.local_addr()?.port();
    let second = match TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await {
        Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(error),
        // This machine has no IPv6 loopback address.
        bound => bound.ok(),
    };
    let listeners = std::iter::once(first).chain(second).collect();
    Ok(CallbackListener { listeners, port })
}

async fn serve(
    stream: TcpStream,
    redirects: mpsc::Sender<String>,
    is_own: RedirectCheck,
    _permit: OwnedSemaphorePermit,
) {
    let closed = redirects.clone();
    // Other users can read the state of a login, which is in the URL that the browser was opened
    // with. So the connection has to be this user's, too.
    let is_ours = match (stream.peer_addr(), stream.local_addr()) {
        (Ok(from), Ok(to)) => ConnectionOwner::of_connection(from, to, &[]).is_this_user(),
        _ => false,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (redirects, is_own) = (redirects.clone(), Arc::clone(&is_own));
        async move {
            let mut response = Response::new(Full::new(Bytes::from_static(PAGE.as_bytes())));
            let headers = response.headers_mut();
            headers
                .insert("content-type", http::HeaderValue::from_static("text/html; charset=utf-8"));
            headers.insert("cache-control", http::HeaderValue::from_static("no-store"));
            headers.insert("referrer-policy", http::HeaderValue::from_static("no-referrer"));
            headers.insert("connection", http::HeaderValue::from_static("close"));
            if request.uri().path() == "/callback" {
                let query = request.uri().query().unwrap_or_default().to_owned();
                if is_ours && is_own(&query) {
                    // Waits for capacity, so that a flood by others does not lose the redirect.
                    redirects.send(query).await.ok();
                } else {
                    *response.status_mut() = StatusCode::BAD_REQUEST;
                    *response.body_mut() = Full::new(Bytes::from_static(STRANGE.as_bytes()));
                }
            } else {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        served = timeout(SERVED_WITHIN, connection.as_mut()) => {
            served.ok();
        }
        () = closed.closed() => {
            // The response to the redirect is still sent.
            connection.as_mut().graceful_shutdown();
            timeout(SERVED_WITHIN, connection).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn connect(port: u16) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("is there")
    }

    #[tokio::test]
    async fn redirect_arrives_among_silent_connections() {
        let listener = CallbackListener::bind(0).await.expect("is bound");
        let port = listener.port;
        let own: RedirectCheck = Arc::new(|query| query == "state=own");
        let mut redirects = listener.redirects(&own);
        let mut crowd = Vec::new();
        for _ in 0..CONNECTIONS + 8 {
            crowd.push(connect(port).await);
        }
        let mut stranger = connect(port).await;
        stranger
            .write_all(b"GET /callback?state=other HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .expect("is sent");
        let mut page = String::new();
        stranger.read_to_string(&mut page).await.expect("is read");
        assert!(page.starts_with("HTTP/1.1 400") && page.contains("still open"), "{page}");
        let mut browser = connect(port).await;
        browser
            .write_all(b"GET /callback?state=own HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .expect("is sent");
        let query = timeout(SERVED_WITHIN * 6, redirects.recv()).await;
        assert_eq!(query.expect("in time").as_deref(), Some("state=own"));
        drop(redirects);
        let mut page = String::new();
        browser.read_to_string(&mut page).await.expect("is read");
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("no-store"), "{page}");
        drop(crowd);
    }

    #[tokio::test]
    async fn port_with_one_address_taken_is_not_used() {
        let Ok(other) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
            // Without IPv6 there is only one address to bind.
            assert!(CallbackListener::bind(0).await.is_ok());
            return;
        };
        let port = other.local_addr().expect("has one").port();
        let refused = CallbackListener::bind(port).await.expect_err("is taken");
        assert!(refused.contains(&port.to_string()), "{refused}");
        assert!(CallbackListener::bind(0).await.is_ok());
    }
}
