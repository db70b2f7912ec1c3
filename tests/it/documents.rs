//! The promises of documents: the README's opening, the API's description, the compose file, paths
//! in guides to the code.

use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::json;
use yaml_rust2::{Yaml, YamlLoader};

use crate::daemon::{Daemon, Home, Running, free_port, svc};
use crate::pages::{Page, pages, root, wrong_with};

fn document(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).expect("a document of this project")
}

#[test]
fn readme_opens_with_the_two_commands() {
    let readme = document("README.md");
    let opening: Vec<&str> = readme.lines().skip_while(|line| *line != "```sh").take(4).collect();
    assert_eq!(opening, ["```sh", "cargo run --release -- serve", "cargo test --locked", "```"]);
    assert!(readme.lines().take(6).any(|line| line == "```sh"), "they come first");
}

/// The daemon enforces the described parameters and media types.
#[test]
fn described_parameters_match_the_enforced_ones() {
    let d = Daemon::start();
    let described = d.get("/openapi.json").ok(200);
    let parameter = |path: &str, name: &str| {
        let all = described["paths"][path]["get"]["parameters"].as_array().expect("a list");
        all.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{path} {name}")).clone()
    };
    let mut pages = 0;
    for (path, operations) in described["paths"].as_object().expect("paths") {
        let parameters = operations["get"]["parameters"].as_array().cloned().unwrap_or_default();
        for limit in parameters.iter().filter(|it| it["name"] == "limit") {
            // The last entries of a conversation are no page, and 0 means all of them.
            if path == "/v1/hosts/{id}/history" {
                assert_eq!(limit["schema"]["minimum"], 0, "{path}");
                continue;
            }
            // A search has its own bound: it is no page of a list.
            let (most, default) = if path == "/v1/ghap/search" { (50, 10) } else { (500, 50) };
            let expected = json!({
                "type": "integer", "format": "uint32", "minimum": 1, "maximum": most, "default": default,
            });
            assert_eq!(limit["schema"], expected, "{path}");
            assert_eq!(limit["required"], false, "{path}");
            pages += 1;
        }
    }
    assert!(pages >= 10, "{pages}");
    for (path, name) in
        [("/v1/biam/subscribe", "task_id"), ("/v1/ghap/search", "q"), ("/v1/peers/{id}", "id")]
    {
        let parameter = parameter(path, name);
        assert_eq!(parameter["required"], true, "{parameter}");
        assert_eq!(parameter["schema"]["type"], "string", "{parameter}");
    }
    assert_eq!(parameter("/v1/events", "stream")["required"], false);

    let described = &described["paths"]["/metrics"]["get"]["responses"]["200"]["content"];
    let plain = d.get("/metrics");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2,*/*;q=0.1";
    let open = d.request("GET", "/metrics").header("Accept", accept).send();
    let sent = [&open, &plain].map(|reply| reply.header("content-type").expect("a media type"));
    let described: Vec<&String> = described.as_object().expect("a map").keys().collect();
    assert_eq!(sent.to_vec(), described);
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4"));
    let [open, plain] = [open, plain].map(|reply| String::from_utf8(reply.body).expect("UTF-8"));
    for (text, name, ends) in
        [(open, "svc_http_requests", true), (plain, "svc_http_requests_total", false)]
    {
        assert!(text.contains(&format!("# TYPE {name} counter\n")), "{text}");
        assert!(text.contains("svc_http_requests_total{method=\"GET\",route=\"/openapi.json\""));
        assert_eq!(text.ends_with("# EOF\n"), ends, "{text}");
    }
}

#[test]
fn described_routes_equal_served_routes() {
    // One of the routes makes a new token.
    let d = Daemon::with(|plan| plan.flag("--no-auth"));
    let described = d.get("/openapi.json").ok(200);
    assert_eq!(described["openapi"], "3.1.0");
    let paths = described["paths"].as_object().expect("paths");
    let all = ["get", "post", "delete", "put", "patch"];
    for (path, operations) in paths {
        let target = path.replace("{id}", "nothing");
        for method in all {
            let request = d.request(&method.to_uppercase(), &target);
            let reply = request.send();
            let served = reply.status() != 405;
            assert_eq!(served, !operations[method].is_null(), "{method} {path}: {reply:?}");
            if !served {
                let allow =
                    reply.header("allow").expect("a 405 says what is allowed").to_lowercase();
                let allowed: BTreeSet<&str> =
                    allow.split(',').map(str::trim).filter(|it| *it != "head").collect();
                let expected: BTreeSet<&str> =
                    all.into_iter().filter(|it| !operations[*it].is_null()).collect();
                assert_eq!(allowed, expected, "{path}");
            }
        }
    }
    // Every reference can be resolved.
    let text = described.to_string();
    for reference in text.split("\"#/components/").skip(1) {
        let pointer = format!("/components/{}", reference.split('"').next().unwrap_or_default());
        assert!(described.pointer(&pointer).is_some(), "{pointer} is missing");
    }
    // Paths that clients depend on exist.
    for path in [
        "/v1/peers/register",
        "/v1/biam/subscribe",
        "/v1/events",
        "/metrics",
        "/openapi.json",
        "/v1/tasks/{id}/cancel",
    ] {
        assert!(paths.contains_key(path), "{path} is not described");
    }
}

#[test]
fn compose_file_has_one_service_one_volume_and_a_health_check() {
    let text = document("docker-compose.yml");
    let parsed = YamlLoader::load_from_str(&text).expect("YAML");
    let service = &parsed[0]["services"]["svc"];
    assert_eq!(parsed[0]["services"].as_hash().map(yaml_rust2::yaml::Hash::len), Some(1));
    assert_eq!(parsed[0]["volumes"].as_hash().map(yaml_rust2::yaml::Hash::len), Some(1));
    assert_eq!(service["volumes"][0].as_str(), Some("data:/data"));
    let check: Vec<Option<&str>> =
        service["healthcheck"]["test"].as_vec().expect("a list").iter().map(Yaml::as_str).collect();
    assert_eq!(check, [Some("CMD"), Some("svc"), Some("health")]);
    let inline = service["build"]["dockerfile_inline"].as_str().expect("an inline Dockerfile");
    // The shipped program is built with the profile of packages, and taken from that profile's
    // folder.
    for part in [
        "cargo build --profile dist --locked --package svc",
        "COPY --from=build /src/target/dist/svc ",
        "USER svc",
    ] {
        assert!(inline.contains(part), "{part}");
    }
    let ignored = document(".dockerignore");
    for large in ["**/target", "**/node_modules", ".git", ".svc"] {
        assert!(ignored.lines().any(|line| line == large), "{large} is sent to the builder");
    }
    let grace = service["stop_grace_period"].as_str().and_then(|it| it.strip_suffix('s'));
    assert!(grace.and_then(|it| it.parse::<u32>().ok()).is_some_and(|it| it > 10));
}

