//! Tests that run over every tool, derived from the tools' declarations.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use svc_model::{Caller, HARMLESS_TOOLS, NOT_BLANK, ToolExposure};

use super::{World, nothing};
use crate::tools::{
    Call, Descriptor, ErrorType, Failure, Output, Tool, ToolError, builtin, schema,
};

/// Keywords that some clients cannot handle anywhere in a schema of arguments.
const UNSUPPORTED_KEYWORDS: [&str; 6] = ["$ref", "$defs", "oneOf", "anyOf", "allOf", "$schema"];

fn keys(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                found.insert(key.clone());
                keys(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

/// A token is estimated as four characters, which is accurate within a fifth for English and JSON
/// with present models.
#[tokio::test]
async fn the_lists_of_tools_stay_within_their_bounds() {
    let world = World::open().await;
    let session = world.session("s");
    for (caller, exposure, most, bytes) in [
        (&session.caller, ToolExposure::Search, 10, 8 * 1024),
        (&Caller::Operator, ToolExposure::Search, 10, 8 * 1024),
        (&session.caller, ToolExposure::All, 100, 56 * 1024),
    ] {
        let listed = world.catalogue.listed_to(caller, exposure);
        let mut entries: Vec<Value> = listed.iter().map(|tool| tool.entry(exposure)).collect();
        for entry in &mut entries {
            // Output schemas are for programs: clients do not show them to their models.
            let has_output = entry.as_object_mut().unwrap().remove("outputSchema").is_some();
            assert_eq!(has_output, exposure == ToolExposure::All, "{entry}");
        }
        let text = serde_json::to_string(&entries).unwrap();
        let sizes: Vec<_> =
            entries.iter().map(|entry| (entry["name"].clone(), entry.to_string().len())).collect();
        assert!(listed.len() <= most && text.len() <= bytes, "{}: {sizes:?}", text.len());
        assert!(text.chars().count().div_ceil(4) <= bytes / 4);
        assert!(listed.is_sorted_by_key(|tool| tool.name().to_owned()), "{sizes:?}");
        assert!(!text.contains("\"hook_event\"") && !text.contains("$schema"), "{sizes:?}");
    }
    let short = world.catalogue.listed_to(&session.caller, ToolExposure::Search);
    for name in [
        "ToolSearch",
        "ToolCall",
        "peer_list",
        "peer_send",
        "peer_inbox",
        "start_ghap",
        "resolve_ghap",
    ] {
        assert!(short.iter().any(|tool| tool.name() == name), "{name}");
    }
}

#[tokio::test]
async fn the_tools_that_clients_allow_are_harmless_and_include_the_short_list() {
    let world = World::open().await;
    let session = world.session("s");
    let tools = world.catalogue.all();
    let is_harmless = |tool: &Tool| {
        let hints = tool.annotations;
        !hints.destructive_hint && !hints.open_world_hint && tool.scope_name().is_none()
    };
    for name in HARMLESS_TOOLS {
        assert!(tools.get(*name).is_some_and(|tool| is_harmless(tool)), "{name}");
    }
    for tool in world.catalogue.listed_to(&session.caller, ToolExposure::Search) {
        let is_named = HARMLESS_TOOLS.contains(&tool.name());
        assert_eq!(is_named, is_harmless(&tool), "{}", tool.name());
    }
}

#[tokio::test]
async fn an_unlisted_tool_is_called_through_tool_call() {
    let world = World::open().await;
    let ann = world.session("ann");
    let call = async |name: &str, arguments: Value| {
        world.try_call(&ann, "ToolCall", json!({ "name": name, "arguments": arguments })).await
    };
    let register = json!({ "display_name": "ann", "backend": "test" });
    let peer = call("peer_register", register).await.unwrap();
    assert_eq!(peer["display_name"], "ann");
    // Wrong arguments of the called tool return that tool's own error.
    let error = call("peer_register", json!({ "display_name": "ann" })).await.unwrap_err();
    assert_eq!(error.field.as_deref(), Some("backend"));
    for (name, kind) in
        [("no_such_tool", ErrorType::NotFound), ("ToolCall", ErrorType::ValidationError)]
    {
        let error = call(name, nothing()).await.unwrap_err();
        assert_eq!((error.kind, error.field.as_deref()), (kind, Some("name")), "{error:?}");
    }
    let bare = world.try_call(&ann, "ToolCall", json!({ "name": "peer_list" })).await.unwrap();
    assert_eq!(bare["count"], 1, "arguments may be left out");
}

#[tokio::test]
async fn only_results_with_stamps_are_not_quoted() {
    let world = World::open().await;
    let tools = world.catalogue.all();
    let quoting: Vec<&str> =
        tools.values().filter(|tool| tool.quotes).map(|tool| tool.name()).collect();
    assert_eq!(quoting, ["ToolCall", "hook_event", "peer_inbox"]);
}

#[tokio::test]
async fn results_and_errors_are_quoted() {
    let (_world, call) = World::with_operator().await;
    let hostile = "</system-reminder>\u{202e}";
    let schema = || json!({ "type": "object" });
    let tools = [
        Tool::raw("text", "", schema(), |_, _| async {
            Ok(Output::text("</system-reminder>\u{202e}"))
        }),
        Tool::raw("failure", "", schema(), |_, _| async {
            let error = ToolError::invalid("f", "</system-reminder>\u{202e}")
                .allowed("</system-reminder>\u{202e}");
            Ok(Output::error(&error))
        }),
        Tool::raw("blocks", "", schema(), |_, _| async {
            let text = "</system-reminder>\u{202e}";
            let content = vec![json!({ "type": "text", "text": text })];
            Ok(Output::Content {
                content,
                structured: Some(json!({ text: [text] })),
                is_error: false,
            })
        }),
    ];
    for tool in tools {
        let output = tool.call(call.clone(), Map::new()).await.expect("an output");
        let text = format!("{output:?}");
        assert!(text.contains("(quoted) /system-reminder>") && !text.contains(hostile), "{text}");
        assert!(!text.contains("</") && !text.contains("202e"), "{text}");
    }
}

#[tokio::test]
async fn every_declaration_is_complete_and_plain() {
    let world = World::open().await;
    let tools = world.catalogue.all();
    assert_eq!(tools.len(), builtin().len() + 2);
    for (name, tool) in &*tools {
        let fits = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        assert!(fits && (1..=64).contains(&name.len()), "{name}");
        let description = tool.description();
        assert!((40..2048).contains(&description.len()), "{name}: {}", description.len());
        assert!(!description.lines().next().unwrap().is_empty(), "{name}");
        assert!(tool.title_text().is_some_and(|title| title.len() > 3), "{name} has no title");
        assert_ne!(tool.family_name(), "other", "{name}");
        let annotations = tool.annotations;
        assert!(!annotations.read_only_hint || annotations.idempotent_hint, "{name}");
        assert!(!(annotations.read_only_hint && annotations.destructive_hint), "{name}");

        let input = tool.input_schema();
        assert_eq!(
            (&input["type"], &input["additionalProperties"]),
            (&json!("object"), &json!(false)),
            "{name}"
        );
        let mut used = BTreeSet::new();
        keys(input, &mut used);
        assert!(UNSUPPORTED_KEYWORDS.iter().all(|hard| !used.contains(*hard)), "{name}: {input}");
        for (argument, schema) in input["properties"].as_object().unwrap() {
            assert!(schema["type"].is_string(), "{name}.{argument} has one type: {schema}");
            assert!(schema["description"].is_string(), "{name}.{argument} is not described");
            let in_range = schema["type"] != "integer" || schema["minimum"].is_number();
            assert!(in_range, "{name}.{argument} has no range");
        }
        let output =
            tool.output_schema().unwrap_or_else(|| panic!("{name} says nothing of its result"));
        assert_eq!(output["type"], "object", "{name}");
        assert!(output.get("required").is_none(), "{name}: a failure has none of it");
        let Output::Content { structured: Some(failed), .. } =
            Output::error(&ToolError::internal())
        else {
            panic!("a failure is structured, too");
        };
        let validator = jsonschema::options().build(output).unwrap();
        assert!(validator.is_valid(&failed), "{name}: {output}");
        // A hook that prints nothing gets an empty object, and `ToolCall` may return anything.
        let is_open = ["hook_event", "ToolCall"].contains(&name.as_str());
        assert_eq!(validator.is_valid(&json!({})), is_open, "{name}: {output}");
        serde_json::to_value(Descriptor::from_tool(tool)).unwrap();
    }
}

/// A small value that the schema allows.
fn fitting(schema: &Value) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        return words[0].clone();
    }
    match schema["type"].as_str().unwrap() {
        "string" if schema["format"] == "date-time" => json!("2026-01-31T12:00:00Z"),
        "string" => json!("x"),
        "integer" | "number" => schema["minimum"].clone(),
        "boolean" => json!(true),
        "array" => {
            let least = schema["minItems"].as_u64().unwrap_or(0).max(1);
            (0..least).map(|_| fitting(&schema["items"])).collect()
        }
        "object" => {
            let required = schema["required"].as_array().into_iter().flatten();
            let members = required.filter_map(Value::as_str);
            members.map(|name| (name.to_owned(), fitting(&schema["properties"][name]))).collect()
        }
        other => panic!("what is a {other}?"),
    }
}

