//! A scripted daemon, for the tests of this crate.

use std::path::Path;
use std::sync::{Arc, Mutex};

use svc_sys::config::{Config, Env, Flags, Paths};
use svc_sys::local_socket;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{DaemonTarget, Discovery};

/// Serves one connection after the other. Each connection has a script with one response per
/// request.
pub(super) struct FakeDaemon {
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeDaemon {
    /// Starts the daemon; it replaces an earlier listener on the socket in `home`.
    pub(super) fn start(home: &Path, scripts: Vec<Vec<String>>) -> Self {
        let (listener, file) =
            local_socket::listen(&home.join("svc.sock")).expect("the folder is there");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            for script in scripts {
                let (mut socket, _) = listener.accept().await.expect("accepts");
                answer_by(&script, &mut socket, &seen).await;
            }
            drop(file);
        });
        Self { requests }
    }

    /// Head and body of each request so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no test panics in here").clone()
    }
}

pub(super) fn discovery(home: &Path) -> Discovery {
    let env: Env = [("SVC_TOKEN", "tok")].into_iter().collect();
    let paths = Paths::resolve(&env, Some(home)).expect("a home is given");
    let config = Config::resolve(paths, &env, &Flags::default()).expect("is valid");
    Discovery::new(&config.paths, config.token_file.value, &env, None).expect("is valid")
}

pub(super) fn target(home: &Path) -> DaemonTarget {
    discovery(home).target().expect("is valid")
}

async fn answer_by(
    script: &[String],
    socket: &mut (impl AsyncRead + AsyncWrite + Unpin),
    seen: &Mutex<Vec<String>>,
) {
    for answer in script {
        let Some(request) = read_request(socket).await else {
            break;
        };
        seen.lock().expect("no test panics in here").push(request);
        socket.write_all(answer.as_bytes()).await.expect("the client reads");
    }
}

pub(super) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// An event stream that ends with the connection.
pub(super) fn stream(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{body}")
}

async fn read_request(socket: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned)
            });
            let length: usize = length.map_or(0, |text| text.trim().parse().expect("a number"));
            if body.len() >= length {
                return Some(text);
            }
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
