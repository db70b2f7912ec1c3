//! A daemon for tests that answers by a script.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{DaemonFile, Discovery, Target};
use crate::config::{Config, Env, Flags, Paths};

/// Answers one connection after the other, each with its script: one string per request, then it hangs up.
pub(super) struct FakeDaemon {
    pub(super) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl FakeDaemon {
    pub(super) async fn start(scripts: Vec<Vec<String>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("is bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        tokio::spawn(async move {
            for script in scripts {
                let (mut socket, _) = listener.accept().await.expect("accepts");
                for answer in script {
                    let Some(request) = read_request(&mut socket).await else {
                        break;
                    };
                    seen.lock().expect("no test panics in here").push(request);
                    socket.write_all(answer.as_bytes()).await.expect("the client reads");
                }
            }
        });
        Self { address, requests }
    }

    /// The requests so far, head and body.
    pub(super) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no test panics in here").clone()
    }

    /// Writes a `daemon.json` into `home` that names this daemon, and this process, as that exists.
    pub(super) fn write_daemon_json(&self, home: &Path) {
        let daemon = DaemonFile {
            pid: i32::try_from(std::process::id()).expect("fits"),
            url: format!("http://{}", self.address),
            version: "0".to_owned(),
            boot_id: "b".to_owned(),
            started_at: "t".to_owned(),
        };
        let path = home.join("daemon.json.new");
        std::fs::write(&path, serde_json::to_vec(&daemon).expect("serialises")).expect("writes");
        std::fs::rename(path, home.join("daemon.json")).expect("renames");
    }
}

/// Looks for a daemon in `home` only.
pub(super) fn discovery(home: &Path) -> Discovery {
    let env: Env = [("SVC_LISTEN", "127.0.0.1:0"), ("SVC_TOKEN", "tok")].into_iter().collect();
    let paths = Paths::resolve(&env, Some(home)).expect("a home is given");
    let config = Config::resolve(paths, &env, &Flags::default()).expect("is valid");
    Discovery::new(&config, &env, None).expect("is valid")
}

pub(super) fn target(fake: &FakeDaemon) -> Target {
    let home = tempfile::tempdir().expect("a folder");
    fake.write_daemon_json(home.path());
    discovery(home.path()).target().expect("found")
}

/// An answer with a body of a known length.
pub(super) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// An event stream that ends when the connection does.
pub(super) fn stream(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{body}")
}

async fn read_request(socket: &mut TcpStream) -> Option<String> {
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