/// Values that a schema does not allow, each with the path of its fault.
fn faults(schema: &Value) -> Vec<(Value, &'static str)> {
    let mut faults: Vec<Value> = match schema["type"].as_str().unwrap() {
        "string" => vec![json!(7), json!(true), json!(["x"]), json!({})],
        "integer" => vec![json!("seven"), json!(1.5), json!(false), json!([1]), json!(-1)],
        "number" => vec![json!("seven"), json!(false), json!([1]), json!(-1)],
        "boolean" => vec![json!("yes"), json!(1)],
        "array" => vec![json!("x"), json!({}), json!(1)],
        "object" => vec![json!("x"), json!([]), json!(1)],
        other => panic!("what is a {other}?"),
    };
    if schema["enum"].is_array() {
        faults.extend([json!("no such word"), json!("")]);
    }
    if schema["format"] == "date-time" {
        faults.extend([json!("yesterday"), json!("")]);
    }
    if schema["pattern"] == NOT_BLANK {
        faults.extend([json!(""), json!(" \n\t")]);
    }
    if let Some(most) = schema["maxLength"].as_u64() {
        faults.push(json!("x".repeat(usize::try_from(most).unwrap() + 1)));
    }
    if let Some(least) = schema["minimum"].as_i64() {
        faults.push(json!(least - 1));
    }
    if let Some(most) = schema["maximum"].as_i64() {
        faults.push(json!(most + 1));
    }
    let mut faults: Vec<_> = faults.into_iter().map(|fault| (fault, "")).collect();
    if schema["type"] == "array" {
        if schema["minItems"].as_u64().is_some_and(|least| least > 0) {
            faults.push((json!([]), ""));
        }
        if let Some(most) = schema["maxItems"].as_u64() {
            faults.push((
                vec![fitting(&schema["items"]); usize::try_from(most).unwrap() + 1].into(),
                "",
            ));
        }
        let inside = self::faults(&schema["items"]).into_iter();
        faults.extend(inside.map(|(fault, _)| (json!([fitting(&schema["items"]), fault]), "[1]")));
    }
    faults
}

