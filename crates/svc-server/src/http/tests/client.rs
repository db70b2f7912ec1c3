//! A blocking client of the adapter in process.

use std::rc::Rc;

use axum::body::Body;
use http::{Method, request::Builder};
use serde_json::{Value, json};
use svc_core::service::Tuning;
use tokio::runtime::Runtime;

use super::server::{Reply, TestServer};

/// The sender of requests: the operator, or a session.
pub(crate) struct Client {
    local: Rc<Local>,
    token: Option<String>,
}

struct Local {
    server: TestServer,
    runtime: Runtime,
}

/// A request that is not sent yet.
pub(super) struct Draft<'a> {
    client: &'a Client,
    builder: Builder,
    body: Body,
}

impl Client {
    pub(super) fn start() -> Self {
        Self::with(&Tuning::default())
    }

    pub(super) fn with(tuning: &Tuning) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let server = runtime.block_on(TestServer::with(tuning));
        Self { local: Rc::new(Local { server, runtime }), token: None }
    }

    /// The client with a token of this session.
    pub(super) fn session(&self, session: &str) -> Self {
        let minted = self.post("/v1/tokens", &json!({ "session": session })).ok(201);
        Self { local: Rc::clone(&self.local), token: minted["token"].as_str().map(str::to_owned) }
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.request("GET", path).send()
    }

    pub(super) fn delete(&self, path: &str) -> Reply {
        self.request("DELETE", path).send()
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.request("POST", path).header("Content-Type", "application/json");
        request.body(body.to_string()).send()
    }

    pub(super) fn request(&self, method: &str, path: &str) -> Draft<'_> {
        let method: Method = method.parse().unwrap();
        let builder = self.local.server.request(self.token.as_deref(), method, path);
        Draft { client: self, builder, body: Body::empty() }
    }
}

impl Draft<'_> {
    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub(super) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn send(self) -> Reply {
        let local = &self.client.local;
        let request = self.builder.body(self.body).unwrap();
        local.runtime.block_on(local.server.send(request))
    }
}
