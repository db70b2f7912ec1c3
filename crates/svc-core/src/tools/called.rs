//! `_meta` of the result of `ToolCall`: it names the tool that was called, for clients and people
//! who see only `ToolCall`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{Call, Output};

/// The tool that calls others by their names.
pub(super) const TOOL_CALL: &str = "ToolCall";
/// The server name of the daemon's own tools.
const OWN: &str = "svc";

/// Whether the client called this tool through `ToolCall`.
pub(super) fn is_through_tool_call(call: &Call) -> bool {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let Some(params) = call.params.as_deref().map(RawValue::get) else { return false };
    // Cheap check first: most calls are direct, and their arguments may be long.
    params.contains(TOOL_CALL)
        && serde_json::from_str(params).is_ok_and(|Named { name }| name == TOOL_CALL)
}

/// Adds the called tool to the `_meta` of a result. All else stays byte for byte.
pub(super) fn named(output: Output, server: Option<&str>, tool: &str) -> Output {
    let meta = json!({ "svc/server": server.unwrap_or(OWN), "svc/tool": tool });
    let whole = match &output {
        Output::Verbatim(result) => Some(with_meta(result.get(), &meta)),
        Output::Object(object) => {
            #[derive(Serialize)]
            #[serde(rename_all = "camelCase")]
            struct Members<'a> {
                content: [Value; 1],
                structured_content: &'a RawValue,
                #[serde(rename = "_meta")]
                meta: &'a Value,
            }
            let content = [json!({ "type": "text", "text": object.get() })];
            let members = Members { content, structured_content: object, meta: &meta };
            serde_json::to_string(&members).ok()
        }
        Output::Content { content, structured, is_error } => {
            let mut members = json!({ "content": content, "_meta": meta });
            if let Some(structured) = structured {
                members["structuredContent"] = structured.clone();
            }
            if *is_error {
                members["isError"] = json!(true);
            }
            Some(members.to_string())
        }
    };
    let whole = whole.and_then(|whole| RawValue::from_string(whole).ok());
    whole.map_or(output, Output::Verbatim)
}

/// Adds members to the `_meta` of an object.
fn with_meta(object: &str, meta: &Value) -> String {
    #[derive(Deserialize)]
    struct Known<'a> {
        #[serde(borrow, rename = "_meta")]
        meta: Option<&'a RawValue>,
    }
    let members = meta.to_string();
    let members = members.trim_matches(['{', '}']);
    let known = serde_json::from_str(object).ok().and_then(|Known { meta }| meta);
    let (at, head, tail) = match known.map(RawValue::get).filter(|it| it.starts_with('{')) {
        // Offset of its content in the text.
        Some(known) => (known.as_ptr().addr() - object.as_ptr().addr() + 1, "", known),
        None => (object.find('{').map_or(0, |at| at + 1), "\"_meta\":{", object),
    };
    let is_empty = tail.trim_start_matches('{').trim_start().starts_with('}');
    let end = if head.is_empty() { "" } else { "}" };
    let comma = if is_empty { "" } else { "," };
    format!("{}{head}{members}{end}{comma}{}", &object[..at], &object[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_called_tool_is_added_to_the_meta_of_an_unchanged_result() {
        let meta = r#""svc/server":"db","svc/tool":"db__query""#;
        for (result, expected) in [
            (r#"{ "z":1e400 }"#, format!(r#"{{"_meta":{{{meta}}}, "z":1e400 }}"#)),
            (r"{ }", format!(r#"{{"_meta":{{{meta}}} }}"#)),
            (
                r#"{"content":[],"_meta":{"x":1.0}}"#,
                format!(r#"{{"content":[],"_meta":{{{meta},"x":1.0}}}}"#),
            ),
            (r#"{"_meta": { } }"#, format!(r#"{{"_meta": {{{meta} }} }}"#)),
        ] {
            let output = Output::Verbatim(RawValue::from_string(result.to_owned()).unwrap());
            let Output::Verbatim(named) = named(output, Some("db"), "db__query") else {
                panic!("{result}")
            };
            assert_eq!(named.get(), expected);
            serde_json::from_str::<Value>(&expected.replace("1e400", "1")).unwrap();
        }
        let object = RawValue::from_string(r#"{"b":1.0}"#.to_owned()).unwrap();
        let Output::Verbatim(own) = named(Output::Object(object), None, "peer_list") else {
            panic!("a whole result")
        };
        let own: Value = serde_json::from_str(own.get()).unwrap();
        assert_eq!(own["_meta"], json!({ "svc/server": "svc", "svc/tool": "peer_list" }));
        assert_eq!(own["content"][0]["text"], r#"{"b":1.0}"#);
        assert_eq!(own["structuredContent"], json!({ "b": 1.0 }));
    }
}
