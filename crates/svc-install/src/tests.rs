//! Tables of texts before and after, and what must hold for any text.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::apply::{FileOutcome, Installer};
use super::change::FileChange;
use super::claude;
use super::client::{InstallParts, InstallScope, KnownClient};
use super::command::ClientCommand;
use super::document::{ConfigDocument, FileFormat};
use super::edit::{
    self, Edit, EditError, EditState, GrantForm, UndoInfo, is_our_handler, is_our_server,
};
use super::locations::ClientLocations;
use super::record::InstallRecord;
use super::version::ClientVersion;

fn server() -> Edit {
    let entry = json!({ "type": "stdio", "command": "/opt/svc", "args": ["stdio"] });
    Edit::Server { table: &["mcpServers"], entry }
}

fn toml_server() -> Edit {
    let entry = json!({ "command": "/opt/svc", "args": ["stdio"] });
    Edit::Server { table: &["mcp_servers"], entry }
}

fn hooks() -> Edit {
    let group = |event: &'static str| {
        let handler = json!({ "type": "command", "command": "/opt/svc hook codex", "timeout": 5 });
        (event, json!({ "hooks": [handler] }))
    };
    Edit::Hooks { groups: vec![group("PreToolUse"), group("Stop")] }
}

fn value(format: FileFormat, text: &str) -> Value {
    ConfigDocument::parse(format, text).expect("parses").value()
}

