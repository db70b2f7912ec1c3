//! Tools by which models list and read the resources of servers.

use std::{io, path::PathBuf, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_core::tools::{Call, ErrorType, Failure, Tool, ToolError};

use super::{
    SourceManager, call::ServerRequest, field_error, instance::Instance, results::keep_file,
};

const LIST: &str = "\
Lists resources of the MCP servers behind the daemon.

ReadMcpResource reads one.";

const READ: &str = "\
Reads a resource of an MCP server behind the daemon.

What is no text is written to a file, whose path you get. So is a large result (svc://result/…): its server is svc.";

/// The daemon's own server name, for large results with URIs that begin with `svc://result/`.
const DAEMON: &str = "svc";

/// Whose resources.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListMcpResourcesArguments {
    /// Only those of this server.
    #[schemars(length(max = 32))]
    server: Option<String>,
}

/// Resources of servers, by server.
#[derive(Serialize, JsonSchema)]
struct ListMcpResourcesResult {
    resources: Vec<ServerResource>,
    /// How many there are.
    count: usize,
}

/// A resource of a server.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServerResource {
    server: String,
    uri: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// Which resource.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadMcpResourceArguments {
    /// The server.
    #[schemars(length(max = 32))]
    server: String,
    /// The resource's URI.
    #[schemars(length(max = 8192))]
    uri: String,
}

/// The contents of a resource.
#[derive(Serialize, JsonSchema)]
struct ReadMcpResourceResult {
    contents: Vec<ServerContents>,
}

/// A part of a resource.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ServerContents {
    uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<String>,
    /// Its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The file that has what is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Size of the file in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<usize>,
}

pub fn resource_tools(sources: &SourceManager) -> [Tool; 2] {
    let (for_list, for_read) = (sources.clone(), sources.clone());
    let list = Tool::new("ListMcpResources", LIST, move |call: Call, input| {
        let sources = for_list.clone();
        async move { list(&sources, &call, &input) }
    });
    let read = Tool::new("ReadMcpResource", READ, move |call: Call, input| {
        let sources = for_read.clone();
        async move { read(&sources, &call, input).await }
    });
    [
        list.title("List resources of servers").family("catalogue").read_only(),
        read.title("Read a resource of a server").family("catalogue").idempotent(),
    ]
}

fn list(
    sources: &SourceManager,
    call: &Call,
    input: &ListMcpResourcesArguments,
) -> Result<ListMcpResourcesResult, Failure> {
    let servers = sources.of_caller(&call.caller).resources_by_server();
    if let Some(wanted) = &input.server
        && !servers.iter().any(|(server, _)| server == wanted)
    {
        return Err(missing(sources, call, wanted, &servers));
    }
    let resources: Vec<ServerResource> = servers
        .iter()
        .filter(|(server, _)| input.server.as_ref().is_none_or(|wanted| wanted == server))
        .flat_map(|(server, resources)| {
            resources.iter().filter_map(|resource| ServerResource::parse(server, resource))
        })
        .collect();
    Ok(ListMcpResourcesResult { count: resources.len(), resources })
}

impl ServerResource {
    fn parse(server: &str, resource: &Value) -> Option<Self> {
        let text = |name: &str| resource.get(name).and_then(Value::as_str).map(str::to_owned);
        let uri = text("uri")?;
        Some(Self {
            server: server.to_owned(),
            name: text("name").unwrap_or_else(|| uri.clone()),
            uri,
            mime_type: text("mimeType"),
            description: text("description"),
        })
    }
}

/// Why a server is not among the caller's.
fn missing(
    sources: &SourceManager,
    call: &Call,
    server: &str,
    servers: &[(String, Vec<Value>)],
) -> Failure {
    if let Some(absence) = sources.server_absence(&call.caller, server) {
        return absence.into();
    }
    let known: Vec<&str> = servers.iter().map(|(server, _)| server.as_str()).collect();
    let server: String = server.chars().take(32).collect();
    let text = format!("server: there is no server {server:?}");
    field_error(ErrorType::NotFound, "server", text).allowed(json!(known)).into()
}

async fn read(
    sources: &SourceManager,
    call: &Call,
    input: ReadMcpResourceArguments,
) -> Result<ReadMcpResourceResult, Failure> {
    let ReadMcpResourceArguments { server, uri } = input;
    if server == DAEMON
        && let Some((path, bytes)) = sources.results().find(&call.caller, &uri)
    {
        let (mime_type, path) = ("application/json".to_owned(), path.display().to_string());
        let (mime_type, path, size) = (Some(mime_type), Some(path), Some(bytes));
        let contents = ServerContents { uri, mime_type, text: None, path, size };
        return Ok(ReadMcpResourceResult { contents: vec![contents] });
    }
    let servers = sources.of_caller(&call.caller);
    let Some(instance) = servers.instance_of(call, &server) else {
        return Err(missing(sources, call, &server, &servers.resources_by_server()));
    };
    if !servers.may_read_resource(&server, &uri) {
        let text = format!("server {server} has no approved resource {uri}");
        return Err(field_error(ErrorType::NotFound, "uri", text).into());
    }
    let contents = fetch(sources, call, &instance, &uri).await?;
    let folder = sources.home().join("files");
    let bounds = sources.results().bounds();
    let keep = |bytes: &[u8]| keep_file(&folder, &call.caller, bytes, bounds);
    let contents = contents.iter().map(|part| ServerContents::parse(part, &uri, keep));
    Ok(ReadMcpResourceResult { contents: contents.collect::<Result<_, _>>()? })
}

async fn fetch(
    sources: &SourceManager,
    call: &Call,
    instance: &Arc<Instance>,
    uri: &str,
) -> Result<Vec<Value>, Failure> {
    let server = &instance.spec.key.name;
    let unavailable = |text: &str| {
        Failure::from(ToolError::new(ErrorType::Unavailable, format!("{server}: {text}")))
    };
    let request = ServerRequest::written("resources/read", &json!({ "uri": uri }));
    let result = match request.result(instance, sources.suspended(), call).await {
        Err(Failure::Protocol { message, .. }) => {
            return Err(ToolError::new(ErrorType::NotFound, format!("{server}: {message}")).into());
        }
        result => result?,
    };
    let mut result: Value =
        serde_json::from_str(result.get()).map_err(|_| unavailable("the result cannot be read"))?;
    match result.get_mut("contents").map(Value::take) {
        Some(Value::Array(contents)) => Ok(contents),
        _ => Err(unavailable("the result has no contents")),
    }
}

impl ServerContents {
    /// Binary content is stored as a file by `keep`.
    fn parse(
        part: &Value,
        uri: &str,
        keep: impl FnOnce(&[u8]) -> io::Result<PathBuf>,
    ) -> Result<Self, Failure> {
        let text = |name: &str| part.get(name).and_then(Value::as_str).map(str::to_owned);
        let mut contents = Self {
            uri: text("uri").unwrap_or_else(|| uri.to_owned()),
            mime_type: text("mimeType"),
            text: text("text"),
            path: None,
            size: None,
        };
        if let Some(blob) = text("blob") {
            let bytes = STANDARD.decode(blob).map_err(|_| {
                ToolError::new(ErrorType::Unavailable, "what the server gave is no base64")
            })?;
            let path = keep(&bytes).map_err(|error| {
                tracing::error!(error = %error, "a resource cannot be written to a file");
                ToolError::internal()
            })?;
            contents.path = Some(path.display().to_string());
            contents.size = Some(bytes.len());
        }
        Ok(contents)
    }
}
