//! Requests to an MCP server over Streamable HTTP, with headers that repeat parts of the body
//! (SEP-2243).
//!
//! [`post`] alone derives the headers from the body. Revisions with sessions ignore most of them.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::Value;
use svc_model::ToolExposure;

use crate::json_rpc::JsonRpcEnvelope;
use crate::mcp::{
    CLIENT_PROCESS, EXPOSE, METHOD, NAME, PARAM_ANNOTATION, PARAM_PREFIX, PROTOCOL_VERSION,
    Revision, SESSION_ID, encode_value, name_member,
};
use crate::sse;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// A request without its address, for `svc_client::Client::open`, which may repeat it.
#[derive(Debug, Clone)]
pub struct McpRequest {
    pub method: Method,
    /// Headers without those of the connection and of the credential.
    pub headers: HeaderMap,
    /// One JSON document, or nothing.
    pub body: Bytes,
}

/// What headers depend on besides the body.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestSetting<'a> {
    /// The revision that `initialize` negotiated, or that of the caller. A revision in the body's
    /// `params._meta` overrides it, even an unknown one.
    pub revision: Option<Revision>,
    pub session: Option<&'a HeaderValue>,
    /// For `tools/call`, the tool's `inputSchema`, if it is known. Its annotations select the
    /// arguments that are repeated in headers.
    pub input_schema: Option<&'a Value>,
    /// The client's process on this machine, by which the daemon finds the session if nothing else
    /// names it.
    pub process: Option<u32>,
    pub expose: Option<ToolExposure>,
}

/// A `POST` of one JSON-RPC message, or of a batch in older revisions.
///
/// `Mcp-Method` repeats the method of a request or notification. `Mcp-Name` repeats a name:
/// `params.name` of `tools/call` and `prompts/get`, `params.uri` of `resources/read`,
/// `params.taskId` of the methods of tasks; for other methods, and if that member is no text, the
/// header is absent and never empty. Responses and batches carry neither. A body that is not JSON
/// gets the headers that do not depend on it; the server reports the error.
///
/// ```
/// use svc_wire::mcp_request::{RequestSetting, post};
/// let body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#;
/// let request = post(body.as_slice().into(), RequestSetting::default());
/// assert_eq!(request.headers["mcp-method"], "tools/call");
/// assert_eq!(request.headers["mcp-name"], "echo");
/// ```
pub fn post(body: Bytes, setting: RequestSetting<'_>) -> McpRequest {
    let mut headers = both_kinds();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let message = JsonRpcEnvelope::parse(&body).ok();
    let named = message.as_ref().and_then(JsonRpcEnvelope::revision);
    add_setting(&mut headers, setting, named.as_deref());
    if let Some(message) = message.filter(|message| message.method.is_some()) {
        add_copies(&mut headers, &message, setting.input_schema);
    }
    McpRequest { method: Method::POST, headers, body }
}

/// A `GET` of a session's stream, resumed after `last_event_id`.
pub fn get(setting: RequestSetting<'_>, last_event_id: Option<&str>) -> McpRequest {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static(sse::MEDIA_TYPE));
    add_setting(&mut headers, setting, None);
    if let Some(id) = last_event_id {
        add(&mut headers, LAST_EVENT_ID, id);
    }
    McpRequest { method: Method::GET, headers, body: Bytes::new() }
}

pub fn delete(setting: RequestSetting<'_>) -> McpRequest {
    let mut headers = both_kinds();
    add_setting(&mut headers, setting, None);
    McpRequest { method: Method::DELETE, headers, body: Bytes::new() }
}

fn both_kinds() -> HeaderMap {
    let both = HeaderValue::from_static("application/json, text/event-stream");
    HeaderMap::from_iter([(ACCEPT, both)])
}

