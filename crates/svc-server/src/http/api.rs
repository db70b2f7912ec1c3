//! The router and its OpenAPI document. One call declares a route, and the types of its handler
//! describe it: what it takes of a request ([`Taken`]), and its response ([`Given`]). So the
//! document and the handlers cannot differ.

use axum::{
    Extension, Router,
    body::Body,
    extract::Path,
    handler::Handler,
    middleware::{Next, from_fn},
    response::Response,
    routing::{MethodRouter, delete, get, post},
};
use http::{HeaderMap, Method, Request, StatusCode};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};
use svc_model::{Caller, PageQuery};

use super::{
    App, Problem,
    request::{self, ItemRequest, Json, JsonBytes, ListRequest, MaybeJson, Query},
};
use crate::web::{ProblemBody, RouteName};

/// The description of a route, beside what the types of its handler say.
pub(super) struct Operation {
    summary: &'static str,
    /// The statuses of the response that the handler's type describes.
    statuses: &'static [u16],
    parts: Vec<Part>,
    answers: Vec<ResponseForm>,
    open: bool,
}

type SchemaFunction = fn(&mut SchemaGenerator) -> Value;

enum Part {
    Query(SchemaFunction),
    Body(SchemaFunction, bool),
    Header(&'static str, &'static str),
}

struct ResponseForm {
    status: u16,
    media_type: &'static str,
    schema: Option<SchemaFunction>,
}

impl Operation {
    pub(super) fn new(summary: &'static str) -> Self {
        let (parts, answers) = (Vec::new(), Vec::new());
        Self { summary, statuses: &[200], parts, answers, open: false }
    }

    /// The route needs no credential.
    pub(super) fn open(self) -> Self {
        Self { open: true, ..self }
    }

    pub(super) fn statuses(self, statuses: &'static [u16]) -> Self {
        Self { statuses, ..self }
    }

    pub(super) fn header(mut self, name: &'static str, what: &'static str) -> Self {
        self.parts.push(Part::Header(name, what));
        self
    }

    /// A body that the handler parses itself.
    pub(super) fn body<T: JsonSchema>(mut self) -> Self {
        self.parts.push(Part::Body(schema::<T>, true));
        self
    }

    /// A response that the handler renders itself, as JSON.
    pub(super) fn answer<T: JsonSchema>(mut self, status: u16) -> Self {
        let (media_type, schema) = ("application/json", Some(schema::<T> as SchemaFunction));
        self.answers.push(ResponseForm { status, media_type, schema });
        self
    }

    /// A response of another type, or an empty one without a type.
    pub(super) fn media(mut self, status: u16, media_type: &'static str) -> Self {
        self.answers.push(ResponseForm { status, media_type, schema: None });
        self
    }

    pub(super) fn query<T: JsonSchema>(&mut self) {
        self.parts.push(Part::Query(schema::<T>));
    }
}

/// A summary alone.
impl From<&'static str> for Operation {
    fn from(summary: &'static str) -> Self {
        Self::new(summary)
    }
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

/// What a handler takes of a request, as the document describes it.
pub(super) trait Taken {
    fn describe(_: &mut Operation) {}
}

impl Taken for App {}
impl Taken for Caller {}
impl Taken for HeaderMap {}
impl Taken for ItemRequest {}
impl Taken for JsonBytes {}
impl Taken for Method {}
impl Taken for Request<Body> {}
impl<T> Taken for Extension<T> {}
impl<T> Taken for Option<T> {}
impl<T> Taken for Path<T> {}

impl<T: JsonSchema> Taken for Query<T> {
    fn describe(operation: &mut Operation) {
        operation.query::<T>();
    }
}

impl<F: JsonSchema> Taken for ListRequest<F> {
    fn describe(operation: &mut Operation) {
        operation.query::<F>();
        operation.query::<PageQuery>();
    }
}

impl<T: JsonSchema> Taken for Json<T> {
    fn describe(operation: &mut Operation) {
        operation.parts.push(Part::Body(schema::<T>, true));
    }
}

impl<T: JsonSchema> Taken for MaybeJson<T> {
    fn describe(operation: &mut Operation) {
        operation.parts.push(Part::Body(schema::<T>, false));
    }
}