/// The daemon with the settings of the compose file, behind a program that stands in for the mapped
/// port.
#[test]
fn compose_settings_serve_clients_outside_the_container() {
    let text = document("docker-compose.yml");
    let parsed = YamlLoader::load_from_str(&text).expect("YAML");
    let service = &parsed[0]["services"]["svc"];
    assert_eq!(service["ports"][0].as_str(), Some("127.0.0.1:6334:6334"));
    let (mapped, inner) = (free_port(), free_port());
    let home = Home::new();
    let mut command = home.command(&["serve"]);
    for (name, value) in service["environment"].as_hash().expect("a map") {
        let (name, value) = (name.as_str().expect("a name"), value.as_str().expect("a value"));
        let port = if name == "SVC_LISTEN" { inner } else { mapped };
        command.env(name, value.replace("6334", &port.to_string()));
    }
    let daemon = Running::spawn(command);
    assert!(daemon.line().expect("it gets ready").contains(" ready at "));
    let listener = TcpListener::bind(("127.0.0.1", mapped)).expect("the port is free");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(daemon) = TcpStream::connect(("127.0.0.1", inner)) else { return };
            let other = |it: &TcpStream| it.try_clone().expect("a second handle");
            for (mut from, mut to) in [(other(&client), other(&daemon)), (daemon, client)] {
                thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    let token = home.token().expect("it was made");
    for host in ["127.0.0.1", "localhost"] {
        let elsewhere = Home::new();
        let url = format!("http://{host}:{mapped}");
        let mut command = elsewhere.command(&["peer", "list", "--url", &url]);
        command.env("SVC_TOKEN", &token);
        let ran = Running::spawn(command).wait(Duration::from_secs(30));
        assert_eq!(ran.code, Some(0), "{host}: {ran:?}");
    }
    // The health check runs in the container.
    svc(&home, &["health"]).ok();
    svc(&home, &["stop"]).ok();
    assert_eq!(daemon.wait(Duration::from_secs(30)).code, Some(0));
}

#[test]
fn architecture_names_every_crate() {
    let architecture = document("ARCHITECTURE.md");
    for folder in ["src", "crates"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            if name != "lib.rs" && name != "main.rs" {
                assert!(architecture.contains(&name), "ARCHITECTURE.md lacks {folder}/{name}");
            }
        }
    }
}