fn add_setting(headers: &mut HeaderMap, setting: RequestSetting<'_>, named: Option<&str>) {
    if let Some(revision) = named.or(setting.revision.map(Revision::as_str)) {
        add(headers, HeaderName::from_static(PROTOCOL_VERSION), revision);
    }
    if let Some(session) = setting.session {
        headers.insert(SESSION_ID, session.clone());
    }
    if let Some(process) = setting.process {
        headers.insert(CLIENT_PROCESS, HeaderValue::from(process));
    }
    if let Some(expose) = setting.expose {
        headers.insert(EXPOSE, HeaderValue::from_static(expose.as_str()));
    }
}

/// The headers that repeat parts of a request or notification.
fn add_copies(headers: &mut HeaderMap, message: &JsonRpcEnvelope<'_>, schema: Option<&Value>) {
    let Some(method) = &message.method else { return };
    add(headers, HeaderName::from_static(METHOD), method);
    let name = name_member(method).and_then(|member| message.text_param(member));
    if let Some(name) = name {
        add(headers, HeaderName::from_static(NAME), &encode_value(&name));
    }
    let Some(schema) = schema.filter(|_| method == "tools/call") else { return };
    let arguments: Option<Value> =
        message.param("arguments").and_then(|text| serde_json::from_str(text.get()).ok());
    for (header, path) in annotated(schema) {
        let value = arguments.as_ref().and_then(|arguments| {
            path.iter().try_fold(arguments, |value, name| value.get(name)).and_then(plain)
        });
        if let Some(value) = value {
            add(headers, header, &encode_value(&value));
        }
    }
}

