//! `svc agent`: agents that the daemon runs. [`super::agent_attach`] follows one.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::agent_attach::host;
use super::naming::{self, AdvisedError};
use super::output::{self, Column, Listing};
use super::{Context, agent_attach, agent_away};
use crate::client::{ClientError, with_query};
use crate::private_file;

const LIST: Listing = Listing {
    items: "hosts",
    columns: &[
        Column::id("AGENT", "id"),
        Column::state("STATE", "state"),
        Column::name("SESSION KEY", "session_key").least(64),
        Column::text("BACKEND", "backend").rank(3),
        Column::path("FOLDER", "worktree").rank(2),
        Column::number("PID", "pid").rank(4),
        Column::time("STARTED", "started_at").rank(1),
    ],
    empty: "no agents; `svc agent start INSTANCE` starts one, `svc agent list --instances` shows which there are",
    next: Some("--cursor"),
};

const INSTANCES: Listing = Listing {
    items: "agents",
    columns: &[
        Column::text("INSTANCE", "instance"),
        Column::text("BACKEND", "backend"),
        Column::state("STATUS", "status"),
        Column::number("LIVE", "live").rank(1),
        Column::text("REASON", "reason").rank(2),
    ],
    empty: "no instances: no agent's program is on the daemon's PATH, and config.toml has no [agents.<instance>]",
    next: None,
};

/// `svc agent …`.
#[derive(Debug, Subcommand)]
pub(super) enum AgentCommand {
    /// Start an agent, which outlives the daemon
    #[command(after_help = "Examples:\n  svc agent start claude --prompt 'fix the flaky test'\n  \
        svc agent start reviewer --name second -- --model opus\n  \
        svc agent start --resume agent:claude:main --prompt 'and now the docs'")]
    Start(Box<StartArgs>),
    /// List agents, the living first, or the configured ways to run them
    #[command(after_help = "Example:\n  svc agent list --live")]
    List(AgentListArgs),
    /// Show one agent, and what it waits for leave to do
    #[command(after_help = "Example:\n  svc agent status agent:claude:main")]
    Status {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
    },
    /// Give an agent input
    #[command(after_help = "Example:\n  svc agent send agent:claude:main 'and now the docs'")]
    Send {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// The text; `-` reads standard input
        input: String,
        /// Put it into the turn that is under way
        #[arg(long)]
        steer: bool,
    },
    /// Answer what an agent asks
    #[command(after_help = "Examples:\n  svc agent answer agent:claude:main latest allow\n  \
        svc agent answer agent:claude:main req_01k… deny")]
    Answer {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// The request: its id or the beginning of it, or `latest`
        request: String,
        /// The option's id
        option: String,
    },
    /// End an agent's turn, not the agent
    #[command(after_help = "Example:\n  svc agent interrupt agent:claude:main")]
    Interrupt {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
    },
    /// End an agent
    #[command(after_help = "Example:\n  svc agent stop agent:claude:main --timeout 5")]
    Stop {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// Kill it at once
        #[arg(long)]
        force: bool,
        /// Seconds until it is killed
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<u32>,
        /// Why
        #[arg(long)]
        reason: Option<String>,
    },
    /// What was said, also after the end
    #[command(after_help = "Example:\n  svc agent history agent:claude:main --limit 20")]
    History {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// How many of the last entries; 0: all
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u64,
        /// Leave out calls of tools and their results
        #[arg(long)]
        no_tools: bool,
    },
    /// Print what an agent says as it comes; exit code 0 if it ends well, else 1
    #[command(after_help = "Example:\n  svc agent watch agent:claude:main\n\n\
        Starts at the beginning, and resumes by itself when the daemon restarts.")]
    Watch {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// Start after this offset
        #[arg(long, value_name = "N")]
        after: Option<u64>,
    },
    /// Talk with an agent: type a line, see the answer, answer requests by number
    #[command(after_help = "Example:\n  svc agent attach agent:claude:main\n\n\
        Ctrl-C ends the agent's turn, Ctrl-D detaches. A restart of the daemon is waited for.\n\
        Where no daemon runs, the agent's host is asked itself: requests are shown, and answering needs a daemon.")]
    Attach {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
    },
}

