//! `svc agent`: agents that the daemon runs. [`super::agent_attach`] follows one.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Error, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};
use svc_client::{ClientError, with_object};
use svc_wire::host_protocol::{HistoryQuery, SendInput, SendMode, StopAgent};

use super::agent_attach::host;
use super::agent_away::find_answering;
use super::agent_list::{AgentListArgs, print_agent, print_history, print_stopped};
use super::naming::AdvisedError;
use super::output;
use super::{Context, ExitResult, agent_attach, agent_away, agent_list};

#[derive(Debug, Subcommand)]
pub(super) enum AgentCommand {
    /// Start an agent, which outlives the daemon
    #[command(after_help = "Examples:\n  svc agent start claude --prompt 'fix the flaky test'\n  \
        svc agent start reviewer --name second -- --model opus\n  \
        svc agent start --resume agent:claude:main --prompt 'and now the docs'")]
    Start(Box<StartArgs>),
    /// List all who take part: agents that svc runs, then sessions that you opened
    #[command(after_help = "Examples:\n  svc agent list\n  \
        svc agent list --instances    what can be started")]
    List(AgentListArgs),
    /// Show one agent, and what it needs permission for
    #[command(after_help = "Example:\n  svc agent status agent:claude:main")]
    Status {
        /// Its id, a beginning of that, its session key, its name, or its instance
        agent: String,
    },
    /// Send input to an agent
    #[command(after_help = "Example:\n  svc agent send agent:claude:main 'and now the docs'")]
    Send {
        /// Its id, a beginning of that, its session key, its name, or its instance
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
        /// Its id, a beginning of that, its session key, its name, or its instance
        agent: String,
        /// The request: its id or the beginning of it, or `latest`
        request: String,
        /// The option's id
        option: String,
    },
    /// End an agent's turn, not the agent
    #[command(after_help = "Example:\n  svc agent interrupt agent:claude:main")]
    Interrupt {
        /// Its id, a beginning of that, its session key, its name, or its instance
        agent: String,
    },
    /// End an agent
    #[command(after_help = "Example:\n  svc agent stop agent:claude:main --timeout 5")]
    Stop {
        /// Its id, a beginning of that, its session key, its name, or its instance
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
        /// Its id, a beginning of that, its session key, its name, or its instance
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
        /// Its id, a beginning of that, its session key, its name, or its instance
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
        /// Its id, a beginning of that, its session key, its name, or its instance
        agent: String,
    },
}

#[derive(Debug, Clone, Args, Serialize)]
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
    /// Go on with the conversation of an agent that has ended, in its folder: its id or its session
    /// key
    #[arg(long, value_name = "AGENT")]
    resume: Option<String>,
    /// Arguments for the agent's program
    #[arg(last = true)]
    args: Vec<String>,
}

pub(super) async fn run(context: &Context, command: AgentCommand) -> ExitResult {
    let done = match command {
        AgentCommand::Start(args) => start(context, *args).await,
        AgentCommand::List(args) => match agent_list::list(context, &args).await {
            Err(away) if is_away(context, &away) => agent_away::list(context, &args, away).await,
            listed => listed,
        },
        AgentCommand::Status { agent } => match status(context, &agent).await {
            Err(away) if is_away(context, &away) => agent_away::status(context, &agent, away).await,
            shown => shown,
        },
        AgentCommand::Send { agent, input, steer } => {
            let mode = if steer { SendMode::Steer } else { SendMode::Queue };
            let input = SendInput { mode, ..SendInput::new(text(input)?) };
            let sent = ask(context, &agent, AgentCall::Send(input)).await;
            sent.and_then(|sent| context.print_object(&sent, &["message_id", "queued"]))
        }
        AgentCommand::Answer { agent, request, option } => {
            answer(context, &agent, &request, &option).await
        }
        AgentCommand::Interrupt { agent } => {
            let view = context.client()?.post(&host(&agent, "/interrupt"), &json!({})).await;
            view.map_err(Error::from).and_then(|view: Value| print_agent(context, &view))
        }
        AgentCommand::Stop { agent, force, timeout, reason } => {
            let stop = StopAgent { force, timeout: timeout.unwrap_or_default().into(), reason };
            let stopped = ask(context, &agent, AgentCall::Stop(stop)).await;
            stopped.and_then(|stopped| print_stopped(context, &agent, &stopped))
        }
        AgentCommand::History { agent, limit, no_tools } => {
            let include_tools = no_tools.then_some(false);
            let query = HistoryQuery { limit, before: None, include_tools };
            let page = ask(context, &agent, AgentCall::History(query)).await;
            page.and_then(|page| print_history(context, &page))
        }
        AgentCommand::Watch { agent, after } => agent_attach::watch(context, &agent, after).await,
        AgentCommand::Attach { agent } => match agent_attach::attach(context, &agent).await {
            Err(away) if is_away(context, &away) => agent_away::attach(context, &agent, away).await,
            done => done,
        },
    };
    done.map_err(of_attended)
}

