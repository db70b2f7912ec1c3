//! The table of all routes.

use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, header};

use super::{
    agents,
    api::Api,
    conversations, daemon_proof, doctor, events, exposition, handovers, health, journal, messages,
    openapi::{Document, Operation},
    page, peers, projects, prompts, protocol, send_message, sources, tasks, tokens, tools,
};

pub(super) fn api() -> Api {
    let mut document = Document::new();
    protocol::describe(&mut document);
    let api = health::routes(Api::new(document));
    let api = doctor::routes(api);
    let api = peers::routes(api);
    let api = messages::routes(api);
    let api = tasks::routes(api);
    let api = agents::routes(api);
    let api = prompts::routes(api);
    let api = handovers::routes(api);
    let api = send_message::routes(api);
    let api = events::routes(api);
    let api = journal::routes(api);
    let api = conversations::routes(api);
    let api = tokens::routes(api);
    let api = projects::routes(api);
    let api = daemon_proof::routes(api);
    let api = tools::routes(api);
    let api = page::routes(api);
    let api = sources::routes(api);
    let api = exposition::routes(api);
    let on_document = Operation::new("This description (OpenAPI 3.1)");
    let on_document = on_document.answer_with(200, "The document", "application/json");
    api.get("/openapi.json", on_document, show_document)
}

/// Built by the first request: most daemons are never asked for it.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| api().finish().1.to_string());

async fn show_document() -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], DOCUMENT.as_str()).into_response()
}
