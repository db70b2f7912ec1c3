//! The router and its OpenAPI document. One call declares a route and describes it, so that the
//! two cannot differ. The paths of the MCP server, which serves them itself, are only described.

use axum::{
    Router,
    body::Body,
    handler::Handler,
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, delete, get, post},
};
use futures_util::future::BoxFuture;
use http::Request;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use svc_core::service::{Listed, Page};
use svc_model::{Caller, PageQuery};

use super::{App, request};
use crate::web::{ProblemBody, RouteName};

/// A handler that reads much: it waits for its caller's turn, and renders its response within it.
#[derive(Debug, Clone)]
struct FairRead<H>(H);

impl<H, T> Handler<T, App> for FairRead<H>
where
    H: Handler<T, App>,
    T: 'static,
{
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request<Body>, app: App) -> Self::Future {
        let services = app.services.clone();
        let caller = request.extensions().get::<Caller>().cloned();
        let answer = self.0.call(request, app);
        Box::pin(async move {
            match caller {
                Some(caller) => services.read_in_turn(&caller, answer).await,
                // Without a caller the handler itself returns the error.
                None => answer.await,
            }
        })
    }
}

/// A handler that uses no body: one that comes all the same is checked as on other routes.
#[derive(Debug, Clone)]
struct WithoutBody<H>(H);

impl<H, T> Handler<T, App> for WithoutBody<H>
where
    H: Handler<T, App>,
    T: 'static,
{
    type Future = BoxFuture<'static, Response>;

    fn call(self, request: Request<Body>, app: App) -> Self::Future {
        Box::pin(async move {
            let checked = request::without_body(request, &app).await;
            match checked {
                Ok(request) => self.0.call(request, app).await,
                Err(problem) => problem.into_response(),
            }
        })
    }
}

pub(super) struct Api {
    router: Router<App>,
    generator: SchemaGenerator,
    paths: Map<String, Value>,
}

impl Api {
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into());
        let (generator, paths) = (settings.into_generator(), Map::new());
        Self { router: Router::new(), generator, paths }
    }

    pub(super) fn get<T: 'static>(
        self,
        path: &'static str,
        operation: Operation,
        handler: impl Handler<T, App>,
    ) -> Self {
        self.add(path, "get", operation, get(handler))
    }

    /// A `GET` that reads much: a list or a history.
    pub(super) fn list<T: 'static>(
        self,
        path: &'static str,
        operation: Operation,
        handler: impl Handler<T, App>,
    ) -> Self {
        self.add(path, "get", operation, get(FairRead(handler)))
    }

    pub(super) fn post<T: 'static>(
        self,
        path: &'static str,
        operation: Operation,
        handler: impl Handler<T, App>,
    ) -> Self {
        let has_body = operation.parts.iter().any(|part| matches!(part, Part::Body(..)));
        let route = if has_body { post(handler) } else { post(WithoutBody(handler)) };
        self.add(path, "post", operation, route)
    }

    pub(super) fn delete<T: 'static>(
        self,
        path: &'static str,
        operation: Operation,
        handler: impl Handler<T, App>,
    ) -> Self {
        self.add(path, "delete", operation, delete(handler))
    }

    /// Not generic, so that it exists once in the program and not for each handler.
    fn add(
        mut self,
        path: &'static str,
        method: &str,
        operation: Operation,
        route: MethodRouter<App>,
    ) -> Self {
        self.describe(path, method, operation);
        self.router = self.router.route(path, route.layer(RouteName::layer(path)));
        self
    }
}

pub(super) struct Operation {
    summary: &'static str,
    parts: Vec<Part>,
    answers: Vec<Answer>,
    open: bool,
}

type SchemaFunction = fn(&mut SchemaGenerator) -> Value;

enum Part {
    Query(SchemaFunction),
    Body(SchemaFunction, bool),
    Header(&'static str, &'static str),
}

struct Answer {
    status: u16,
    what: &'static str,
    media_type: &'static str,
    schema: Option<SchemaFunction>,
}

impl Operation {
    pub(super) fn new(summary: &'static str) -> Self {
        Self { summary, parts: Vec::new(), answers: Vec::new(), open: false }
    }

    pub(super) fn open(mut self) -> Self {
        self.open = true;
        self
    }

    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.parts.push(Part::Query(schema::<T>));
        self
    }

    pub(super) fn page_of<T: Listed>(self, what: &'static str) -> Self {
        self.query::<PageQuery>().answer::<Page<T>>(200, what)
    }

    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        self.parts.push(Part::Body(schema::<T>, true));
        self
    }

    pub(super) fn optional_body<T: JsonSchema>(mut self) -> Self {
        self.parts.push(Part::Body(schema::<T>, false));
        self
    }

    pub(super) fn header(mut self, name: &'static str, what: &'static str) -> Self {
        self.parts.push(Part::Header(name, what));
        self
    }

    pub(super) fn answer<T: JsonSchema>(mut self, status: u16, what: &'static str) -> Self {
        let (media_type, schema) = ("application/json", Some(schema::<T> as SchemaFunction));
        self.answers.push(Answer { status, what, media_type, schema });
        self
    }

    pub(super) fn answer_with(
        mut self,
        status: u16,
        what: &'static str,
        media_type: &'static str,
    ) -> Self {
        self.answers.push(Answer { status, what, media_type, schema: None });
        self
    }
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

impl Api {
    /// Describes a route that another adapter serves.
    pub(super) fn describe(&mut self, path: &str, method: &str, operation: Operation) {
        let described = self.described(path, operation);
        self.paths.entry(path).or_insert_with(|| json!({}))[method] = described;
    }

