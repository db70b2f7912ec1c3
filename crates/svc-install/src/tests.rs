//! Edits of texts: tables of texts before and after, and properties that hold for any text.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::document::{ConfigDocument, FileFormat};
use super::edit::{self, Edit, EditError, EditState, GrantForm, UndoInfo};
use super::entries::{is_our_handler, is_our_server};

pub(crate) fn server() -> Edit {
    let entry = json!({ "type": "stdio", "command": "/opt/svc", "args": ["stdio"] });
    Edit::Server { table: "mcpServers", entry }
}

fn toml_server() -> Edit {
    let entry = json!({ "command": "/opt/svc", "args": ["stdio"] });
    Edit::Server { table: "mcp_servers", entry }
}

pub(crate) fn hooks() -> Edit {
    let group = |event: &'static str| {
        let handler = json!({ "type": "command", "command": "/opt/svc hook codex", "timeout": 5 });
        (event, json!({ "hooks": [handler] }))
    };
    Edit::Hooks { groups: vec![group("PreToolUse"), group("Stop")] }
}

pub(crate) fn value(format: FileFormat, text: &str) -> Value {
    ConfigDocument::parse(format, text).expect("parses").value()
}

/// Applies an edit twice and then undoes it; the second application must change nothing.
#[track_caller]
fn there_and_back(text: &str, format: FileFormat, edit: &Edit) -> (String, String) {
    let (after, undo_info) = edit::apply(text, format, edit).expect("applies");
    assert_eq!(edit::find(&after, format, edit), Ok(EditState::Same), "{after}");
    let (again, nothing) = edit::apply(&after, format, edit).expect("applies again");
    assert_eq!((again.as_str(), &nothing), (after.as_str(), &UndoInfo::default()));
    let back =
        edit::undo(&after, format, edit, &undo_info).expect("undoes").expect("is not ours alone");
    (after, back)
}

#[test]
fn server_is_added_beside_others_in_the_style_of_the_file() {
    let ours = r#""svc": {
      "type": "stdio",
      "command": "/opt/svc",
      "args": ["stdio"]
    }"#;
    let cases = [
        ("{}\n", format!("{{\n  \"mcpServers\": {{\n    {ours}\n  }}\n}}\n")),
        (
            "{\n  // mine\n  \"mcpServers\": {\n    \"a\": {\"command\": \"x\"} // keep\n  },\n  \"z\": 1.50\n}\n",
            format!(
                "{{\n  // mine\n  \"mcpServers\": {{\n    \"a\": {{\"command\": \"x\"}}, // keep\n    {ours}\n  }},\n  \"z\": 1.50\n}}\n"
            ),
        ),
        // In a file with trailing commas, svc's entries have them too.
        (
            "{\n  \"mcpServers\": {\n    \"a\": 1,\n  },\n}\n",
            format!(
                "{{\n  \"mcpServers\": {{\n    \"a\": 1,\n    {},\n  }},\n}}\n",
                ours.replace("[\"stdio\"]", "[\"stdio\"],")
            ),
        ),
    ];
    for (before, wanted) in cases {
        let (after, back) = there_and_back(before, FileFormat::Json, &server());
        assert_eq!(after, wanted);
        assert_eq!(back, before);
    }
}

/// The lines of `before` are, in their order and with their line ends, lines of `after`.
#[track_caller]
fn assert_lines_stay(before: &str, after: &str) {
    let mut lines = after.split_inclusive('\n');
    for line in before.split_inclusive('\n') {
        assert!(lines.any(|there| there == line), "{line:?} of {before:?} is not in {after:?}");
    }
}

