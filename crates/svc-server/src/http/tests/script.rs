//! Consecutive requests, recorded with their responses.

use std::fmt::Write as _;

use axum::body::Body;
use http::{HeaderName, Method, Request, header};
use serde_json::{Value, json};
use svc_core::service::Tuning;

use super::server::{Reply, TestServer};

pub(super) struct Script {
    pub(super) server: TestServer,
    /// The token of the next requests; `None` for the operator's.
    pub(super) token: Option<String>,
    /// Requests and responses, without what differs from run to run.
    pub(super) text: String,
    pub(super) exchanges: Vec<Exchange>,
}

/// The request and response that coverage counts.
pub(super) struct Exchange {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) status: u16,
}

impl Script {
    pub(super) async fn new() -> Self {
        Self::over(TestServer::start().await)
    }

    pub(super) async fn with(tuning: &Tuning) -> Self {
        Self::over(TestServer::with(tuning).await)
    }

    pub(super) fn over(server: TestServer) -> Self {
        Self { server, token: None, text: String::new(), exchanges: Vec::new() }
    }

    pub(super) async fn get(&mut self, path: &str) -> Reply {
        self.call(Method::GET, path).await
    }

    pub(super) async fn delete(&mut self, path: &str) -> Reply {
        self.call(Method::DELETE, path).await
    }

    /// Sends a request without a body.
    pub(super) async fn call(&mut self, method: Method, path: &str) -> Reply {
        let request = self.request(method, path).body(Body::empty()).unwrap();
        self.send(request, "").await
    }

    pub(super) async fn get_with(&mut self, path: &str, name: HeaderName, value: &str) -> Reply {
        let request = self.request(Method::GET, path).header(name, value);
        self.send(request.body(Body::empty()).unwrap(), "").await
    }

    pub(super) async fn post(&mut self, path: &str, body: Value) -> Reply {
        self.post_text(path, "application/json", &body.to_string()).await
    }

    pub(super) async fn post_text(&mut self, path: &str, media_type: &str, body: &str) -> Reply {
        let request = self.request(Method::POST, path).header(header::CONTENT_TYPE, media_type);
        self.send(request.body(Body::from(body.to_owned())).unwrap(), body).await
    }

    /// Metrics without their values, sorted by name.
    pub(super) async fn get_metrics(&mut self, accept: &str) -> Reply {
        let request = self.request(Method::GET, "/metrics").header(header::ACCEPT, accept);
        let request = request.body(Body::empty()).unwrap();
        self.note_request(&request, "");
        let mut reply = self.server.send(request).await;
        let mut lines: Vec<_> = reply.body.lines().map(without_value).collect();
        lines.sort_unstable();
        reply.body = lines.join("\n");
        self.note_reply(Method::GET, "/metrics".to_owned(), &reply);
        reply
    }

    /// The first `blocks` blocks of an endless feed.
    pub(super) async fn follow(&mut self, path: &str, blocks: usize) -> Reply {
        let request = self.request(Method::GET, path).header(header::ACCEPT, "text/event-stream");
        let request = request.body(Body::empty()).unwrap();
        self.note_request(&request, "");
        let (method, target) = (request.method().clone(), request.uri().path().to_owned());
        let reply = self.server.send_and_read(request, blocks).await;
        self.note_reply(method, target, &reply);
        reply
    }

    /// A message to the MCP server, or a request for its messages. Of an endless feed the first
    /// `blocks` blocks are read.
    pub(super) async fn mcp(
        &mut self,
        method: Method,
        target: &str,
        session: Option<&str>,
        body: &str,
        blocks: Option<usize>,
    ) -> Reply {
        let media_types = "application/json, text/event-stream";
        let mut request = self.request(method.clone(), target).header(header::ACCEPT, media_types);
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let Some(blocks) = blocks else { return self.send(request, body).await };
        self.note_request(&request, body);
        let path = request.uri().path().to_owned();
        let reply = self.server.send_and_read(request, blocks).await;
        self.note_reply(method, path, &reply);
        reply
    }

    pub(super) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        self.server.request(self.token.as_deref(), method, path)
    }

    /// `body` is the text for the body in the snapshot.
    pub(super) async fn send(&mut self, request: Request<Body>, body: &str) -> Reply {
        self.note_request(&request, body);
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let reply = self.server.send(request).await;
        self.note_reply(method, path, &reply);
        reply
    }

    fn note_request(&mut self, request: &Request<Body>, body: &str) {
        writeln!(self.text, "> {} {}", request.method(), request.uri()).unwrap();
        let authorization = request.headers().get(header::AUTHORIZATION);
        match authorization.map(|value| value.to_str().unwrap()) {
            None => writeln!(self.text, "> (no authorization)").unwrap(),
            Some(value) if !value.starts_with("Bearer ") => {
                writeln!(self.text, "> authorization: {value}").unwrap();
            }
            Some(_) if self.token.is_some() => {
                writeln!(self.text, "> authorization: Bearer <not the operator's>").unwrap();
            }
            Some(_) => {}
        }
        let usual = [("host", "localhost"), ("content-type", "application/json")];
        for (name, value) in request.headers() {
            let value = value.to_str().unwrap();
            if name != header::AUTHORIZATION && !usual.contains(&(name.as_str(), value)) {
                writeln!(self.text, "> {name}: {value}").unwrap();
            }
        }
        if !body.is_empty() {
            writeln!(self.text, "> {body}").unwrap();
        }
    }

    fn note_reply(&mut self, method: Method, path: String, reply: &Reply) {
        writeln!(self.text, "{}", reply.status).unwrap();
        let id = reply.headers["x-request-id"].to_str().unwrap();
        // The length of a body that contains a size or a version differs.
        let headers = reply.headers.iter().filter(|(name, _)| *name != header::CONTENT_LENGTH);
        for (name, value) in headers {
            let value = value.to_str().unwrap().replace(id, "<request-id>");
            writeln!(self.text, "{name}: {value}").unwrap();
        }
        let body = reply.body.replace(&json!(id).to_string(), "\"<request-id>\"");
        match serde_json::from_str::<Value>(&body) {
            Ok(json) => writeln!(self.text, "{}", pretty(json)).unwrap(),
            Err(_) => writeln!(self.text, "{body}").unwrap(),
        }
        self.text.push('\n');
        self.exchanges.push(Exchange { method, path, status: reply.status });
    }
}

/// A sample without its value; a comment unchanged.
fn without_value(line: &str) -> &str {
    match line.rsplit_once(' ') {
        Some((sample, _)) if !line.starts_with('#') => sample,
        _ => line,
    }
}

/// JSON on several lines, without what differs from run to run.
fn pretty(mut json: Value) -> String {
    for member in [
        "token",
        "version",
        "target",
        "profile",
        "size_bytes",
        "wal_bytes",
        "free_bytes",
        "schema_version",
        "score",
        "proof",
    ] {
        redact(&mut json, member);
    }
    serde_json::to_string_pretty(&json).unwrap()
}

/// Replaces every text or number called `member` by a placeholder.
fn redact(json: &mut Value, member: &str) {
    match json {
        Value::Object(members) => {
            for (name, value) in members {
                if name == member && (value.is_string() || value.is_number()) {
                    *value = format!("<{member}>").into();
                } else {
                    redact(value, member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact(item, member)),
        _ => {}
    }
}