/// Arguments of `svc agent start`.
#[derive(Debug, Clone, Args)]
pub(super) struct StartArgs {
    /// The configured way to run it
    instance: Option<String>,
    /// Its kind, in place of an instance: the only instance of that backend
    #[arg(long)]
    backend: Option<String>,
    /// Its name: with the instance it makes the session key
    #[arg(long)]
    name: Option<String>,
    /// Where it works; here by default, unless its instance says otherwise
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// What it is given to do, for lists
    #[arg(long)]
    task: Option<String>,
    /// What people say of it
    #[arg(long)]
    description: Option<String>,
    /// Its first input; `-` reads standard input
    #[arg(long)]
    prompt: Option<String>,
    /// Go on with the conversation of an agent that has ended, in its folder: its id or its session key
    #[arg(long, value_name = "AGENT")]
    resume: Option<String>,
    /// Arguments for the agent's program
    #[arg(last = true)]
    args: Vec<String>,
}

/// Arguments of `svc agent list`.
#[derive(Debug, Clone, Args)]
pub(super) struct AgentListArgs {
    /// The configured ways to run agents, and whether each can be started
    #[arg(long, conflicts_with_all = ["state", "instance", "backend", "live", "limit", "cursor"])]
    instances: bool,
    /// Only this state: `starting`, `running`, `idle`, `requires_action`, `limited`, `stopping`, `done`, `error`,
    /// `lost` or `unreachable`
    #[arg(long)]
    state: Option<String>,
    /// Only this instance's
    #[arg(long)]
    instance: Option<String>,
    /// Only this backend's
    #[arg(long)]
    backend: Option<String>,
    /// Only those that have not ended
    #[arg(long)]
    live: bool,
    /// How many, 1 to 500
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Where the page before left off
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn run(context: &Context, command: AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Start(args) => start(context, *args).await,
        AgentCommand::List(args) => list(context, &args).await,
        AgentCommand::Status { agent } => status(context, &agent).await,
        AgentCommand::Send { agent, input, steer } => {
            let body =
                json!({ "input": text(input)?, "mode": if steer { "steer" } else { "queue" } });
            let sent: Value = context.client()?.post(&host(&agent, "/send"), &body).await?;
            print(context, &sent, &["message_id", "queued"])
        }
        AgentCommand::Answer { agent, request, option } => {
            let body = json!({ "request_id": request, "option_id": option });
            let answered: Value = context.client()?.post(&host(&agent, "/answer"), &body).await?;
            print(context, &answered, &["request_id", "agent_id", "title", "answer"])
        }
        AgentCommand::Interrupt { agent } => {
            let path = host(&agent, "/interrupt");
            let view: Value = context.client()?.post(&path, &json!({})).await?;
            print_agent(context, view)
        }
        AgentCommand::Stop { agent, force, timeout, reason } => {
            let mut body = json!({ "force": force });
            if let Some(timeout) = timeout {
                body["timeout"] = timeout.into();
            }
            if let Some(reason) = reason {
                body["reason"] = reason.into();
            }
            let stopped: Value = context.client()?.post(&host(&agent, "/stop"), &body).await?;
            print(context, &stopped, &["stopped", "final_state", "exit_code", "signal", "graceful"])
        }
        AgentCommand::History { agent, limit, no_tools } => {
            history(context, &agent, limit, no_tools).await
        }
        AgentCommand::Watch { agent, after } => agent_attach::watch(context, &agent, after).await,
        AgentCommand::Attach { agent } => attach(context, &agent).await,
    }
}

/// Talks with an agent by way of the daemon, or, where none runs, with its host.
async fn attach(context: &Context, agent: &str) -> anyhow::Result<ExitCode> {
    let attached = agent_attach::attach(context, agent).await;
    let is_away = |error: &anyhow::Error| {
        matches!(error.downcast_ref::<ClientError>(), Some(ClientError::NotRunning { .. }))
    };
    match attached {
        Err(error) if is_away(&error) && context.discovery()?.fixed().is_none() => {
            agent_away::attach(context, agent).await
        }
        attached => attached,
    }
}

const AGENT_FIELDS: [&str; 8] =
    ["agent", "state", "session key", "instance", "backend", "folder", "started", "pid"];