#[test]
fn mixed_line_ends_stay_as_they_are() {
    let toml = "# mine\r\nmodel = \"gpt-5\"\n\r\n\nnotes = \"\"\"\r\na\nb\r\n\"\"\"\nlist = [\r\n  1, # one\n  2,\r\n]\n\n\
        [mcp_servers.a]\r\n\r\ncommand = \"x\"\ntimeout = 5\r\n\n[mcp_servers.z] # last\r\ncommand = 'y' # z\r\n";
    for before in
        [toml.to_owned(), format!("\u{feff}{toml}"), toml.replace("list = [", "[t]\nlist = [")]
    {
        let (after, back) = there_and_back(&before, FileFormat::Toml, &toml_server());
        assert_lines_stay(&before, &after);
        assert_eq!(back, before);
        let document = ConfigDocument::parse(FileFormat::Toml, &before).expect("is TOML");
        assert_eq!(document.value()["notes"], "a\nb\r\n", "a value is read as it stands");
        let (after, back) = there_and_back(&before, FileFormat::Toml, &hooks());
        assert_lines_stay(&before, &after);
        assert_eq!(back, before);
        // Lines behind svc's own.
        let (after, _) = edit::apply(&before, FileFormat::Toml, &toml_server()).expect("applies");
        let behind = format!(
            "{after}\r\n# more\n\r\n[mcp_servers.svc.env]\r\nA = 'b'\n[more]\r\nb = 1\n\r\n"
        );
        let other = json!({ "command": "/new/svc", "args": ["stdio"] });
        let other = Edit::Server { table: "mcp_servers", entry: other };
        let (changed, _) = edit::apply(&behind, FileFormat::Toml, &other).expect("applies");
        assert_eq!(changed, behind.replace("/opt/svc", "/new/svc"));
    }
    let json = "{\r\n  // mine\n  \"a\": 1,\n\r\n  \"mcpServers\": {\r\n    \"a\": {\n    },\r\n    \"z\": {}\n  },\r\n\n  \"hooks\": {\n    \"Other\": [],\r\n  },\r\n}\n";
    for edit in [server(), hooks()] {
        let (after, back) = there_and_back(json, FileFormat::Json, &edit);
        let without_comma = after.replace("\"z\": {},", "\"z\": {}");
        assert_lines_stay(&json.replace("\"z\": {},", "\"z\": {}"), &without_comma);
        assert_eq!(back, json);
        // A person's lines behind svc's own.
        let behind = after.replace("  },\r\n}", "  },\r\n  \"more\": 1,\n  \"end\": 2\r\n}");
        let (_, undo_info) = edit::apply(json, FileFormat::Json, &edit).expect("applies");
        let back = edit::undo(&behind, FileFormat::Json, &edit, &undo_info).expect("undoes");
        let rest = json.replace("  },\r\n}", "  },\r\n  \"more\": 1,\n  \"end\": 2\r\n}");
        assert_eq!(back, Some(rest));
    }
}

#[test]
fn line_ends_indentation_and_byte_order_marks_stay() {
    let (after, back) = there_and_back("{\r\n\t\"a\": 1\r\n}\r\n", FileFormat::Json, &server());
    assert!(after.contains("\r\n\t\"mcpServers\": {\r\n\t\t\"svc\": {\r\n"), "{after:?}");
    assert!(!after.replace("\r\n", "").contains('\n'), "{after:?}");
    assert_eq!(back, "{\r\n\t\"a\": 1\r\n}\r\n");
    let before = "# mine\r\nmodel = \"gpt-5\"\r\n\r\n[mcp_servers.a]\r\ncommand = \"x\"\r\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &toml_server());
    assert!(after.starts_with(before) && after.contains("[mcp_servers.svc]\r\n"), "{after:?}");
    assert!(!after.replace("\r\n", "").contains('\n'), "{after:?}");
    assert_eq!(back, before);
    let marked = "\u{feff}{\n    \"a\": 1\n}\n";
    let (after, back) = there_and_back(marked, FileFormat::Json, &server());
    assert!(after.starts_with("\u{feff}{\n    \"a\": 1,\n    \"mcpServers\""), "{after:?}");
    assert_eq!(back, marked);
}