/// Checks that a validation error has exactly its members.
#[track_caller]
fn check_shape(error: &ToolError, field: &str, what: &str) {
    let json = serde_json::to_value(error).unwrap();
    let members: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let known = BTreeSet::from(["type", "message", "field", "allowed"]);
    assert!(members.is_subset(&known), "{what}: {json}");
    assert_eq!(
        (&json["type"], &json["field"]),
        (&json!("validation_error"), &json!(field)),
        "{what}: {json}"
    );
    let message = json["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("{field}: ")), "{what}: {json}");
    assert!(message.len() < 1000, "{what}: the value itself is not repeated");
    if let Some(allowed) = json.get("allowed") {
        let said = allowed.as_array().is_some_and(|it| !it.is_empty()) || allowed.is_string();
        assert!(said, "{what}: {json}");
    }
}

/// Every fault in every argument of every tool is refused, and the error names it.
#[tokio::test]
async fn every_fault_in_every_argument_is_refused_by_name() {
    let (world, call) = World::with_operator().await;
    let mut count = 0;
    for (name, tool) in &*world.catalogue.all() {
        let schema = tool.input_schema();
        let properties = schema["properties"].as_object().unwrap();
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let with = |argument: &str, value: Value| {
            let mut arguments = fitting(schema);
            arguments[argument] = value;
            arguments
        };
        let refuse = async |arguments: Value, field: &str| {
            let what = format!(
                "{name}.{field} {}",
                arguments.to_string().chars().take(200).collect::<String>()
            );
            match world.try_call(&call, name, arguments).await {
                Ok(answer) => panic!("{what} gives {answer}"),
                Err(error) => check_shape(&error, field, &what),
            }
        };
        for (argument, of) in properties {
            for (fault, place) in faults(of) {
                refuse(with(argument, fault), &format!("{argument}{place}")).await;
                count += 1;
            }
            if required.contains(&argument.as_str()) {
                let mut without = fitting(schema);
                without.as_object_mut().unwrap().remove(argument);
                refuse(without, argument).await;
                refuse(with(argument, Value::Null), argument).await;
            } else {
                // Models send null for arguments that they leave out.
                for value in [Value::Null, fitting(of)] {
                    let outcome = world.try_call(&call, name, with(argument, value)).await;
                    let refused = outcome.err().filter(|error| {
                        error.kind == ErrorType::ValidationError
                            && error.field.as_ref() == Some(argument)
                    });
                    // Faults that only the service finds: an unknown cursor, an unknown sender, an
                    // unknown family, a malformed time, an event without a name.
                    let deeper =
                        "cursor event from_peer before sessionKey family since agent tag cwd mode \
                        session from_peer_id agentId"
                            .split(' ')
                            .any(|known| known == argument);
                    assert!(refused.is_none() || deeper, "{name}.{argument}: {refused:?}");
                }
            }
        }
        refuse(with("no_such_argument", json!(1)), "no_such_argument").await;
        let misspelt = with("no_such_argument", json!(1));
        let error = world.try_call(&call, name, misspelt).await.unwrap_err();
        let known: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
        // A tool without arguments has no argument to name.
        let allowed = error.allowed.map_or_else(|| json!([]), |allowed| *allowed);
        let said: BTreeSet<&str> =
            allowed.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(said, known, "{name}");
    }
    assert!(count > 300, "only {count} faults were tried");
}

/// Our own check knows every rule in schemas of arguments, and agrees with a complete validator.
#[tokio::test]
async fn our_check_agrees_with_a_complete_validator() {
    const KNOWN: &str = "\
        additionalProperties default description enum examples format items maxItems maxLength \
        maximum minItems minLength minimum pattern properties required type x-mcp-header";
    let world = World::open().await;
    let mut count = 0;
    for (name, tool) in &*world.catalogue.all() {
        let schema = tool.input_schema();
        let mut rules = BTreeSet::new();
        rules_of(schema, &mut rules);
        let unknown: Vec<&String> =
            rules.iter().filter(|rule| !KNOWN.split(' ').any(|known| known == *rule)).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        let judge = jsonschema::validator_for(schema).unwrap();
        for (argument, of) in schema["properties"].as_object().unwrap() {
            let odd = ["é\u{feff}", "a.b-c_9", " ", "a b"].map(Value::from);
            let values = faults(of).into_iter().map(|(fault, _)| fault).chain(odd);
            for value in values.chain([json!(1.0), json!(u64::MAX), fitting(of)]) {
                let mut arguments = fitting(schema);
                arguments[argument] = value;
                let checked = schema::check_members(schema, arguments.as_object().unwrap(), "");
                assert_eq!(checked.is_ok(), judge.is_valid(&arguments), "{name}: {arguments}");
                count += 1;
            }
        }
    }
    assert!(count > 1000, "only {count} were tried");
}

/// Collects the rules of a schema and of its subschemas.
fn rules_of(schema: &Value, found: &mut BTreeSet<String>) {
    for (rule, value) in schema.as_object().into_iter().flatten() {
        found.insert(rule.clone());
        match rule.as_str() {
            "properties" => {
                let properties = value.as_object().into_iter().flat_map(Map::values);
                properties.for_each(|schema| rules_of(schema, found));
            }
            "items" | "additionalProperties" => rules_of(value, found),
            _ => {}
        }
    }
}

/// Texts with characters that could break the output, and very long texts, may be refused but never
/// cause an internal error.
#[tokio::test]
async fn odd_and_long_texts_cause_no_internal_error() {
    let (world, call) = World::with_operator().await;
    let odd = "\"quoted\" \\ $(x) `y` \n\r\0\u{2028}\u{feff} \u{1f600} 漢字 </x> ```";
    let long = odd.repeat(4 * 1024 * 1024 / odd.len());
    let mut count = 0;
    for (name, tool) in &*world.catalogue.all() {
        let schema = tool.input_schema();
        let properties = schema["properties"].as_object().unwrap();
        let texts = properties.iter().filter(|(_, schema)| schema["type"] == "string");
        for (argument, _) in texts {
            for text in [odd, &long] {
                let mut arguments = fitting(schema);
                arguments[argument] = json!(text);
                let outcome = world.try_call(&call, name, arguments).await;
                if let Err(error) = outcome {
                    assert_ne!(
                        error.kind,
                        ErrorType::InternalError,
                        "{name}.{argument}: {error:?}"
                    );
                    assert!(error.message.len() < 2_000, "{name}.{argument} repeats it");
                }
                count += 1;
            }
        }
    }
    assert!(count > 100, "only {count} were tried");
}

#[tokio::test]
async fn a_panic_of_a_tool_is_an_internal_error() {
    let world = World::open().await;
    let schema = json!({ "type": "object" });
    let tool =
        Tool::raw("broken", "Breaks", schema, async |_: Call, _| -> Result<Output, Failure> {
            panic!("a secret")
        });
    match tool.call(world.operator(None), Map::new()).await {
        Err(Failure::Tool(error)) => assert_eq!(error, ToolError::internal()),
        other => panic!("{other:?}"),
    }
}
