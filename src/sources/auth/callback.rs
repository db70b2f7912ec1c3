//! Where the browser comes back to after a login: a port of this machine, for as long as the login takes.

use std::{convert::Infallible, io::ErrorKind, net::Ipv4Addr, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

const PAGE: &str = "<!doctype html><meta charset=utf-8><title>svc</title><p>The login goes on in svc. This page can be closed.";
/// Redirects that wait to be looked at.
const WAITING: usize = 16;

/// A port that waits for a redirect.
#[derive(Debug)]
pub(in crate::sources) struct CallbackListener {
    listeners: Vec<TcpListener>,
    port: u16,
}

impl CallbackListener {
    /// Binds a port, 0 for any. The error is for people.
    pub(in crate::sources) async fn bind(port: u16) -> Result<Self, String> {
        let mut first = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        // A login that was given up a moment ago may still have it.
        for _ in 0..20 {
            if first.as_ref().err().map(std::io::Error::kind) != Some(ErrorKind::AddrInUse) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            first = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        }
        let first = first
            .map_err(|error| format!("the port {port} of this machine cannot be used: {error}"))?;
        let port = first.local_addr().map_err(|error| error.to_string())?.port();
        let mut listeners = vec![first];
        // `localhost` may be either.
        listeners.extend(TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, port)).await.ok());
        Ok(Self { listeners, port })
    }

    /// The address that the issuer redirects to.
    pub(in crate::sources) fn redirect(&self) -> String {
        format!("http://localhost:{}/callback", self.port)
    }

    /// Gives the query of each redirect that comes in, until nobody takes them any more.
    pub(in crate::sources) fn redirects(self) -> mpsc::Receiver<String> {
        let (redirects, taken) = mpsc::channel(WAITING);
        for listener in self.listeners {
            let redirects = redirects.clone();
            tokio::spawn(async move {
                loop {
                    let stream = tokio::select! {
                        () = redirects.closed() => return,
                        accepted = listener.accept() => accepted,
                    };
                    if let Ok((stream, _)) = stream {
                        tokio::spawn(serve(stream, redirects.clone()));
                    }
                }
            });
        }
        taken
    }
}

async fn serve(stream: TcpStream, redirects: mpsc::Sender<String>) {
    let closed = redirects.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let redirects = redirects.clone();
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
                redirects.try_send(query).ok();
            } else {
                *response.status_mut() = StatusCode::NOT_FOUND;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        served = connection.as_mut() => {
            served.ok();
        }
        () = closed.closed() => {
            // Its last answer goes out.
            connection.as_mut().graceful_shutdown();
            connection.await.ok();
        }
    }
}