/// What people read who change the code: two pages, the decisions, and the comment at the top of
/// each crate.
fn guides() -> Vec<Page> {
    let is_guide = |page: &Page| {
        ["ARCHITECTURE.md", ".github/CONTRIBUTING.md"].contains(&page.name.as_str())
            || page.name.starts_with("docs/decisions/")
    };
    let mut guides: Vec<Page> = pages().into_iter().filter(is_guide).collect();
    let mut crates = vec!["src/lib.rs".to_owned()];
    for entry in fs::read_dir(root().join("crates")).expect("crates/") {
        let package = entry.expect("an entry").file_name().into_string().expect("a name");
        crates.push(format!("crates/{package}/src/lib.rs"));
    }
    // The load generator is no library.
    crates.retain(|name| root().join(name).exists());
    for name in crates {
        let code = document(&name);
        let comment: Vec<&str> =
            code.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_start).collect();
        assert!(!comment.is_empty(), "{name} does not say what the crate is");
        guides.push(Page { name, text: comment.join("\n") });
    }
    guides
}

/// Whether a word in back-quotes is a path: it has a slash, and an extension or an existing first
/// folder. In the comment of a crate the name of a Rust file is one too. Routes, methods of MCP and
/// names of streams are not paths.
fn is_path(guide: &Page, word: &str) -> bool {
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let is_ours =
        |name: &str| root().join(name).exists() || root().join("crates").join(name).exists();
    let is_rust = Path::new(word).extension().is_some_and(|extension| extension == "rs");
    is_plain
        && match word.split_once('/') {
            Some((folder, _)) => !folder.is_empty() && (word.contains('.') || is_ours(folder)),
            None => is_rust && guide.name.ends_with("lib.rs"),
        }
}

/// Whether a path exists: below the root, below the `src` of the crate that it begins with, beside
/// the guide, or beside the `src` of the guide's crate.
fn is_there(guide: &Page, path: &str) -> bool {
    let in_crate = |(package, file): (&str, &str)| {
        root().join("crates").join(package).join("src").join(file).exists()
    };
    root().join(path).exists()
        || path.split_once('/').is_some_and(in_crate)
        || guide.folder().join(path).exists()
        || guide.folder().join("..").join(path).exists()
}

#[test]
fn code_guides_name_only_existing_paths_and_commands() {
    let (mut problems, mut paths) = (Vec::new(), 0);
    for guide in guides() {
        let mut note = |what: String| problems.push(format!("{}: {what}", guide.name));
        for code in guide.inline_code() {
            if code.starts_with("svc ")
                && let Some(wrong) = wrong_with(code)
            {
                note(wrong);
            }
            let mut words = code.split(' ');
            let path = words.next().unwrap_or_default();
            if !is_path(&guide, path) {
                continue;
            }
            paths += 1;
            if !is_there(&guide, path) {
                note(format!("{path} is not there"));
            }
            for option in words.filter(|word| word.starts_with("--")) {
                let script = fs::read_to_string(root().join(path));
                if !script.is_ok_and(|text| text.contains(option)) {
                    note(format!("{path} has no option {option}"));
                }
            }
        }
    }
    assert!(paths > 150, "paths are found: {paths}");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