    /// The routes and the OpenAPI document.
    pub(super) fn finish(mut self) -> (Router<App>, Value) {
        let problem = schema::<ProblemBody<'static>>(&mut self.generator);
        let schemas = self.generator.take_definitions(true);
        let document = json!({
            "openapi": "3.1.0",
            "info": {
                "title": "svc",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Team daemon for coding agents: one binary, one SQLite file, one long-running process",
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "security": [{ "bearer": [] }],
            "paths": self.paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
                "responses": { "Problem": {
                    "description": "What went wrong (RFC 9457)",
                    "content": { "application/problem+json": { "schema": problem } },
                } },
            },
        });
        (self.router, document)
    }

    fn described(&mut self, path: &str, operation: Operation) -> Value {
        let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let in_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
        let mut parameters: Vec<Value> = names.map(in_path).collect();
        let mut described = json!({ "summary": operation.summary });
        for part in operation.parts {
            match part {
                Part::Query(schema) => parameters.extend(self.query_parameters(schema)),
                Part::Header(name, what) => parameters.push(json!({
                    "name": name, "in": "header", "description": what, "schema": { "type": "string" },
                })),
                Part::Body(schema, required) => {
                    let schema = schema(&mut self.generator);
                    described["requestBody"] = json!({
                        "required": required, "content": { "application/json": { "schema": schema } },
                    });
                }
            }
        }
        let mut responses = Map::new();
        for answer in operation.answers {
            // One status may have several media types.
            let response = responses
                .entry(answer.status.to_string())
                .or_insert_with(|| json!({ "description": answer.what }));
            if !answer.media_type.is_empty() {
                response["content"][answer.media_type] = match answer.schema {
                    Some(schema) => json!({ "schema": schema(&mut self.generator) }),
                    None => json!({}),
                };
            }
        }
        responses.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
        described["responses"] = responses.into();
        if !parameters.is_empty() {
            described["parameters"] = parameters.into();
        }
        if operation.open {
            described["security"] = json!([]);
        }
        described
    }

    /// The properties of the type that a query string is parsed into.
    fn query_parameters(&mut self, schema: SchemaFunction) -> Vec<Value> {
        let reference = schema(&mut self.generator);
        let name = reference["$ref"]
            .as_str()
            .and_then(|path| path.rsplit('/').next())
            .expect("the type of a query is a struct, which has a definition of its own")
            .to_owned();
        let definition = self.generator.definitions_mut().remove(&name).unwrap_or_default();
        let properties = definition["properties"].as_object().cloned().unwrap_or_default();
        let required = definition["required"].as_array().cloned().unwrap_or_default();
        properties
            .into_iter()
            .map(|(name, mut schema)| {
                let description =
                    schema.as_object_mut().and_then(|object| object.remove("description"));
                // An optional member is an `Option`, but a query cannot say `null`.
                if let Some(types) = schema["type"].as_array().filter(|types| types.len() == 2) {
                    schema["type"] = types[0].clone();
                }
                let required = required.iter().any(|required| *required == name);
                json!({
                    "name": name, "in": "query", "required": required, "description": description,
                    "schema": schema,
                })
            })
            .collect()
    }
}

/// A JSON-RPC 2.0 message, or, in revisions before 2025-06-18, an array of them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for the body in the description")]
struct JsonRpc {
    /// `2.0`.
    jsonrpc: String,
    /// Of a request: a string or a number.
    id: Option<Value>,
    method: Option<String>,
    params: Option<Map<String, Value>>,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "stands for the query in the description")]
struct SessionQuery {
    /// As the `endpoint` event of `GET /sse` said.
    session_id: String,
}

/// Describes the paths of the MCP server, which serves them itself.
pub(super) fn describe_mcp(api: &mut Api) {
    let session = |operation: Operation| {
        operation.header(
            "Mcp-Session-Id",
            "The session that `initialize` gave, in revisions that have them",
        )
    };
    let post = session(Operation::new(
        "MCP, every revision from 2024-11-05 to 2026-07-28; tools/call, tools/list and ping also without a session",
    ))
    .header("MCP-Protocol-Version", "The revision; 2026-07-28 demands it")
    .header("Mcp-Method", "The body's method; 2026-07-28 demands it")
    .header("Mcp-Name", "What the request is about; 2026-07-28 demands it where there is such a thing")
    .header("Svc-Session-Id", "For which session the operator makes the call")
    .body::<JsonRpc>()
    .answer::<JsonRpc>(200, "The answer; as `text/event-stream` where it takes time")
    .answer_with(202, "A notification or a response was taken", "");
    api.describe("/mcp", "post", post);
    let get =
        session(Operation::new("What a session is told unasked, or the rest of a call's stream"))
            .header("Last-Event-ID", "The last id received: what follows it is sent")
            .answer_with(200, "Until the session's end, or the call's", "text/event-stream")
            .answer_with(204, "The client has all of that stream", "");
    api.describe("/mcp", "get", get);
    let delete = session(Operation::new("End a session")).answer_with(204, "It is over", "");
    api.describe("/mcp", "delete", delete);
    let sse = Operation::new(
        "MCP as of 2024-11-05: a session's stream, which begins with where to POST to",
    )
    .header("Last-Event-ID", "The last id received: the same session goes on")
    .answer_with(200, "Until the session's end", "text/event-stream");
    api.describe("/sse", "get", sse);
    let fall_back = Operation::new(
        "Never served: clients that know both transports fall back to GET at this 404",
    );
    api.describe("/sse", "post", fall_back);
    let messages =
        Operation::new("MCP as of 2024-11-05: a message; it is answered on the session's stream")
            .query::<SessionQuery>()
            .body::<JsonRpc>()
            .answer_with(202, "Taken", "");
    api.describe("/messages", "post", messages);
}
