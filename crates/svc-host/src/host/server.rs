//! The socket of a host: where it is, who may connect, and when it ends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use svc_model::AgentId;
use svc_sys::local_socket::{self, SocketFile};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::{HostFace, serve};

/// The wait after a connection could not be accepted, as when there are no descriptors left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// How long clients may take to read the rest of the stream when the host ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A socket that is bound.
#[derive(Debug)]
pub(super) struct HostSocket {
    listener: UnixListener,
    file: SocketFile,
    path: PathBuf,
}

impl HostSocket {
    /// Binds the socket of an agent in `folder`, however long its path is.
    pub(super) fn bind(folder: &Path, agent: &AgentId) -> io::Result<Self> {
        let path = folder.join(format!("{agent}.sock"));
        let (listener, file) = local_socket::listen(&path)?;
        Ok(Self { listener, file, path })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients until `closing`; then those who are attached get the rest of the stream.
    pub(super) async fn serve(self, face: Arc<HostFace>, mut closing: watch::Receiver<bool>) {
        let mut clients = JoinSet::new();
        let me = rustix::process::geteuid().as_raw();
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = clients.join_next() => continue,
                () = async { drop(closing.wait_for(|closing| *closing).await) } => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Whoever is not this user is not spoken to.
                    if stream.peer_cred().is_ok_and(|peer| peer.uid() == me) {
                        clients.spawn(serve(stream, Arc::clone(&face), closing.clone()));
                    }
                }
                Err(_) => sleep(ACCEPT_RETRY).await,
            }
        }
        drop(self.file);
        drop(self.listener);
        timeout(LAST_WORDS, async { while clients.join_next().await.is_some() {} }).await.ok();
    }
}
