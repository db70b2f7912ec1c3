//! `svc send`: gives work to an agent, and prints what it says.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::{Context, agent, output, task};

/// Examples for the help.
pub(super) const EXAMPLES: &str = "Examples:\n  svc send --agent reviewer 'look at the last commit'\n  \
    svc send --tag review --async - < prompt.txt\n\n\
    Without --agent and --tag: $SVC_AGENT, then `default_agent` of the configuration, then the only callable instance.";

/// Arguments of `svc send`.
#[derive(Debug, Clone, Args)]
pub(super) struct SendArgs {
    /// A session key, an agent's id, an instance, or a backend with one instance
    #[arg(long)]
    agent: Option<String>,
    /// Any callable instance with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Print the task's id and do not wait
    #[arg(long = "async")]
    is_async: bool,
    /// Which agents may take it: spawn-only, peer-only or peer-prefer
    #[arg(long)]
    mode: Option<String>,
    /// The vendor's model
    #[arg(long)]
    model: Option<String>,
    /// Where a new agent works; here by default
    #[arg(long, value_name = "DIR")]
    cwd: Option<std::path::PathBuf>,
    /// A repeat with the same key is the task first made
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The instructions; `-` reads standard input
    prompt: String,
}

pub(super) async fn run(context: &Context, args: SendArgs) -> anyhow::Result<ExitCode> {
    let by_environment = || context.env.text("SVC_AGENT").ok().flatten().map(str::to_owned);
    let instance = match (&args.agent, &args.tag) {
        (None, None) => by_environment(),
        (agent, _) => agent.clone(),
    };
    let (member, cwd) = match args.cwd {
        Some(cwd) => ("cwd", std::path::absolute(cwd)?),
        None => ("default_cwd", std::env::current_dir()?),
    };
    let mut opts = Map::new();
    opts.insert("async".to_owned(), true.into());
    opts.insert(member.to_owned(), cwd.to_string_lossy().into());
    let given =
        [("mode", args.mode), ("model", args.model), ("idempotency_key", args.idempotency_key)];
    for (name, value) in given {
        if let Some(value) = value {
            opts.insert(name.to_owned(), value.into());
        }
    }
    let mut body = json!({ "prompt": agent::text(args.prompt)?, "opts": opts });
    for (name, value) in [("instance", instance), ("tag", args.tag)] {
        if let Some(value) = value {
            body[name] = value.into();
        }
    }
    let sent = context.client()?.post("/v1/send_message", &body).await;
    let instance = body["instance"].as_str();
    let sent: Value = sent.map_err(|error| agent::unread(context, instance, error))?;
    if args.is_async {
        if context.json {
            output::json(&sent)?;
        } else {
            output::line(&output::visible(&output::cell(&sent, "task_id")))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    task::watch(context, &output::cell(&sent, "task_id"), None).await
}