/// The response of a handler, as the document describes it.
pub(super) trait Given {
    fn describe(_: &mut Operation) {}
}

impl Given for Response {}

impl<T: JsonSchema> Given for Json<T> {
    fn describe(operation: &mut Operation) {
        for status in operation.statuses {
            let (status, media_type) = (*status, "application/json");
            operation.answers.push(ResponseForm { status, media_type, schema: Some(schema::<T>) });
        }
    }
}

impl<T> Given for (StatusCode, T)
where
    T: Given,
{
    fn describe(operation: &mut Operation) {
        T::describe(operation);
    }
}

impl<T: Given> Given for Result<T, Problem> {
    fn describe(operation: &mut Operation) {
        T::describe(operation);
    }
}

/// A handler whose types describe it. `T` is that of [`Handler`].
pub(super) trait Described<T> {
    fn describe(operation: &mut Operation);
}

fn described_by<T, H: Described<T>>(mut operation: Operation) -> Operation {
    H::describe(&mut operation);
    operation
}

macro_rules! describe_handlers {
    ($($part:ident)*) => {
        impl<F, A, M, $($part),*> Described<(M, $($part,)*)> for F
        where
            F: FnOnce($($part),*) -> A,
            A: Future<Output: Given>,
            $($part: Taken,)*
        {
            fn describe(operation: &mut Operation) {
                $($part::describe(operation);)*
                A::Output::describe(operation);
            }
        }
    };
}

describe_handlers!();
describe_handlers!(P1);
describe_handlers!(P1 P2);
describe_handlers!(P1 P2 P3);
describe_handlers!(P1 P2 P3 P4);

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

    pub(super) fn get<T: 'static, H: Handler<T, App> + Described<T>>(
        self,
        path: &'static str,
        operation: impl Into<Operation>,
        handler: H,
    ) -> Self {
        let operation = described_by::<T, H>(operation.into());
        self.add(path, "get", operation, get(handler))
    }

    /// A `GET` that reads much: a list or a history. It waits for its caller's turn, and renders
    /// its response within it.
    pub(super) fn list<T: 'static, H: Handler<T, App> + Described<T>>(
        self,
        path: &'static str,
        operation: impl Into<Operation>,
        handler: H,
    ) -> Self {
        let operation = described_by::<T, H>(operation.into());
        self.add(path, "get", operation, get(handler).route_layer(from_fn(read_in_turn)))
    }

    pub(super) fn post<T: 'static, H: Handler<T, App> + Described<T>>(
        self,
        path: &'static str,
        operation: impl Into<Operation>,
        handler: H,
    ) -> Self {
        let operation = described_by::<T, H>(operation.into());
        let has_body = operation.parts.iter().any(|part| matches!(part, Part::Body(..)));
        let route = post(handler);
        let route = if has_body { route } else { route.route_layer(from_fn(without_body)) };
        self.add(path, "post", operation, route)
    }

    pub(super) fn delete<T: 'static, H: Handler<T, App> + Described<T>>(
        self,
        path: &'static str,
        operation: impl Into<Operation>,
        handler: H,
    ) -> Self {
        let operation = described_by::<T, H>(operation.into());
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
        let described = self.described(path, operation);
        self.paths.entry(path).or_insert_with(|| json!({}))[method] = described;
        self.router = self.router.route(path, route.layer(RouteName::layer(path)));
        self
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
            let reason = StatusCode::from_u16(answer.status).ok();
            let reason = reason.and_then(|status| status.canonical_reason());
            // One status may have several media types.
            let response = responses
                .entry(answer.status.to_string())
                .or_insert_with(|| json!({ "description": reason }));
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

async fn read_in_turn(
    Extension(app): Extension<App>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
    next: Next,
) -> Response {
    app.services.read_in_turn(&caller, next.run(request)).await
}

/// For a handler that uses no body: one that comes all the same is checked as on other routes.
async fn without_body(
    Extension(app): Extension<App>,
    request: Request<Body>,
    next: Next,
) -> Result<Response, Problem> {
    Ok(next.run(request::without_body(request, &app).await?).await)
}