/// Omits a value that cannot be sent; the server reports that it is missing.
fn add(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Why clients refuse a tool with this schema: its annotations of headers are not allowed.
pub fn header_problem(schema: &Value) -> Option<String> {
    find_header_problem(schema, true, &mut HashSet::new())
}

/// `is_plain_way`: the schema is reached only through `properties`.
fn find_header_problem(
    schema: &Value,
    is_plain_way: bool,
    seen: &mut HashSet<String>,
) -> Option<String> {
    if let Value::Array(items) = schema {
        return items.iter().find_map(|item| find_header_problem(item, false, seen));
    }
    let members = schema.as_object()?;
    for (name, value) in members {
        let properties = value.as_object().filter(|_| name == "properties" && is_plain_way);
        let Some(properties) = properties else {
            // Below these, a member with the name of the annotation is data.
            let is_data = matches!(name.as_str(), "const" | "enum" | "default" | "examples");
            let found = if is_data { None } else { find_header_problem(value, false, seen) };
            if found.is_some() {
                return found;
            }
            if name == PARAM_ANNOTATION {
                return Some(format!("{PARAM_ANNOTATION} stands where no argument is"));
            }
            continue;
        };
        for (name, property) in properties {
            if let Some(annotation) = property.get(PARAM_ANNOTATION) {
                let token = annotation.as_str().unwrap_or_default();
                let problem = if param_header(token).is_none() {
                    "is no name of a header"
                } else if !is_plain(property) {
                    "is on an argument that is no string, integer or boolean"
                } else if !seen.insert(token.to_ascii_lowercase()) {
                    "is there twice"
                } else {
                    ""
                };
                if !problem.is_empty() {
                    return Some(format!("{PARAM_ANNOTATION} of {name:?} {problem}"));
                }
            }
            let mut below = property.clone();
            if let Some(below) = below.as_object_mut() {
                below.remove(PARAM_ANNOTATION);
            }
            let found = find_header_problem(&below, true, seen);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// The text of an argument in a header; `None` for null and for other types.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) if number.is_f64() => {
            // An integer may be written as 42.0.
            number.as_f64().filter(|float| float.fract() == 0.0).map(|float| format!("{float:.0}"))
        }
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The headers that a schema asks for, with the paths of their arguments.
///
/// An annotation counts only where it is unambiguous: a token, unique whatever its case, on a
/// property that is a string, an integer or a boolean and is reached through `properties` alone.
fn annotated(schema: &Value) -> Vec<(HeaderName, Vec<&str>)> {
    let mut found = Vec::new();
    walk(schema, &mut Vec::new(), &mut found);
    let mut uses: HashMap<HeaderName, usize> = HashMap::new();
    for (header, _) in &found {
        *uses.entry(header.clone()).or_default() += 1;
    }
    found.retain(|(header, _)| uses.get(header) == Some(&1));
    found
}

fn walk<'a>(
    schema: &'a Value,
    path: &mut Vec<&'a str>,
    found: &mut Vec<(HeaderName, Vec<&'a str>)>,
) {
    for (name, property) in
        schema.get("properties").and_then(Value::as_object).into_iter().flatten()
    {
        path.push(name);
        let header = property.get(PARAM_ANNOTATION).and_then(Value::as_str);
        if let Some(header) = header.filter(|_| is_plain(property)).and_then(param_header) {
            found.push((header, path.clone()));
        }
        walk(property, path, found);
        path.pop();
    }
}

fn param_header(token: &str) -> Option<HeaderName> {
    let is_token = !token.is_empty()
        && token.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    if !is_token {
        return None;
    }
    HeaderName::try_from(format!("{PARAM_PREFIX}{token}")).ok()
}

fn is_plain(property: &Value) -> bool {
    matches!(property.get("type").and_then(Value::as_str), Some("string" | "integer" | "boolean"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The headers of interest as text, sorted.
    fn shown(outgoing: &McpRequest) -> Vec<String> {
        let mut lines: Vec<String> = outgoing
            .headers
            .iter()
            .filter(|(name, _)| ["mcp-", "svc-"].iter().any(|own| name.as_str().starts_with(own)))
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("is ASCII")))
            .collect();
        lines.sort();
        lines
    }

    fn posted(body: &str, setting: RequestSetting<'_>) -> Vec<String> {
        shown(&post(Bytes::copy_from_slice(body.as_bytes()), setting))
    }

    #[test]
    fn post_states_its_media_types() {
        let outgoing = post(Bytes::from_static(b"{}"), RequestSetting::default());
        assert_eq!(outgoing.method, Method::POST);
        assert_eq!(outgoing.headers[CONTENT_TYPE], "application/json");
        assert_eq!(outgoing.headers[ACCEPT], "application/json, text/event-stream");
        assert_eq!(outgoing.headers.len(), 2);
    }

    #[test]
    fn headers_repeat_method_and_name() {
        let modern = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let unknown = modern.replace("2026-07-28", "2031-01-01");
        for (method, params, expected) in [
            ("tools/list", "", &[][..]),
            ("tools/call", r#""name":"echo""#, &["mcp-name: echo"]),
            (
                "resources/read",
                r#""uri":"file:///grün""#,
                &["mcp-name: =?base64?ZmlsZTovLy9ncsO8bg==?="],
            ),
            ("tasks/get", r#""taskId":"t1""#, &["mcp-name: t1"]),
            // An invalid name, and a method without one.
            ("prompts/get", r#""name":7"#, &[]),
            ("tools/list", r#""name":"x""#, &[]),
            ("server/discover", modern, &["mcp-protocol-version: 2026-07-28"]),
            // The revision of the body, even an unknown one.
            ("ping", &unknown, &["mcp-protocol-version: 2031-01-01"]),
        ] {
            let body = format!(r#"{{"id":1,"method":"{method}","params":{{{params}}}}}"#);
            let mut headers = vec![format!("mcp-method: {method}")];
            headers.extend(expected.iter().map(|header| (*header).to_owned()));
            assert_eq!(posted(&body, RequestSetting::default()), headers, "{body}");
        }
        let no_params = posted(r#"{"id":1,"method":"tools/list"}"#, RequestSetting::default());
        assert_eq!(no_params, ["mcp-method: tools/list"]);
        let notice = r#"{"method":"notifications/cancelled","params":{"name":"x",META}}"#;
        let notice = posted(&notice.replace("META", modern), RequestSetting::default());
        let revision = "mcp-protocol-version: 2026-07-28";
        assert_eq!(notice, ["mcp-method: notifications/cancelled", revision]);
        // Bodies for which no header is defined.
        for body in [
            r#"{"id":1,"result":{"name":"x"}}"#,
            r#"[{"id":1,"method":"ping"}]"#,
            "no JSON",
            "{\"id\":1,\"method\":\"a\\nb\"}",
        ] {
            assert_eq!(posted(body, RequestSetting::default()), Vec::<String>::new(), "{body}");
        }
    }

    #[test]
    fn session_and_revision_are_sent_with_every_request() {
        let id = HeaderValue::from_static("s1");
        let setting = RequestSetting {
            revision: Some(Revision::V2025_06_18),
            session: Some(&id),
            process: Some(7),
            ..RequestSetting::default()
        };
        let common =
            ["mcp-protocol-version: 2025-06-18", "mcp-session-id: s1", "svc-client-process: 7"];
        let posted = posted(r#"{"method":"notifications/initialized"}"#, setting);
        assert_eq!(posted[0], "mcp-method: notifications/initialized");
        assert_eq!(posted[1..], common);
        assert_eq!(shown(&delete(setting)), common);
        let resumed = get(setting, Some("st.4"));
        assert_eq!(shown(&resumed), common);
        assert_eq!(resumed.headers[LAST_EVENT_ID], "st.4");
        assert_eq!(resumed.headers[ACCEPT], "text/event-stream");
        assert!(!get(setting, None).headers.contains_key(LAST_EVENT_ID));
    }

    #[test]
    fn annotated_arguments_are_repeated_in_headers() {
        let string = |header: &str| json!({ "type": "string", "x-mcp-header": header });
        let schema = json!({ "type": "object", "properties": {
            "region": string("Region"),
            "count": { "type": "integer", "x-mcp-header": "Count" },
            "dry": { "type": "boolean", "x-mcp-header": "Dry" },
            "where": { "type": "object", "properties": { "city": string("City") } },
            // None of these is an annotation.
            "plain": { "type": "string" },
            "maybe": { "type": ["string", "null"], "x-mcp-header": "Maybe" },
            "ratio": { "type": "number", "x-mcp-header": "Ratio" },
            "blank": string("no token"),
            "empty": string(""),
            "one": string("Same"),
            "two": string("sAME"),
            "list": { "type": "array", "items": string("FollowItem") },
            "either": { "anyOf": [{ "properties": { "x": string("Either") } }] },
            "x-mcp-header": { "type": "string" },
        } });
        let cases = [
            (
                json!({ "region": "eu", "count": 42, "dry": false, "where": { "city": "Köln" } }),
                vec![
                    "mcp-param-city: =?base64?S8O2bG4=?=",
                    "mcp-param-count: 42",
                    "mcp-param-dry: false",
                    "mcp-param-region: eu",
                ],
            ),
            (json!({ "region": null, "count": 42.0, "dry": null }), vec!["mcp-param-count: 42"]),
            (json!({ "count": -3, "where": "nowhere" }), vec!["mcp-param-count: -3"]),
            (json!({ "count": 1.5, "region": ["eu"] }), vec![]),
            (
                json!({ "ratio": 1, "blank": "b", "empty": "e", "one": "1", "two": "2", "list": ["i"],
                    "either": { "x": "x" }, "x-mcp-header": "y", "plain": "p", "maybe": "m" }),
                vec![],
            ),
            (json!(null), vec![]),
        ];
        let setting = RequestSetting { input_schema: Some(&schema), ..RequestSetting::default() };
        for (arguments, expected) in cases {
            let call = json!({ "id": 1, "method": "tools/call", "params": { "name": "t", "arguments": arguments } });
            let mut params = posted(&call.to_string(), setting);
            params.retain(|line| line.starts_with("mcp-param-"));
            assert_eq!(params, expected, "{arguments}");
        }
        let other = r#"{"id":1,"method":"prompts/get","params":{"arguments":{"region":"eu"}}}"#;
        assert_eq!(posted(other, setting), ["mcp-method: prompts/get"]);
    }
}
