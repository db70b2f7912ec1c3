//! Resources, templates and prompts of servers by the protocol's own methods: as the servers
//! declare them, under unique names.

use std::{collections::HashSet, sync::Arc};

use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest as _, Sha256};
use svc_core::{
    service::{Error, sources::SourceKey},
    tools::{Call, Failure},
};
use svc_model::{
    Ownership, StreamName, StreamVisibility, quote,
    source::{Sharing, child_tool_name, matches_glob},
};
use svc_wire::json_rpc::INVALID_PARAMS;

use super::{
    call::{ServerRequest, shared_with},
    instance::Instance,
    lists::{Definition, OfferedLists, OpenServer, name_of},
    manager::SourceManager,
    spec::SourceSpec,
};

/// Prefix of the daemon's own URIs.
const OWN: &str = "svc://";
/// Prefix of a URI that several servers have: followed by the server's name and a colon.
const OF_SERVER: &str = "svc+";

/// The subject of a request: a prompt, a resource, or an argument of either, of a server that the
/// caller may use.
#[derive(Debug)]
pub struct RelayTarget {
    manager: SourceManager,
    spec: Arc<SourceSpec>,
    request: ServerRequest,
}

impl RelayTarget {
    pub async fn result(self, call: &Call) -> Result<Box<RawValue>, Failure> {
        let Self { manager, spec, request } = self;
        let Some(instance) = manager.instance(&spec, shared_with(&spec, call)) else {
            let message = "the server that had it is turned off or gone".into();
            return Err(Failure::Protocol { code: INVALID_PARAMS, message, data: None });
        };
        request.result(&instance, manager.suspended(), call).await
    }
}

/// The URI under which clients see a server's resource.
fn shown_uri(server: &str, uri: &str, taken: &mut HashSet<String>) -> String {
    let is_free =
        !uri.starts_with(OWN) && !uri.starts_with(OF_SERVER) && taken.insert(uri.to_owned());
    if is_free { uri.to_owned() } else { format!("{OF_SERVER}{server}:{uri}") }
}

fn with_uris(
    servers: &[OpenServer],
    of: impl Fn(&OfferedLists) -> &[Definition],
    member: &str,
) -> Vec<Box<RawValue>> {
    let mut taken = HashSet::new();
    let mut all = Vec::new();
    for (spec, lists) in servers {
        for entry in of(lists) {
            let Some(uri) = entry.get(member).and_then(Value::as_str) else { continue };
            let shown = shown_uri(&spec.key.name, uri, &mut taken);
            let values = [(member, json!(quote::plain_data(&shown)))];
            all.push(entry.shown_with(if shown == uri { &[] } else { &values[..] }));
        }
    }
    all
}

/// Longest URI and longest template that are compared, in bytes. The comparison takes time
/// proportional to the product of both, and both are untrusted.
const MAX_COMPARED: usize = 8 * 1024;

/// The number of literal characters of a template (RFC 6570) that can expand to the URI; `None` if
/// the template cannot.
fn matches_template(template: &str, uri: &str) -> Option<usize> {
    if template.len() > MAX_COMPARED || uri.len() > MAX_COMPARED {
        return None;
    }
    let mut glob = String::new();
    let mut rest = template;
    while let Some((literal, expression)) = rest.split_once('{') {
        glob.push_str(literal);
        glob.push('*');
        rest = expression.split_once('}').map_or("", |(_, rest)| rest);
    }
    glob.push_str(rest);
    matches_glob(&glob, uri).then(|| glob.chars().filter(|c| *c != '*').count())
}

fn has_text(list: &[Definition], member: &str, text: &str) -> bool {
    list.iter().any(|entry| entry.get(member).and_then(Value::as_str) == Some(text))
}

/// The server that has a resource or template, and the server's own URI of it.
fn server_of_uri<'a>(
    servers: &'a [OpenServer],
    uri: &str,
    has: impl Fn(&OfferedLists, &str) -> bool,
) -> Option<(&'a Arc<SourceSpec>, String)> {
    if let Some((name, own)) = uri.strip_prefix(OF_SERVER).and_then(|rest| rest.split_once(':')) {
        let (spec, lists) = servers.iter().find(|(spec, _)| spec.key.name == name)?;
        return (!spec.is_pinned() || has(lists, own)).then(|| (spec, own.to_owned()));
    }
    if uri.starts_with(OWN) {
        return None;
    }
    let (spec, _) = servers.iter().find(|(_, lists)| has(lists, uri))?;
    Some((spec, uri.to_owned()))
}