/// Applies an edit twice and undoes it; the second time must change nothing.
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
fn a_server_stands_beside_the_others_in_the_style_of_the_file() {
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
        // Where there are trailing commas, ours have them too.
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
fn toml_keeps_its_comments_and_gets_one_more_table() {
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
fn an_entry_in_toml_is_put_right_where_it_stands() {
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
fn hooks_go_into_toml_where_a_person_has_them_there() {
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
fn what_does_not_parse_or_has_another_shape_is_refused() {
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
fn an_entry_of_ours_is_put_right_and_a_persons_additions_to_it_stay() {
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
fn an_entry_that_is_put_right_keeps_its_comments() {
    let before = "{\n  \"mcpServers\": {\n    // ours\n    \"svc\": {\n      \"type\": \"stdio\",\n      \"command\": \"/old/svc\", // from cargo\n      \"args\": [\"stdio\"]\n    }\n  }\n}\n";
    let (after, back) = there_and_back(before, FileFormat::Json, &server());
    assert_eq!(after, before.replace("/old/svc", "/opt/svc"));
    assert_eq!(back, before);
}

#[test]
fn a_server_that_only_has_our_name_is_nobodys_to_replace() {
    let before = r#"{"mcpServers":{"svc":{"command":"/opt/other","args":["stdio"]}}}"#;
    assert_eq!(edit::apply(before, FileFormat::Json, &server()), Err(EditError::NameTaken));
    let undo_info = UndoInfo::default();
    let left = edit::undo(before, FileFormat::Json, &server(), &undo_info);
    assert_eq!(left, Ok(Some(before.to_owned())));
}

#[test]
fn our_handlers_are_known_wherever_they_were_moved() {
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
    // The old ones are gone, the person's is where it was.
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
fn ours_is_told_from_others() {
    let handlers = [
        (json!({ "command": "/a/svc", "args": ["hook", "claude-code"] }), true),
        (json!({ "command": "/a/svc", "args": ["--home", "/x", "hook", "wait"] }), true),
        (json!({ "command": "/a/svc", "args": ["status"] }), false),
        (json!({ "command": "/a/other", "args": ["hook", "x"] }), false),
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
        (json!({ "command": "/opt/svc-0.1", "args": ["hook", "claude-code"] }), true),
        (json!({ "command": "/opt/svc-0.1.0-linux hook gemini" }), true),
        (json!({ "command": "/opt/svc-tools hook gemini" }), false),
        (json!({ "command": "/a/svc", "args": ["hook", "emacs"] }), false),
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
fn trust_is_written_beside_what_codex_knows_and_taken_back() {
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
fn allowed_tools_stand_in_each_clients_form_and_are_taken_back() {
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

/// Names and values as files have them, and some that mean something to us.
fn documents() -> impl Strategy<Value = Value> {
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

/// The same without what TOML cannot say.
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
    // Some of them wait for the disk.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_was_put_into_json_can_be_taken_out(document in documents(), pretty: bool) {
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
    fn what_was_put_into_toml_can_be_taken_out(document in documents()) {
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
    fn no_text_makes_an_editor_panic(text in "[\\[\\]{}\",:=#/*a-c.0-9 \n\r']{0,40}") {
        for (format, edit) in [(FileFormat::Json, server()), (FileFormat::Toml, toml_server()), (FileFormat::Json, hooks())] {
            if let Ok((after, undo_info)) = edit::apply(&text, format, &edit) {
                prop_assert_eq!(edit::find(&after, format, &edit), Ok(EditState::Same));
                edit::undo(&after, format, &edit, &undo_info).expect("undoes");
            }
        }
    }

    #[test]
    fn a_file_is_byte_for_byte_what_it_was(document in documents(), spaces in 0_usize..3, end: bool) {
        let mut text = " ".repeat(spaces) + &serde_json::to_string_pretty(&document).expect("is JSON");
        if end {
            text.push('\n');
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.json");
        fs::write(&path, &text).expect("writes");
        let change = change(&path, vec![server(), hooks()]);
        let mut work = work(folder.path());
        let outcome = work.install(KnownClient::Gemini, InstallScope::User, &change).expect("installs");
        prop_assert!(matches!(outcome, FileOutcome::Changed(_)));
        let again = work.install(KnownClient::Gemini, InstallScope::User, &change).expect("installs");
        prop_assert_eq!(again, FileOutcome::Unchanged);
        work.uninstall(InstallScope::User, &path, &change.edits).expect("uninstalls");
        prop_assert_eq!(fs::read_to_string(&path).expect("is there"), text);
        prop_assert_eq!(fs::read_dir(folder.path()).expect("lists").count(), 1, "nothing else is left");
    }
}

fn change(path: &Path, edits: Vec<Edit>) -> FileChange {
    FileChange { path: path.to_path_buf(), format: super::apply::format_of(path), edits }
}

fn work(home: &Path) -> Installer<'_> {
    let locations = ClientLocations::new(home.to_path_buf(), home.join("project"), |_| None);
    // Lives as long as the test.
    let locations = Box::leak(Box::new(locations));
    let record = InstallRecord::read(home).expect("reads");
    Installer { home, locations, record, dry_run: false }
}

#[test]
fn what_others_changed_meanwhile_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("settings.json");
    fs::write(&path, "{\n  \"a\": 1\n}\n").expect("writes");
    let change = change(&path, vec![server(), hooks()]);
    work(folder.path())
        .install(KnownClient::Gemini, InstallScope::User, &change)
        .expect("installs");
    let text = fs::read_to_string(&path).expect("reads").replace("\"a\": 1", "\"a\": 2");
    fs::write(&path, text).expect("writes");
    work(folder.path()).uninstall(InstallScope::User, &path, &change.edits).expect("uninstalls");
    assert_eq!(fs::read_to_string(&path).expect("reads"), "{\n  \"a\": 2\n}\n");
}

#[test]
fn a_second_installation_does_not_forget_what_was_before_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("settings.json");
    let text = "{ \"a\": [1,   2] }";
    fs::write(&path, text).expect("writes");
    work(folder.path())
        .install(KnownClient::Gemini, InstallScope::User, &change(&path, vec![server()]))
        .expect("installs");
    let moved = Edit::Server {
        table: &["mcpServers"],
        entry: json!({ "type": "stdio", "command": "/usr/bin/svc", "args": ["stdio"] }),
    };
    let second = change(&path, vec![moved]);
    let outcome = work(folder.path()).install(KnownClient::Gemini, InstallScope::User, &second);
    assert!(matches!(outcome.expect("installs"), FileOutcome::Changed(_)));
    work(folder.path()).uninstall(InstallScope::User, &path, &second.edits).expect("uninstalls");
    assert_eq!(fs::read_to_string(&path).expect("reads"), text);
}

#[test]
fn links_modes_and_read_only_files_are_respected() {
    let folder = tempfile::tempdir().expect("a folder");
    let (real, link) = (folder.path().join("real.json"), folder.path().join("settings.json"));
    fs::write(&real, "{}").expect("writes");
    fs::set_permissions(&real, Permissions::from_mode(0o640)).expect("is ours");
    std::os::unix::fs::symlink("real.json", &link).expect("links");
    let change = change(&link, vec![server()]);
    work(folder.path())
        .install(KnownClient::Gemini, InstallScope::User, &change)
        .expect("installs");
    assert!(fs::symlink_metadata(&link).expect("is there").is_symlink());
    let meta = fs::metadata(&real).expect("is there");
    assert_eq!(meta.permissions().mode() & 0o777, 0o640);
    assert!(fs::read_to_string(&real).expect("reads").contains("/opt/svc"));
    work(folder.path()).uninstall(InstallScope::User, &link, &change.edits).expect("uninstalls");
    assert_eq!(fs::read_to_string(&real).expect("reads"), "{}");

    fs::set_permissions(&real, Permissions::from_mode(0o440)).expect("is ours");
    let refused = work(folder.path()).install(KnownClient::Gemini, InstallScope::User, &change);
    assert_eq!(refused.expect_err("read-only").to_string(), "is read-only (mode 440)");
    assert_eq!(fs::read_to_string(&real).expect("reads"), "{}");
}

#[test]
fn links_that_lead_out_of_the_scope_are_not_followed() {
    let outer = tempfile::tempdir().expect("a folder");
    let (home, elsewhere) = (outer.path().join("home"), outer.path().join("elsewhere"));
    let project = home.join("project");
    fs::create_dir_all(project.join(".inner")).expect("makes");
    fs::create_dir(&elsewhere).expect("makes");
    fs::write(elsewhere.join("settings.json"), "{}").expect("writes");
    fs::write(home.join("settings.json"), "{}").expect("writes");
    let link = |target: &Path, name: &str| {
        std::os::unix::fs::symlink(target, project.join(name)).expect("links");
    };
    // The file, one that does not exist yet, the folder, and one that leads back out.
    link(&elsewhere.join("settings.json"), "a.json");
    link(&elsewhere.join("new.json"), "b.json");
    link(&elsewhere, "c");
    link(&home.join("settings.json"), "d.json");
    link(Path::new("../missing/../settings.json"), "e.json");
    link(Path::new(".inner/f.json"), "f.json");
    for (name, project_passes, user_passes) in [
        ("a.json", false, false),
        ("b.json", false, false),
        ("c/settings.json", false, false),
        ("c/new/settings.json", false, false),
        ("d.json", false, true),
        ("e.json", false, false),
        ("f.json", true, true),
    ] {
        let change = change(&project.join(name), vec![server()]);
        for (scope, passes) in
            [(InstallScope::Project, project_passes), (InstallScope::User, user_passes)]
        {
            let mut work = work(&home);
            let installed = work.install(KnownClient::Gemini, scope, &change);
            assert_eq!(installed.is_ok(), passes, "{name} {scope:?} {installed:?}");
            if let Err(error) = installed {
                assert!(error.to_string().contains("outside of "), "{error}");
                work.uninstall(scope, &change.path, &change.edits).expect_err("leads outside");
            } else {
                work.uninstall(scope, &change.path, &change.edits).expect("uninstalls");
            }
        }
    }
    assert_eq!(fs::read_to_string(elsewhere.join("settings.json")).expect("reads"), "{}");
    assert_eq!(fs::read_dir(&elsewhere).expect("lists").count(), 1);
}

#[test]
fn a_file_of_five_megabytes_is_edited_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(".claude.json");
    let history: Vec<Value> =
        (0..40_000).map(|n| json!({ "n": n, "text": "x".repeat(90) })).collect();
    let text = serde_json::to_string_pretty(&json!({ "history": history, "numStartups": 7 }))
        .expect("is JSON");
    assert!(text.len() > 5_000_000, "{}", text.len());
    fs::write(&path, &text).expect("writes");
    let change = change(&path, vec![server()]);
    work(folder.path())
        .install(KnownClient::ClaudeCode, InstallScope::User, &change)
        .expect("installs");
    assert_eq!(
        value(FileFormat::Json, &fs::read_to_string(&path).expect("reads"))["mcpServers"]["svc"]["command"],
        "/opt/svc"
    );
    work(folder.path()).uninstall(InstallScope::User, &path, &change.edits).expect("uninstalls");
    assert_eq!(fs::read_to_string(&path).expect("reads"), text);
}

#[test]
fn what_a_version_of_claude_code_refuses_is_told() {
    let locations = ClientLocations::new("/h".into(), "/p".into(), |_| None);
    let command = ClientCommand::new(Path::new("/a b/svc"), Path::new("/d"), Some(Path::new("/d")));
    let command = command.expect("is text");
    let written = |version: Option<[u32; 3]>, scope| {
        let mut locations = locations.clone();
        locations.claude_version = version.map(ClientVersion);
        let parts = InstallParts { server: false, hooks: true };
        let changes = KnownClient::ClaudeCode.changes(&locations, &command, scope, parts);
        let (text, _) = edit::apply("", FileFormat::Json, &changes[0].edits[0]).expect("applies");
        value(FileFormat::Json, &text)
    };
    for (version, knows_failed_tools, knows_failed_turns) in [
        (None, true, true),
        (Some([2, 0, 0]), false, false),
        (Some([2, 0, 56]), false, false),
        (Some([2, 0, 57]), true, false),
        (Some([2, 1, 77]), true, false),
        (Some([2, 1, 78]), true, true),
        (Some([2, 1, 330]), true, true),
    ] {
        let settings = written(version, InstallScope::User);
        let has = |event: &str| settings["hooks"].get(event).is_some();
        let there = (has("PostToolUseFailure"), has("StopFailure"));
        assert_eq!(there, (knows_failed_tools, knows_failed_turns), "{version:?}");
        assert!(!settings.to_string().contains("\"args\""), "{settings}");
        let version = ClientVersion(version.unwrap_or([9, 0, 0]));
        assert_eq!(claude::refused(&settings, version), None, "{version}");
    }
    let shared = written(Some([2, 0, 0]), InstallScope::Project);
    let refused = claude::refused(&shared, ClientVersion([2, 0, 0])).expect("it is refused");
    assert!(refused.contains("PostToolUseFailure"), "{refused}");
    let refused = claude::refused(&shared, ClientVersion([2, 1, 70])).expect("it is refused");
    assert!(refused.contains("StopFailure") && refused.contains("2.1.78"), "{refused}");
    let former = json!({ "hooks": { "Stop": [{ "hooks": [
        { "type": "command", "command": "/a/svc", "args": ["hook", "claude-code"] },
    ]}]}});
    let refused = |version| claude::refused(&former, ClientVersion(version));
    assert!(refused([2, 1, 138]).expect("it is refused").contains("ignores"), "{former}");
    assert_eq!(refused([2, 1, 139]), None);
    let others = json!({ "hooks": { "Stop": [{ "hooks": [
        { "type": "command", "command": "/a/other", "args": ["x"] },
    ]}]}});
    assert_eq!(claude::refused(&others, ClientVersion([2, 0, 60])), None, "the person's own");
}

/// However a turn ends that a message began, a waiter was started since: the last one ended with that message.
#[test]
fn a_waiter_of_claude_code_begins_with_each_turn_and_at_each_end() {
    let locations = ClientLocations::new("/h".into(), "/p".into(), |_| None);
    let command = ClientCommand::new(Path::new("/b/svc"), Path::new("/d"), Some(Path::new("/d")));
    let parts = InstallParts { server: false, hooks: true };
    let command = command.expect("is text");
    let changes = KnownClient::ClaudeCode.changes(&locations, &command, InstallScope::User, parts);
    let (text, _) = edit::apply("", FileFormat::Json, &changes[0].edits[0]).expect("applies");
    let hooks = value(FileFormat::Json, &text)["hooks"].clone();
    let mut waking: Vec<&str> = hooks
        .as_object()
        .expect("events")
        .iter()
        .filter(|(_, groups)| groups.to_string().contains("\"asyncRewake\":true"))
        .map(|(event, _)| event.as_str())
        .collect();
    waking.sort_unstable();
    assert_eq!(waking, ["SessionStart", "Stop", "StopFailure", "UserPromptSubmit"]);
}

/// Gemini CLI compares the names in rules with the tools that it is shown, and warns of those that are nearly one.
#[test]
fn a_client_that_warns_of_tools_that_it_is_not_shown_is_told_of_none() {
    let tools = ["peer_list", "peer_ack", "ToolSearch"];
    let listed = ["ToolSearch", "ToolCall", "peer_list"];
    assert_eq!(KnownClient::Gemini.named_in_rules(&tools, &listed), ["peer_list", "ToolSearch"]);
    for client in [KnownClient::ClaudeCode, KnownClient::Codex, KnownClient::Opencode] {
        assert_eq!(client.named_in_rules(&tools, &listed), tools);
    }
}