#[test]
fn toml_keeps_comments_and_gets_one_more_table() {
    let before = "# mine\nmodel = \"gpt-5\"  # the good one\n\n[mcp_servers.a]\ncommand = \"x\"\n\n[profiles.b]\nmodel = \"y\"\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &toml_server());
    assert_eq!(
        after,
        "# mine\nmodel = \"gpt-5\"  # the good one\n\n[mcp_servers.a]\ncommand = \"x\"\n\n[mcp_servers.svc]\ncommand = \"/opt/svc\"\nargs = [\"stdio\"]\n\n[profiles.b]\nmodel = \"y\"\n"
    );
    assert_eq!(back, before);
    let inline = "mcp_servers = { a = { command = \"x\" } }\n";
    let (after, back) = there_and_back(inline, FileFormat::Toml, &toml_server());
    assert_eq!(
        value(FileFormat::Toml, &after)["mcp_servers"]["svc"],
        json!({ "command": "/opt/svc", "args": ["stdio"] })
    );
    assert_eq!(value(FileFormat::Toml, &back), value(FileFormat::Toml, inline));
}

#[test]
fn entry_in_toml_is_updated_in_place() {
    let before = "[mcp_servers.a]\ncommand = \"x\"\n\n# ours\n[mcp_servers.svc]\ncommand = \"/old/svc\"\nargs = [\"stdio\"]\nstartup_timeout_sec = 20\n\n[profiles.b]\nmodel = \"y\"\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &toml_server());
    assert_eq!(
        after,
        before.replace(
            "/old/svc\"\nargs = [\"stdio\"]\nstartup_timeout_sec = 20",
            "/opt/svc\"\nargs = [\"stdio\"]\nstartup_timeout_sec = 20"
        )
    );
    assert_eq!(value(FileFormat::Toml, &back), value(FileFormat::Toml, before));
}

#[test]
fn hooks_are_added_to_toml_that_has_hooks() {
    let before =
        "[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ntype = \"command\"\ncommand = \"say undo_info\"\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &hooks());
    let hooks = &value(FileFormat::Toml, &after)["hooks"];
    assert_eq!(hooks["Stop"][0]["hooks"][0]["command"], "say undo_info");
    assert_eq!(hooks["Stop"][1]["hooks"][0]["command"], "/opt/svc hook codex");
    assert_eq!(hooks["PreToolUse"][0]["hooks"][0]["timeout"], 5);
    assert_eq!(back, before);
}

#[test]
fn invalid_or_differently_shaped_text_is_refused() {
    let cases = [
        (FileFormat::Json, "{", &server()),
        (FileFormat::Json, "{'a': 1}", &server()),
        (FileFormat::Json, "{\"a\": 1 \"b\": 2}", &server()),
        (FileFormat::Json, "[]", &server()),
        (FileFormat::Json, "{\"mcpServers\": []}", &server()),
        (FileFormat::Json, "{\"hooks\": {\"Stop\": {}}}", &hooks()),
        (FileFormat::Toml, "a = ", &toml_server()),
        (FileFormat::Toml, "mcp_servers = 3", &toml_server()),
    ];
    for (format, text, edit) in cases {
        let refused = edit::apply(text, format, edit);
        assert!(matches!(refused, Err(EditError::Document(_))), "{text}: {refused:?}");
    }
}

#[test]
fn own_entry_is_updated_and_additions_of_the_person_stay() {
    let before = r#"{"mcpServers":{"svc":{"type":"http","url":"http://127.0.0.1:7000/mcp","headers":{"Authorization":"Bearer x"},"timeout":9}}}"#;
    let (after, undo_info) = edit::apply(before, FileFormat::Json, &server()).expect("applies");
    assert_eq!(
        value(FileFormat::Json, &after)["mcpServers"]["svc"],
        json!({ "type": "stdio", "command": "/opt/svc", "args": ["stdio"], "timeout": 9 })
    );
    let back = edit::undo(&after, FileFormat::Json, &server(), &undo_info).expect("undoes");
    assert_eq!(value(FileFormat::Json, &back.expect("stays")), value(FileFormat::Json, before));
}