fn server_of_resource<'a>(
    servers: &'a [OpenServer],
    uri: &str,
) -> Option<(&'a Arc<SourceSpec>, String)> {
    if uri.starts_with(OF_SERVER) {
        return server_of_uri(servers, uri, offers_resource);
    }
    let listed = server_of_uri(servers, uri, |lists, uri| has_text(&lists.resources, "uri", uri));
    listed.or_else(|| {
        // The template with the most literal characters wins, so that a catch-all template takes no
        // URI from another server.
        let mut best = None;
        for (spec, lists) in servers {
            let templates = lists.templates.iter().filter_map(|it| it.get("uriTemplate")?.as_str());
            let said = templates.filter_map(|template| matches_template(template, uri)).max();
            if let Some(said) = said
                && best.is_none_or(|(most, _)| said > most)
            {
                best = Some((said, spec));
            }
        }
        let (_, spec) = best.filter(|_| !uri.starts_with(OWN))?;
        Some((spec, uri.to_owned()))
    })
}

fn offers_resource(lists: &OfferedLists, uri: &str) -> bool {
    let mut templates = lists.templates.iter().filter_map(|it| it.get("uriTemplate")?.as_str());
    has_text(&lists.resources, "uri", uri)
        || templates.any(|template| matches_template(template, uri).is_some())
}

/// Prompts of all servers with the names that clients see.
fn named_prompts(servers: &[OpenServer]) -> Vec<(String, &Arc<SourceSpec>, &str, &Definition)> {
    let mut taken = HashSet::new();
    let mut all = Vec::new();
    for (spec, lists) in servers {
        for prompt in &lists.prompts {
            let Some(own) = name_of(prompt) else { continue };
            let name = child_tool_name(&spec.key.name, own, &|name| taken.contains(name));
            if quote::plain(&name) == name && taken.insert(name.clone()) {
                all.push((name, spec, own, prompt));
            }
        }
    }
    all
}

/// The servers that a caller may use, by name, with what each offers.
#[derive(Debug)]
pub struct CallerSources {
    pub(super) manager: SourceManager,
    pub(super) servers: Vec<OpenServer>,
}

impl CallerSources {
    pub fn resources(&self) -> Vec<Box<RawValue>> {
        with_uris(&self.servers, |lists| &lists.resources, "uri")
    }

    pub fn templates(&self) -> Vec<Box<RawValue>> {
        with_uris(&self.servers, |lists| &lists.templates, "uriTemplate")
    }

    pub fn prompts(&self) -> Vec<Box<RawValue>> {
        let prompts = named_prompts(&self.servers).into_iter();
        prompts.map(|(name, _, _, prompt)| prompt.shown_with(&[("name", json!(name))])).collect()
    }

    pub(super) fn resources_by_server(&self) -> Vec<(String, Vec<Value>)> {
        let servers = self.servers.iter().map(|(spec, lists)| {
            let resources = lists.resources.iter().map(|it| Value::clone(it));
            (spec.key.name.clone(), resources.collect())
        });
        servers.collect()
    }

    /// The instance of a server that serves a call; `None` if there is no server of that name.
    pub(super) fn instance_of(&self, call: &Call, name: &str) -> Option<Arc<Instance>> {
        let (spec, _) = self.server(name)?;
        self.manager.instance(spec, shared_with(spec, call))
    }

    fn server(&self, name: &str) -> Option<&OpenServer> {
        self.servers.iter().find(|(spec, _)| spec.key.name == name)
    }

    /// Whether the caller may read this resource of a server. For a server with pinned definitions:
    /// only approved resources, and URIs of approved templates.
    pub(super) fn may_read_resource(&self, server: &str, uri: &str) -> bool {
        let server = self.server(server);
        server.is_none_or(|(spec, lists)| !spec.is_pinned() || offers_resource(lists, uri))
    }

