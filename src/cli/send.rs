//! `svc send`: gives work to an agent, and prints what it says.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::naming::{AdvisedError, is_about_a_name};
use super::{Context, agent, output, task};
use crate::client::{Client, ClientError, encode};

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
    let client = context.client()?;
    let instance = body["instance"].as_str();
    let sent: Value = match client.post("/v1/send_message", &body).await {
        Ok(sent) => sent,
        Err(error) => return Err(unsent(context, &client, instance, error).await),
    };
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

/// Why the work was not sent. To somebody who is a peer and no agent that takes work, `svc tell` writes.
async fn unsent(
    context: &Context,
    client: &Client,
    instance: Option<&str>,
    error: ClientError,
) -> anyhow::Error {
    if let Some(name) = instance
        && error.problem().is_some_and(is_about_a_name)
        && client.get::<Value>(&format!("/v1/peers/{}", encode(name))).await.is_ok()
    {
        let name = output::visible(name);
        let advice =
            format!("{name} is a peer that takes no work: `svc tell {name} TEXT` writes to it");
        return AdvisedError::new(error, &advice).into();
    }
    agent::unread(context, instance, error)
}