#[test]
fn updated_entry_keeps_its_comments() {
    let before = "{\n  \"mcpServers\": {\n    // ours\n    \"svc\": {\n      \"type\": \"stdio\",\n      \"command\": \"/old/svc\", // from cargo\n      \"args\": [\"stdio\"]\n    }\n  }\n}\n";
    let (after, back) = there_and_back(before, FileFormat::Json, &server());
    assert_eq!(after, before.replace("/old/svc", "/opt/svc"));
    assert_eq!(back, before);
}

#[test]
fn foreign_server_of_our_name_is_not_replaced() {
    let before = r#"{"mcpServers":{"svc":{"command":"/opt/other","args":["stdio"]}}}"#;
    assert_eq!(edit::apply(before, FileFormat::Json, &server()), Err(EditError::NameTaken));
    let undo_info = UndoInfo::default();
    let left = edit::undo(before, FileFormat::Json, &server(), &undo_info);
    assert_eq!(left, Ok(Some(before.to_owned())));
}

/// Of two members with one name clients read the last, and an edit changes the first.
#[test]
fn file_that_has_a_name_twice_is_refused() {
    let hooks_twice = r#"{"hooks":{"Start":[]},"hooks":{"Stop":[]}}"#;
    let refused = edit::apply(hooks_twice, FileFormat::Json, &hooks());
    assert_eq!(refused, Err(EditError::RepeatedName));
    let servers_twice = r#"{"mcpServers":{},"mcpServers":{"a":{"command":"x"}}}"#;
    let refused = edit::apply(servers_twice, FileFormat::Json, &server());
    assert_eq!(refused, Err(EditError::RepeatedName));
    let elsewhere = r#"{"mcpServers":{},"z":1,"z":2}"#;
    edit::apply(elsewhere, FileFormat::Json, &server()).expect("is not about the two");
}

#[test]
fn own_handlers_are_found_after_a_person_moved_them() {
    let before = json!({ "hooks": {
        "Stop": [{ "matcher": "", "hooks": [
            { "type": "command", "command": "say undo_info" },
            { "type": "command", "command": "'/old place/svc' hook codex", "timeout": 5 },
        ]}],
        "SessionEnd": [{ "hooks": [{ "type": "command", "command": "/opt/svc hook codex" }] }],
    }});
    let text = serde_json::to_string_pretty(&before).expect("is JSON");
    assert_eq!(edit::find(&text, FileFormat::Json, &hooks()), Ok(EditState::Differs));
    let (after, undo_info) = edit::apply(&text, FileFormat::Json, &hooks()).expect("applies");
    let hooks_now = &value(FileFormat::Json, &after)["hooks"];
    assert_eq!(
        hooks_now["Stop"][0]["hooks"],
        json!([{ "type": "command", "command": "say undo_info" }])
    );
    assert_eq!(hooks_now["Stop"][1]["hooks"][0]["command"], "/opt/svc hook codex");
    assert_eq!(hooks_now["Stop"].as_array().map(Vec::len), Some(2));
    let back =
        edit::undo(&after, FileFormat::Json, &hooks(), &undo_info).expect("undoes").expect("stays");
    assert_eq!(
        value(FileFormat::Json, &back)["hooks"]["Stop"],
        json!([{ "matcher": "", "hooks": [{ "type": "command", "command": "say undo_info" }] }])
    );
    assert_eq!(value(FileFormat::Json, &back)["hooks"].get("PreToolUse"), None, "{back}");
}