    /// The subject of `resources/read`, `prompts/get` or `completion/complete` with these params;
    /// `None` if no server has it.
    pub fn relay_target(&self, method: &str, params: &Map<String, Value>) -> Option<RelayTarget> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        let Self { manager, servers } = self;
        let prompt = |name: &str| {
            let mut prompts = named_prompts(servers).into_iter();
            prompts
                .find_map(|(shown, spec, own, _)| (shown == name).then(|| (spec, own.to_owned())))
        };
        let (spec, request) = match method {
            "resources/read" => {
                let (spec, own) = server_of_resource(servers, text("uri"))?;
                (spec, ServerRequest::relayed("resources/read", "uri", own, params))
            }
            "prompts/get" => {
                let (spec, own) = prompt(text("name"))?;
                (spec, ServerRequest::relayed("prompts/get", "name", own, params))
            }
            "completion/complete" => {
                let reference = params.get("ref")?;
                let text = |member: &str| reference.get(member).and_then(Value::as_str);
                let ((spec, own), member) = match text("type")? {
                    "ref/prompt" => (prompt(text("name")?)?, "name"),
                    "ref/resource" => {
                        let has = |lists: &OfferedLists, uri: &str| {
                            has_text(&lists.templates, "uriTemplate", uri)
                        };
                        (server_of_uri(servers, text("uri")?, has)?, "uri")
                    }
                    _ => return None,
                };
                let mut params = params.clone();
                params["ref"][member] = json!(own);
                params.remove("_meta");
                (spec, ServerRequest::written("completion/complete", &Value::Object(params)))
            }
            _ => return None,
        };
        Some(RelayTarget { manager: manager.clone(), spec: Arc::clone(spec), request })
    }

    /// Subscribes to a resource, and returns the stream that has an event for each of its changes;
    /// `None` if no server of the caller has it. `again`: the caller may be counted already.
    pub async fn watch_resource(
        &self,
        call: &Call,
        uri: &str,
        again: bool,
    ) -> Option<Result<StreamName, Failure>> {
        let manager = &self.manager;
        let (spec, own) = server_of_resource(&self.servers, uri)?;
        let shared_with = shared_with(spec, call);
        let instance = manager.instance(spec, shared_with.clone())?;
        let stream = stream_of(&spec.key, &shared_with.key, &own);
        let opened = async {
            let visibility = visibility_of(spec, &shared_with.key, call).await?;
            manager.services().sources.open_stream(stream.clone(), visibility).await
        };
        if let Err(error) = opened.await {
            return Some(Err(error.into()));
        }
        if !instance.watch_resource(&own, stream.clone(), again) {
            return Some(Ok(stream));
        }
        let request = ServerRequest::written("resources/subscribe", &json!({ "uri": own }));
        Some(match request.result(&instance, manager.suspended(), call).await {
            Ok(_) => Ok(stream),
            Err(failure) => {
                instance.forget_resource(&own);
                Err(failure)
            }
        })
    }

    /// Unsubscribes. The server is told when the last subscription ends.
    pub async fn unwatch_resource(&self, call: &Call, uri: &str) {
        let manager = &self.manager;
        let Some((spec, own)) = server_of_resource(&self.servers, uri) else { return };
        let Some(instance) = manager.instance(spec, shared_with(spec, call)) else { return };
        if instance.forget_resource(&own) {
            let request = ServerRequest::written("resources/unsubscribe", &json!({ "uri": own }));
            if let Err(failure) = request.result(&instance, manager.suspended(), call).await {
                tracing::debug!(?failure, "a server did not take back a subscription");
            }
        }
    }
}

/// The name of the stream of a resource's changes, by instance.
fn stream_of(key: &SourceKey, serves: &str, uri: &str) -> StreamName {
    let mut hash = Sha256::new();
    for part in [&key.project, serves, uri] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    StreamName::new("source", format!("{}/{}", key.name, hex::encode(&hash.finalize()[..8])))
}