/// Whether no daemon runs on this machine. A daemon that was named by URL may run on another, so
/// local hosts are no substitute.
fn is_away(context: &Context, error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(ClientError::NotRunning { .. }))
        && context.discovery().is_ok_and(|discovery| discovery.fixed().is_none())
}

/// What the daemon and the host of an agent both answer.
enum AgentCall {
    Send(SendInput),
    Stop(StopAgent),
    History(HistoryQuery),
}

/// Asks the daemon, or while none runs the agent's own host.
async fn ask(context: &Context, agent: &str, call: AgentCall) -> Result<Value> {
    let client = context.client()?;
    let asked = match &call {
        AgentCall::Send(input) => client.post(&host(agent, "/send"), input).await,
        AgentCall::Stop(stop) => client.post(&host(agent, "/stop"), stop).await,
        AgentCall::History(query) => {
            client.get(&with_object(&host(agent, "/history"), query)).await
        }
    };
    let away = match asked.map_err(Error::from) {
        Err(error) if is_away(context, &error) => error,
        asked => return asked,
    };
    let (host, _) = find_answering(context, agent, away).await?;
    Ok(match &call {
        AgentCall::Send(input) => serde_json::to_value(host.send(input).await?)?,
        AgentCall::Stop(stop) => serde_json::to_value(host.stop(stop).await?)?,
        AgentCall::History(query) => serde_json::to_value(host.history(query).await?)?,
    })
}

async fn answer(context: &Context, agent: &str, request: &str, option: &str) -> ExitResult {
    let body = json!({ "request_id": request, "option_id": option });
    let answered: Value = context.client()?.post(&host(agent, "/answer"), &body).await?;
    let title = output::visible(&output::cell(&answered, "title"));
    let line = format!("answered {title}: {}", output::visible(option));
    context.print_line(&answered, &line)
}

/// The error for a name that is no agent of svc. `svc agent list` also has sessions that people
/// opened, so the error names the commands for these.
fn of_attended(error: Error) -> Error {
    let is_missing = |error: &ClientError| {
        error.problem().is_some_and(|problem| problem.detail.starts_with("there is no agent"))
    };
    match error.downcast::<ClientError>() {
        Ok(error) if is_missing(&error) => {
            let advice = "if it is attended, a session that a person opened: `svc peer show` and `svc session history` \
                          show it, `svc tell` writes to it";
            AdvisedError::new(error, advice).into()
        }
        Ok(error) => error.into(),
        Err(error) => error,
    }
}

async fn status(context: &Context, agent: &str) -> ExitResult {
    let client = context.client()?;
    let mut view: Value = client.get(&host(agent, "")).await?;
    let page: Value = client.get("/v1/requests?open=true&limit=500").await?;
    let is_own = |request: &&Value| request["agent_id"] == view["id"];
    let requests: Vec<Value> =
        output::items(&page, "requests").iter().filter(is_own).cloned().collect();
    if context.json {
        view["requests"] = requests.into();
        return print_agent(context, &view);
    }
    let key = output::cell(&view, "session_key");
    let printed = print_agent(context, &view)?;
    for request in &requests {
        output::block(&request_text(context, &key, request))?;
    }
    Ok(printed)
}

/// An open request for a person, with the command that answers it.
fn request_text(context: &Context, key: &str, request: &Value) -> String {
    let cell = |key| output::visible(&output::cell(request, key));
    let (id, at) = (cell("request_id"), context.screen.time(&output::cell(request, "opened_at")));
    let mut text = format!("\nit asks: {} ({id}, {at})\n", cell("title"));
    for option in output::items(request, "options") {
        let part = |key| output::visible(&output::cell(option, key));
        text.extend(["  ", &part("option_id"), ": ", &part("name"), "\n"]);
    }
    text + &format!("  -> svc agent answer {} {id} OPTION\n", output::visible(key))
}

async fn start(context: &Context, mut args: StartArgs) -> ExitResult {
    args.cwd = args.cwd.map(std::path::absolute).transpose()?;
    args.prompt = args.prompt.map(text).transpose()?;
    let mut body = serde_json::to_value(&args)?;
    if args.cwd.is_none() && args.resume.is_none() {
        let here = std::env::current_dir().context("cannot tell the working folder")?;
        body["default_cwd"] = here.to_string_lossy().into();
    }
    print_agent(context, &context.client()?.post("/v1/hosts", &body).await?)
}

pub(super) fn text(given: String) -> Result<String> {
    if given != "-" {
        return Ok(given);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}
