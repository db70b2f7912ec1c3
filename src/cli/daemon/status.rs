//! `svc status` for people and programs, `svc health` for container health checks.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value, json};
use svc_client::{Client, DaemonTarget};

use svc_sys::config::Flags;

use super::super::Context;
use super::super::output::{self, Screen};
use super::probe::{DaemonProbe, HealthAnswer, find_daemon, no_socket, not_ready, probe};

/// Prints the status of the daemon; exit code 0 if it runs, else 1.
pub(in crate::cli) async fn status(context: &Context) -> anyhow::Result<ExitCode> {
    let discovery = context.discovery()?;
    let target = discovery.target()?;
    let (mut report, trouble) = if let Some(url) = discovery.fixed() {
        match probe(target.endpoint.clone()).await {
            Ok(health) if health.document.server == "svc" => {
                (describe(target, url.to_string(), &health).await, None)
            }
            Ok(_) => (Map::new(), Some(format!("the program at {url} is not svc"))),
            Err(error) => (Map::new(), Some(error.to_string())),
        }
    } else {
        match find_daemon(context).await {
            DaemonProbe::Running(daemon, health) => {
                (describe(target, daemon.url, &health).await, None)
            }
            DaemonProbe::NotReady(pid) => (Map::new(), Some(not_ready(pid))),
            DaemonProbe::WithoutSocket(daemon) => (Map::new(), Some(no_socket(&daemon))),
            DaemonProbe::Silent { pid: Some(pid), problem } => {
                (Map::new(), Some(format!("process {pid} exists but does not answer: {problem}")))
            }
            DaemonProbe::Silent { pid: None, problem } => (Map::new(), Some(problem)),
            DaemonProbe::Absent => (Map::new(), None),
        }
    };
    let running = !report.is_empty();
    if running && discovery.fixed().is_none() {
        report.entry("db").or_insert_with(|| json!(database(context)));
    }
    report.insert("running".to_owned(), json!(running));
    if context.json {
        output::json(&report)?;
    } else if running {
        output::block(&words(&context.screen, &Value::Object(report)))?;
    } else {
        output::line("svc is not running; `svc start` starts it")?;
    }
    if let Some(trouble) = trouble {
        output::note(&trouble);
    }
    Ok(if running { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The database that the configuration names, of a daemon that does not say.
fn database(context: &Context) -> String {
    let url = context.config(&Flags::default()).ok().and_then(|config| config.store.url.value);
    url.map_or_else(|| context.paths.db.display().to_string(), |url| url.shown())
}

/// The status for people.
fn words(screen: &Screen, report: &Value) -> String {
    let cell = |key| output::visible(&output::cell(report, key));
    let number = |key| report.get(key).and_then(Value::as_u64);
    let mut text = format!("svc {} runs", cell("version"));
    if let Some(seconds) = number("uptime_seconds") {
        let started = screen.now.minus(Duration::from_secs(seconds));
        let since =
            if screen.utc { started.to_string() } else { output::relative(started, screen.now) };
        text.extend([", started ", &since]);
    }
    if let Some(pid) = number("pid") {
        write!(text, " (process {pid})").expect("writing to a string does not fail");
    }
    write!(text, "\n  address:  {}\n", cell("url")).expect("writing to a string does not fail");
    if report.get("db").is_some() {
        write!(text, "  database: {}", cell("db")).expect("writing to a string does not fail");
        if let Some(events) = number("tail") {
            let plural = if events == 1 { "" } else { "s" };
            write!(text, ", {events} event{plural}").expect("writing to a string does not fail");
        }
        text.push('\n');
    }
    if let Some(name) = report.pointer("/machine/name").and_then(Value::as_str) {
        let name = output::visible(name);
        writeln!(text, "  machine:  {name}").expect("writing to a string does not fail");
    }
    text
}

/// Exit code 0 if `/health` responds with 200, else 1.
pub(in crate::cli) async fn health(context: &Context) -> anyhow::Result<ExitCode> {
    let target = context.discovery()?.target()?;
    let result = probe(target.endpoint.clone()).await;
    let healthy = result.as_ref().is_ok_and(HealthAnswer::is_healthy);
    let text = match &result {
        Ok(health) if healthy => {
            format!("healthy: svc {} at {}", health.document.version, target.endpoint)
        }
        Ok(health) => format!("not healthy: {} answered {}", target.endpoint, health.status),
        Err(error) => error.to_string(),
    };
    if context.json {
        output::json(
            &json!({ "healthy": healthy, "url": target.endpoint.to_string(), "detail": text }),
        )?;
    } else if healthy {
        output::line(&text)?;
    } else {
        output::note(&text);
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The document of `/health`, with the members of `/v1/health` if there is a token.
async fn describe(target: DaemonTarget, url: String, health: &HealthAnswer) -> Map<String, Value> {
    let document = &health.document;
    let mut report = Map::new();
    report.insert("url".to_owned(), json!(url));
    report.insert("version".to_owned(), json!(document.version));
    if let Some(pid) = document.pid {
        report.insert("pid".to_owned(), json!(pid));
    }
    if let Some(started_at) = &document.started_at {
        report.insert("started_at".to_owned(), json!(started_at));
    }
    if let Ok(more) = Client::new(target).get::<Value>("/v1/health").await {
        let fields = [
            ("uptime_seconds", "/uptime_seconds"),
            ("db", "/store/path"),
            ("tail", "/store/head"),
            ("machine", "/machine"),
            ("daemon_id", "/daemon_id"),
            ("daemons", "/daemons"),
        ];
        for (name, pointer) in fields {
            if let Some(value) = more.pointer(pointer) {
                report.insert(name.to_owned(), value.clone());
            }
        }
        let fields = [
            ("engine", "engine"),
            ("host", "path"),
            ("server_version", "server_version"),
            ("in_recovery", "in_recovery"),
            ("sync", "sync"),
            ("round_trip_ms", "round_trip_ms"),
            ("lock_wait_ms_p99", "lock_wait_ms_p99"),
            ("listen", "listen"),
        ];
        let store = fields.into_iter().filter_map(|(name, member)| {
            let value = more.pointer(&format!("/store/{member}"))?;
            (name != "host" || more["store"]["engine"] == "postgres")
                .then(|| (name.to_owned(), value.clone()))
        });
        report.insert("store".to_owned(), Value::Object(store.collect()));
    }
    report
}