/// The callers that the same instance serves may read the stream.
async fn visibility_of(
    spec: &SourceSpec,
    serves: &str,
    call: &Call,
) -> Result<StreamVisibility, Error> {
    let root = match spec.entry.sharing {
        Sharing::Project if !serves.is_empty() => serves,
        Sharing::Session => {
            let owner = call.caller.principal().to_string();
            return Ok(StreamVisibility::shared(&Ownership::from_row(&owner, String::new())));
        }
        Sharing::Shared | Sharing::Project => spec.root.as_deref().unwrap_or_default(),
    };
    if root.is_empty() {
        return Ok(StreamVisibility::Team);
    }
    let project = call.services.projects.of_folder(root).await?;
    Ok(StreamVisibility::shared(&Ownership::from_row("operator", project)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, lists: OfferedLists) -> OpenServer {
        (Arc::new(SourceSpec::for_test(name, &json!({ "command": "x" }))), Arc::new(lists))
    }

    fn of(resources: &[&str], templates: &[&str], prompts: &[&str]) -> OfferedLists {
        let entries = |member: &str, texts: &[&str]| {
            texts.iter().map(|text| json!({ member: text, "x-own": 1 }).into()).collect()
        };
        OfferedLists {
            tools: Vec::new(),
            resources: entries("uri", resources),
            templates: entries("uriTemplate", templates),
            prompts: entries("name", prompts),
        }
    }

    #[test]
    fn each_uri_and_each_prompt_resolves_to_one_server() {
        let servers = [
            server(
                "a",
                of(&["file:///x", "svc://stream/team", "svc+b:x"], &["t://{id}"], &["p", "q.r"]),
            ),
            server(
                "b",
                of(
                    &["file:///x", "file:///y"],
                    &["t://{id}", "u://{a}/b{?c}"],
                    &["p", "q_r", "q.r"],
                ),
            ),
        ];
        let uris = |list: Vec<Box<RawValue>>, member: &str| -> Vec<String> {
            let read = list.iter().map(|entry| serde_json::from_str(entry.get()).expect("JSON"));
            let list: Vec<Value> = read.collect();
            assert!(list.iter().all(|entry| entry["x-own"] == 1));
            list.iter().map(|entry| entry[member].as_str().unwrap_or_default().to_owned()).collect()
        };
        let shown = uris(with_uris(&servers, |lists| &lists.resources, "uri"), "uri");
        assert_eq!(
            shown,
            [
                "file:///x",
                "svc+a:svc://stream/team",
                "svc+a:svc+b:x",
                "svc+b:file:///x",
                "file:///y"
            ]
        );
        let expected = [
            ("a", "file:///x"),
            ("a", "svc://stream/team"),
            ("a", "svc+b:x"),
            ("b", "file:///x"),
            ("b", "file:///y"),
        ];
        for (uri, (name, own)) in shown.iter().zip(expected) {
            let (spec, found) = server_of_resource(&servers, uri).expect("has a server");
            assert_eq!((spec.key.name.as_str(), found.as_str()), (name, own), "{uri}");
        }
        let shown =
            uris(with_uris(&servers, |lists| &lists.templates, "uriTemplate"), "uriTemplate");
        assert_eq!(shown, ["t://{id}", "svc+b:t://{id}", "u://{a}/b{?c}"]);
        for (uri, name) in [
            ("t://7", Some("a")),
            ("svc+b:t://7", Some("b")),
            ("u://1/b?c=2", Some("b")),
            ("v://1", None),
            ("svc://stream/team", None),
            ("svc+c:x", None),
        ] {
            let found = server_of_resource(&servers, uri).map(|(spec, _)| spec.key.name.as_str());
            assert_eq!(found, name, "{uri}");
        }
        let names: Vec<String> =
            named_prompts(&servers).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names[..4], ["a__p", "a__q_r", "b__p", "b__q_r"]);
        assert!(names[4].starts_with("b__q_r_") && names.len() == 5, "{names:?}");
    }

    #[test]
    fn catch_all_template_takes_no_uri_of_another_server() {
        let long = format!("{{x}}{}", "a{x}".repeat(MAX_COMPARED));
        let servers = [
            server("a", of(&[], &["{+x}", "f{+x}", &long], &[])),
            server("b", of(&["mem://one"], &["file:///{path}"], &[])),
        ];
        let long = format!("mem://{}", "a".repeat(MAX_COMPARED));
        for (uri, name) in [
            ("file:///x", Some("b")),
            ("mem://one", Some("b")),
            ("mem://two", Some("a")),
            ("svc://stream/team", None),
            ("svc+b:mem://two", Some("b")),
            (&long, None),
        ] {
            let found = server_of_resource(&servers, uri).map(|(spec, _)| spec.key.name.as_str());
            assert_eq!(found, name, "{uri}");
        }
    }

    #[test]
    fn resource_streams_belong_to_one_instance() {
        let key = SourceKey { name: "a".to_owned(), project: String::new() };
        let one = stream_of(&key, "/p", "file:///x");
        assert_eq!(one, stream_of(&key, "/p", "file:///x"));
        assert!(StreamName::parse(one.as_str()).is_some());
        for (serves, uri) in [("/q", "file:///x"), ("/p", "file:///y"), ("/pf", "ile:///x")] {
            assert_ne!(one, stream_of(&key, serves, uri));
        }
    }
}