#[test]
fn only_own_entries_are_recognised() {
    let handlers = [
        (json!({ "command": "/a/svc", "args": ["status"] }), false),
        (json!({ "command": "/a/svc hook gemini" }), true),
        (json!({ "command": "'/a b/svc' hook gemini" }), true),
        (json!({ "command": "'/a hook b/svc' hook gemini --home '/x hook y'" }), true),
        (json!({ "command": "/a/svc hook emacs" }), false),
        (
            json!({ "command": "command -v svc >/dev/null 2>&1 || exit 0; exec svc hook codex" }),
            true,
        ),
        (json!({ "command": "test -x /a/svc || exit 0; exec /a/svc hook wait" }), true),
        (
            json!({ "command": "test -x '/it'\\''s $x/svc' || exit 0; exec '/it'\\''s $x/svc' hook codex" }),
            true,
        ),
        (json!({ "command": "test -x /a/svc2 || exit 0; exec /a/svc2 hook codex" }), true),
        (json!({ "command": "test -x '/a b/mine' || exit 0; exec '/a b/mine' hook wait" }), true),
        (json!({ "command": "test -x /a/other || exit 0; exec /a/mine hook codex" }), false),
        (json!({ "command": "test -x /a/mine || exit 0; exec /a/mine hook emacs" }), false),
        (json!({ "command": "/opt/svc-tools hook gemini" }), false),
        (json!({ "command": "my-svc hook codex" }), false),
        (json!({ "command": "git svc; other hook x" }), false),
        (json!({ "type": "prompt", "prompt": "svc hook codex" }), false),
    ];
    for (handler, ours) in handlers {
        assert_eq!(is_our_handler(&handler), ours, "{handler}");
    }
    let servers = [
        (json!({ "command": "svc", "args": ["stdio"] }), true),
        (json!({ "command": ["/a/svc", "--home", "/x", "stdio"] }), true),
        (json!({ "command": "svc", "args": ["serve"] }), false),
        (json!({ "url": "http://127.0.0.1:6334/mcp" }), true),
        (json!({ "httpUrl": "http://localhost:1/mcp" }), true),
        (json!({ "url": "https://svc.example/mcp" }), false),
        (json!(7), false),
    ];
    for (server, ours) in servers {
        assert_eq!(is_our_server(&server), ours, "{server}");
    }
}

#[test]
fn trust_is_added_and_removed() {
    let hashes = vec![("/h/hooks.json:stop:0:0".to_owned(), "sha256:1".to_owned())];
    let edit = Edit::Trust { hashes };
    let before =
        "model = \"x\"\n\n[hooks.state.\"/h/other.json:stop:0:0\"]\ntrusted_hash = \"sha256:2\"\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &edit);
    let state = &value(FileFormat::Toml, &after)["hooks"]["state"];
    assert_eq!(state["/h/hooks.json:stop:0:0"]["trusted_hash"], "sha256:1");
    assert_eq!(state["/h/other.json:stop:0:0"]["trusted_hash"], "sha256:2");
    assert_eq!(back, before);
}

#[test]
fn allowed_tools_are_added_in_each_form_and_removed() {
    let tools = vec!["svc_peer_list".to_owned(), "svc_peer_send".to_owned()];
    let list = Edit::Allow {
        table: &["permissions", "allow"],
        tools: tools.clone(),
        form: GrantForm::ListItem,
    };
    let json = |text: &str| value(FileFormat::Json, text);
    let before =
        "{\n  \"permissions\": {\n    \"allow\": [\"Bash(ls)\", \"svc_peer_list\"]\n  }\n}\n";
    let (after, back) = there_and_back(before, FileFormat::Json, &list);
    let wanted = json!(["Bash(ls)", "svc_peer_list", "svc_peer_send"]);
    assert_eq!(json(&after)["permissions"]["allow"], wanted);
    assert_eq!(json(&back), json(before), "what the person had allowed stays");
    let (after, back) = there_and_back("{}", FileFormat::Json, &list);
    assert_eq!(json(&after)["permissions"]["allow"], json!(tools));
    assert_eq!(json(&back), json!({}));

    let form = GrantForm::Key(json!({ "approval_mode": "approve" }));
    let table = Edit::Allow { table: &["mcp_servers", "svc", "tools"], tools, form };
    let before = "[mcp_servers.svc]\ncommand = \"svc\"\n\n[mcp_servers.svc.tools.other]\napproval_mode = \"prompt\"\n";
    let (after, back) = there_and_back(before, FileFormat::Toml, &table);
    let servers = &value(FileFormat::Toml, &after)["mcp_servers"];
    assert_eq!(servers["svc"]["tools"]["svc_peer_list"]["approval_mode"], "approve");
    assert_eq!(servers["svc"]["tools"]["other"]["approval_mode"], "prompt");
    assert_eq!(back, before);
    let text = "{\"permissions\": \"all\"}";
    assert!(edit::apply(text, FileFormat::Json, &list).is_err(), "another shape is left alone");
}

