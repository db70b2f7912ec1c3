//! `svc agent`: agents that the daemon runs. [`super::agent_attach`] follows one.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::agent_attach::host;
use super::agent_list::AgentListArgs;
use super::naming::{self, AdvisedError};
use super::output;
use super::{Context, agent_attach, agent_away, agent_list};
use crate::client::{ClientError, with_query};
use crate::private_file;

/// `svc agent …`.
#[derive(Debug, Subcommand)]
pub(super) enum AgentCommand {
    /// Start an agent, which outlives the daemon
    #[command(after_help = "Examples:\n  svc agent start claude --prompt 'fix the flaky test'\n  \
        svc agent start reviewer --name second -- --model opus\n  \
        svc agent start --resume agent:claude:main --prompt 'and now the docs'")]
    Start(Box<StartArgs>),
    /// List all who take part: agents that svc runs, then sessions that you opened
    #[command(
        after_help = "Examples:\n  svc agent list\n  svc agent list --instances    what can be started"
    )]
    List(AgentListArgs),
    /// Show one agent, and what it needs permission for
    #[command(after_help = "Example:\n  svc agent status agent:claude:main")]
    Status {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
    },
    /// Send input to an agent
    #[command(after_help = "Example:\n  svc agent send agent:claude:main 'and now the docs'")]
    Send {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// The text; `-` reads standard input
        input: String,
        /// Send it into the present turn
        #[arg(long)]
        steer: bool,
    },
    /// Answer a request of an agent
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
    /// Print the conversation, even after the agent's end
    #[command(after_help = "Example:\n  svc agent history agent:claude:main --limit 20")]
    History {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// How many of the last entries; 0: all
        #[arg(long, value_name = "N", default_value_t = 50)]
        limit: u64,
        /// Leave out tool calls and their results
        #[arg(long)]
        no_tools: bool,
    },
    /// Print the words of an agent as they come; exit code 0 if it ends well, else 1
    #[command(after_help = "Example:\n  svc agent watch agent:claude:main\n\n\
        Starts at the beginning, and resumes when the daemon restarts.")]
    Watch {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
        /// Start after this offset
        #[arg(long, value_name = "N")]
        after: Option<u64>,
    },
    /// Talk with an agent: type a line, see the answer, answer requests by number
    #[command(after_help = "Example:\n  svc agent attach agent:claude:main\n\n\
        Ctrl-C ends the agent's turn, Ctrl-D detaches. It waits for a daemon that restarts.\n\
        Where no daemon runs, the agent's host is asked itself: requests are shown, and answering needs a daemon.")]
    Attach {
        /// Its id, a beginning of that, its session key, or its instance
        agent: String,
    },
}

/// Arguments of `svc agent start`.
#[derive(Debug, Clone, Args)]
pub(super) struct StartArgs {
    /// The instance: a configured way to run an agent
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
    /// Its task, as lists show it
    #[arg(long)]
    task: Option<String>,
    /// A description for people
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

pub(super) async fn run(context: &Context, command: AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Start(args) => start(context, *args).await,
        AgentCommand::List(args) => agent_list::list(context, &args).await,
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
            if context.json {
                output::json(&answered)?;
            } else {
                let title = output::visible(&output::cell(&answered, "title"));
                output::line(&format!("answered {title}: {}", output::visible(&option)))?;
            }
            Ok(ExitCode::SUCCESS)
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
            if context.json {
                output::json(&stopped)?;
            } else {
                output::line(&stopped_in_words(&agent, &stopped))?;
            }
            Ok(ExitCode::SUCCESS)
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

/// How an agent ended that was to stop.
fn stopped_in_words(agent: &str, stopped: &Value) -> String {
    let agent = output::visible(agent);
    if stopped["stopped"] != true {
        return format!("{agent} has not ended yet: `svc agent status {agent}` says how it is");
    }
    let how = match (stopped["exit_code"].as_i64(), &stopped["signal"]) {
        (Some(code), _) => format!(", its program with exit code {code}"),
        (None, Value::Null) => String::new(),
        (None, signal) => format!(", its program by {}", ended_by(signal, true)),
    };
    let state = match stopped["final_state"].as_str() {
        None | Some("done") => String::new(),
        Some(state) => format!("; its state is {}", output::visible(state)),
    };
    format!("{agent} has ended{how}{state}")
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
    fn a_stop_is_told_in_a_sentence() {
        let told = |stopped: &Value| stopped_in_words("agent:claude:main", stopped);
        for (stopped, sentence) in [
            (
                json!({ "stopped": true, "exit_code": 0, "graceful": true, "final_state": "done" }),
                "agent:claude:main has ended, its program with exit code 0",
            ),
            (
                json!({ "stopped": true, "signal": 9, "final_state": "done" }),
                "agent:claude:main has ended, its program by svc, which stopped it (SIGKILL)",
            ),
            (
                json!({ "stopped": true, "exit_code": 3, "final_state": "error" }),
                "agent:claude:main has ended, its program with exit code 3; its state is error",
            ),
            (
                json!({ "stopped": false }),
                "agent:claude:main has not ended yet: `svc agent status agent:claude:main` says how it is",
            ),
        ] {
            assert_eq!(told(&stopped), sentence);
        }
    }

    #[test]
    fn an_instance_of_the_configuration_is_known() {
        let config = "[agents.lines]\ncommand = \"x\"\n";
        assert!(has_instance(config, "lines") && !has_instance(config, "other"));
        assert!(!has_instance("", "lines") && !has_instance("not [toml", "lines"));
    }
}
