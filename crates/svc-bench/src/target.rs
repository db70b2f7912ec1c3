//! The measured server, and requests to it.

use std::net::SocketAddr;

use anyhow::Context as _;
use serde_json::Value;

use crate::{caller::Caller, load::Protocol, wire};

/// A server with HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The address that it listens on.
    pub(crate) address: SocketAddr,
    /// The operator's token, if it needs one.
    pub(crate) token: Option<String>,
}

impl Target {
    /// A request as bytes for the socket.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        self.request_with(method, path, &[], body)
    }

    /// Like `request`, with further headers.
    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {}\r\n", self.address);
        for (name, value) in headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        if let Some(token) = &self.token {
            text.push_str("authorization: Bearer ");
            text.push_str(token);
            text.push_str("\r\n");
        }
        if method == "POST" {
            text.push_str("content-type: application/json\r\ncontent-length: ");
            text.push_str(&body.len().to_string());
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.push_str(body);
        text.into_bytes()
    }

    /// Sends one request on a connection of its own, and waits for the response.
    pub(crate) fn call(&self, method: &str, path: &str, body: &str) -> anyhow::Result<Value> {
        let answer = self.ask(&self.request(method, path, body));
        let answer = answer.with_context(|| format!("{method} {path}"))?;
        Ok(serde_json::from_slice(wire::body(&answer))?)
    }

    /// Sends a request on a connection of its own, and returns the response with its head.
    pub(crate) fn ask(&self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        Caller::open(self.address, &Protocol::HTTP)?.ask(request)
    }
}