/// Documents with arbitrary members, servers and hooks.
pub(crate) fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[ -~äß\n\t]{0,12}".prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z_.]{1,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    });
    let groups = prop::collection::vec(
        prop::collection::vec(Just(json!({ "type": "command", "command": "say x" })), 0..3)
            .prop_map(|handlers| json!({ "hooks": handlers })),
        0..3,
    );
    let events = prop::collection::btree_map(
        prop_oneof![Just("Stop".to_owned()), Just("PreToolUse".to_owned()), "[A-Z][a-z]{3}"],
        groups,
        0..3,
    );
    let servers = prop::collection::btree_map("[a-r]{1,5}", tree.clone(), 0..3);
    let rest = prop::collection::btree_map("[a-zA-Z]{1,4}", tree, 0..4);
    (rest, prop::option::of(events), prop::option::of(servers)).prop_map(
        |(rest, events, servers)| {
            let mut document = json!(rest);
            if let Some(events) = events {
                document["hooks"] = json!(events);
            }
            if let Some(servers) = servers {
                document["mcpServers"] = json!(servers);
                document["mcp_servers"] = json!(servers);
            }
            document
        },
    )
}

/// Replaces nulls, which TOML does not have.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Null => json!("nothing"),
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        Value::Object(map) => {
            Value::Object(map.into_iter().map(|(key, value)| (key, without_nulls(value))).collect())
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn edits_of_json_are_undone(document in documents(), pretty: bool) {
        let text = if pretty {
            serde_json::to_string_pretty(&document).expect("is JSON")
        } else {
            document.to_string()
        };
        for edit in [server(), hooks()] {
            let (after, back) = there_and_back(&text, FileFormat::Json, &edit);
            let strict: Value = serde_json::from_str(&after).expect("is strict JSON still");
            prop_assert_eq!(strict, value(FileFormat::Json, &after));
            prop_assert_eq!(value(FileFormat::Json, &back), document.clone());
        }
    }

    #[test]
    fn edits_of_toml_are_undone(document in documents()) {
        let document = without_nulls(document);
        let mut made = ConfigDocument::parse(FileFormat::Toml, "# first\n").expect("parses");
        for (key, value) in document.as_object().expect("is an object") {
            made.set(&[key], value).expect("has room");
        }
        let text = made.text();
        let before = value(FileFormat::Toml, &text);
        for edit in [toml_server(), hooks()] {
            let (_, back) = there_and_back(&text, FileFormat::Toml, &edit);
            prop_assert_eq!(value(FileFormat::Toml, &back), before.clone());
        }
    }

    #[test]
    fn no_text_makes_an_edit_panic(text in "[\\[\\]{}\",:=#/*a-c.0-9 \n\r']{0,40}") {
        for (format, edit) in [(FileFormat::Json, server()), (FileFormat::Toml, toml_server()), (FileFormat::Json, hooks())] {
            if let Ok((after, undo_info)) = edit::apply(&text, format, &edit) {
                prop_assert_eq!(edit::find(&after, format, &edit), Ok(EditState::Same));
                edit::undo(&after, format, &edit, &undo_info).expect("undoes");
            }
        }
    }
}