/// Shows an agent, and below it its open requests.
async fn status(context: &Context, agent: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let mut view: Value = client.get(&host(agent, "")).await?;
    let page: Value = client.get("/v1/requests?open=true&limit=500").await?;
    let is_own = |request: &&Value| request["agent_id"] == view["id"];
    let requests: Vec<Value> =
        output::items(&page, "requests").iter().filter(is_own).cloned().collect();
    if context.json {
        view["requests"] = requests.into();
        output::json(&view)?;
        return Ok(ExitCode::SUCCESS);
    }
    let key = output::cell(&view, "session_key");
    print_agent(context, view)?;
    for request in &requests {
        output::block(&request_text(context, &key, request))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An open request as a person reads it, with the command that answers it.
fn request_text(context: &Context, key: &str, request: &Value) -> String {
    let cell = |key| output::visible(&output::cell(request, key));
    let (id, at) = (cell("request_id"), context.screen.time(&output::cell(request, "opened_at")));
    let mut text = format!("\nit asks: {} ({id}, {at})\n", cell("title"));
    for option in output::items(request, "options") {
        let part = |key| output::visible(&output::cell(option, key));
        writeln!(text, "  {}: {}", part("option_id"), part("name"))
            .expect("writing to a string does not fail");
    }
    writeln!(text, "  -> svc agent answer {} {id} OPTION", output::visible(key))
        .expect("writing to a string does not fail");
    text
}

fn print_agent(context: &Context, agent: Value) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(&agent)?;
    } else {
        output::object(&context.screen, &labelled(agent), &AGENT_FIELDS)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An agent with words for a person in place of the names of fields, and without a process that is no more.
fn labelled(agent: Value) -> Value {
    let Value::Object(fields) = agent else { return agent };
    let is_stopped = fields.get("state").is_some_and(|state| state == "done");
    let fields = fields.into_iter().filter(|(key, value)| key != "pid" || *value != 0);
    let fields = fields.map(|(key, value)| {
        if key == "signal" {
            return ("ended by".to_owned(), ended_by(&value, is_stopped).into());
        }
        let label = match key.as_str() {
            "id" => "agent".to_owned(),
            "worktree" => "folder".to_owned(),
            "host_pid" => "host's pid".to_owned(),
            "socket_path" => "socket".to_owned(),
            "started_at" => "started".to_owned(),
            "ended_at" => "ended".to_owned(),
            other => other.replace('_', " "),
        };
        (label, value)
    });
    fields.collect::<Map<String, Value>>().into()
}

/// What a signal that ended an agent's program means: it is no crash if somebody stopped the agent.
fn ended_by(signal: &Value, is_stopped: bool) -> String {
    let name = match signal.as_i64() {
        Some(2) => "SIGINT",
        Some(9) => "SIGKILL",
        Some(15) => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    let by_svc =
        if is_stopped { "svc, which stopped it" } else { "another program, or the system" };
    format!("{by_svc} ({name})")
}

async fn start(context: &Context, args: StartArgs) -> anyhow::Result<ExitCode> {
    let cwd = match args.cwd {
        Some(cwd) => Some(std::path::absolute(cwd)?),
        None => None,
    };
    let prompt = args.prompt.map(text).transpose()?;
    let mut body = Map::new();
    let fields = [
        ("instance", args.instance),
        ("backend", args.backend),
        ("name", args.name),
        ("cwd", cwd.map(|cwd| cwd.to_string_lossy().into_owned())),
        ("task", args.task),
        ("description", args.description),
        ("prompt", prompt),
        ("resume", args.resume),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            body.insert(name.to_owned(), value.into());
        }
    }
    if !args.args.is_empty() {
        body.insert("args".to_owned(), args.args.into());
    }
    if !body.contains_key("cwd") && !body.contains_key("resume") {
        let here = std::env::current_dir().context("cannot tell the working folder")?;
        body.insert("default_cwd".to_owned(), here.to_string_lossy().into());
    }
    let instance = body.get("instance").and_then(Value::as_str).map(str::to_owned);
    let started = context.client()?.post("/v1/hosts", &body).await;
    let started: Value = started.map_err(|error| unread(context, instance.as_deref(), error))?;
    print_agent(context, started)
}

/// What the daemon says of an instance that it does not know; one that config.toml has by now counts after a restart.
pub(super) fn unread(
    context: &Context,
    instance: Option<&str>,
    error: ClientError,
) -> anyhow::Error {
    let is_missing = error.problem().is_some_and(naming::is_about_a_name);
    let text =
        private_file::read_settings(&context.paths.config_file).ok().flatten().unwrap_or_default();
    match instance.filter(|name| is_missing && has_instance(&text, name)) {
        Some(_) => AdvisedError::new(
            error,
            "config.toml has it, and the daemon reads that when it starts: `svc restart`",
        )
        .into(),
        None => error.into(),
    }
}

/// Whether a configuration has `[agents.<name>]`.
fn has_instance(config: &str, name: &str) -> bool {
    let document: Option<toml::Table> = config.parse().ok();
    document.is_some_and(|document| {
        document.get("agents").and_then(|agents| agents.get(name)).is_some()
    })
}

async fn list(context: &Context, args: &AgentListArgs) -> anyhow::Result<ExitCode> {
    if args.instances {
        let all: Value = context.client()?.get("/v1/agents").await?;
        INSTANCES.print(context, &all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let limit = args.limit.map(|limit| limit.to_string());
    let query = [
        ("state", args.state.as_deref()),
        ("instance", args.instance.as_deref()),
        ("backend", args.backend.as_deref()),
        ("live", args.live.then_some("true")),
        ("limit", limit.as_deref()),
        ("cursor", args.cursor.as_deref()),
    ];
    let client = context.client()?;
    let mut page: Value = client.get(&with_query("/v1/hosts", &query)).await?;
    if context.json || args.live || args.state.is_some() {
        LIST.print(context, &page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let living = [
        ("instance", args.instance.as_deref()),
        ("backend", args.backend.as_deref()),
        ("live", Some("true")),
        ("limit", Some("500")),
    ];
    let living: Value = match args.cursor {
        // They stood on the first page.
        Some(_) => Value::Null,
        None => client.get(&with_query("/v1/hosts", &living)).await?,
    };
    let has_ended = living_first(&mut page, &living);
    LIST.print(context, &page)?;
    if has_ended && context.screen.is_for_people() {
        output::note("`svc agent list --live` shows only those that have not ended");
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts those that live before those of a page that have ended; answers whether there are any of these.
fn living_first(page: &mut Value, living: &Value) -> bool {
    let ended = output::items(page, "hosts")
        .iter()
        .filter(|agent| matches!(agent["state"].as_str(), Some("done" | "error" | "lost")));
    let ended: Vec<Value> = ended.cloned().collect();
    let has_ended = !ended.is_empty();
    let all: Vec<Value> = output::items(living, "hosts").iter().cloned().chain(ended).collect();
    page["hosts"] = all.into();
    has_ended
}

async fn history(
    context: &Context,
    agent: &str,
    limit: u64,
    no_tools: bool,
) -> anyhow::Result<ExitCode> {
    let limit = limit.to_string();
    let query = [("limit", Some(limit.as_str())), ("include_tools", no_tools.then_some("false"))];
    let path = with_query(&host(agent, "/history"), &query);
    let page: Value = context.client()?.get(&path).await?;
    if context.json {
        output::json(&page)?;
    } else {
        for entry in output::items(&page, "entries") {
            agent_attach::paragraph(&agent_attach::entry_text(entry))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(context: &Context, value: &Value, first: &[&str]) -> anyhow::Result<ExitCode> {
    if context.json {
        output::json(value)?;
    } else {
        output::object(&context.screen, value, first)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A text, or what standard input has.
pub(super) fn text(given: String) -> anyhow::Result<String> {
    if given != "-" {
        return Ok(given);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_shown_in_words_and_without_a_process_that_is_gone() {
        let shown = labelled(json!({
            "id": "ag_1", "worktree": "/srv", "pid": 0, "host_pid": 7, "started_at": "x", "exit_code": 1,
        }));
        let wanted = json!({
            "agent": "ag_1", "folder": "/srv", "host's pid": 7, "started": "x", "exit code": 1,
        });
        assert_eq!(shown, wanted);
        assert_eq!(labelled(json!({ "pid": 5 })), json!({ "pid": 5 }));
        let ended =
            |state: &str| labelled(json!({ "state": state, "signal": 9 }))["ended by"].clone();
        assert_eq!(ended("done"), "svc, which stopped it (SIGKILL)");
        assert_eq!(ended("error"), "another program, or the system (SIGKILL)");
    }

    #[test]
    fn the_living_stand_before_those_that_have_ended() {
        let agent = |id: &str, state: &str| json!({ "id": id, "state": state });
        let mut page =
            json!({ "hosts": [agent("c", "done"), agent("b", "idle"), agent("a", "lost")] });
        let living = json!({ "hosts": [agent("b", "idle"), agent("0", "running")] });
        assert!(living_first(&mut page, &living));
        let ids: Vec<&str> = page["hosts"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|agent| agent["id"].as_str())
            .collect();
        assert_eq!(ids, ["b", "0", "c", "a"]);
        let mut page = json!({ "hosts": [agent("b", "idle")] });
        assert!(!living_first(&mut page, &living));
    }

    #[test]
    fn an_instance_of_the_configuration_is_known() {
        let config = "[agents.lines]\ncommand = \"x\"\n";
        assert!(has_instance(config, "lines") && !has_instance(config, "other"));
        assert!(!has_instance("", "lines") && !has_instance("not [toml", "lines"));
    }
}
