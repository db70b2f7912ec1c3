//! Which process of this machine sends a request, as far as the connection shows it.

use std::{convert::Infallible, net::SocketAddr};

use axum::{extract::FromRequestParts, http::request::Parts};
use svc_model::LocalProcess;
use svc_sys::connection_owner;

use super::listener::{ClientAddress, LocalAddress};

/// The other end of a request's connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum OtherProcess {
    /// The Unix socket shows it.
    Local(Option<u32>),
    /// A connection over TCP: the system's list of sockets has its process.
    Tcp {
        from: SocketAddr,
        to: SocketAddr,
    },
    Unknown,
}

impl OtherProcess {
    /// Its process id; `None` if it is of another machine or user.
    pub(super) async fn find(self) -> Option<u32> {
        match self {
            Self::Local(pid) => pid,
            Self::Tcp { from, to } => {
                let find = move || connection_owner::process_of_connection(from, to);
                tokio::task::spawn_blocking(find).await.ok().flatten()
            }
            Self::Unknown => None,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for OtherProcess {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let extensions = &parts.extensions;
        if let Some(process) = extensions.get::<LocalProcess>() {
            return Ok(Self::Local(process.pid));
        }
        Ok(match (extensions.get::<ClientAddress>(), extensions.get::<LocalAddress>()) {
            (Some(ClientAddress(from)), Some(LocalAddress(to))) => {
                Self::Tcp { from: *from, to: *to }
            }
            _ => Self::Unknown,
        })
    }
}
