//! `svc send`: gives work to an agent and prints its output.

use clap::Args;
use serde_json::Value;
use svc_client::TokenSource;
use svc_model::PeerId;

use super::context::members;
use super::people::{present, which_one};
use super::{Context, ExitResult, agent, output, task};

pub(super) const EXAMPLES: &str = concat!(
    "Examples:
  svc send reviewer 'look at the last commit'
  svc send --tag review --async - < prompt.txt

NAME is an instance, which starts an agent for this work, or else anybody who is here. Without NAME and --tag: $SVC_AGENT, then \
`default_agent` of the configuration, then the only callable instance.

",
    which_one!()
);

#[derive(Debug, Clone, Args)]
#[command(allow_missing_positional = true)]
pub(super) struct SendArgs {
    /// Who gets it: an instance, or the name, key or id of an agent in `svc agent list`
    name: Option<String>,
    /// The same as NAME
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    agent: Option<String>,
    /// Any callable instance with this tag
    #[arg(long, conflicts_with_all = ["name", "agent"])]
    tag: Option<String>,
    /// Print the task's id and do not wait; its end comes to your inbox
    #[arg(long = "async")]
    is_async: bool,
    /// Which agents may take it: spawn-only, peer-only or peer-prefer
    #[arg(long, value_parser = ["spawn-only", "peer-only", "peer-prefer"], hide_possible_values = true)]
    mode: Option<String>,
    /// The vendor's model
    #[arg(long)]
    model: Option<String>,
    /// Where a new agent works; here by default
    #[arg(long, value_name = "DIR")]
    cwd: Option<std::path::PathBuf>,
    /// A repeat with the same key returns the first task
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The instructions; `-` reads standard input
    prompt: String,
}

pub(super) async fn run(context: &Context, args: SendArgs) -> ExitResult {
    let by_environment = || context.env.text("SVC_AGENT").ok().flatten().map(str::to_owned);
    let instance = match (args.name.or(args.agent), &args.tag) {
        (None, None) => by_environment(),
        (named, _) => named,
    };
    let (member, cwd) = match args.cwd {
        Some(cwd) => ("cwd", std::path::absolute(cwd)?),
        None => ("default_cwd", std::env::current_dir()?),
    };
    let mut opts = members([
        (member, Some(cwd.to_string_lossy().into_owned())),
        ("mode", args.mode),
        ("model", args.model),
        ("idempotency_key", args.idempotency_key),
    ]);
    opts.insert("async".to_owned(), true.into());
    let prompt = Some(agent::text(args.prompt)?);
    let mut body =
        Value::from(members([("prompt", prompt), ("instance", instance), ("tag", args.tag)]));
    body["opts"] = opts.into();
    let client = context.client()?;
    if args.is_async && client.target().token_source != TokenSource::Env {
        // Nobody waits here, so the reply goes to the operator's inbox.
        present(&client).await?;
        body["opts"]["from_peer_id"] = PeerId::OPERATOR.into();
    }
    let sent: Value = client.post("/v1/send_message", &body).await?;
    if args.is_async {
        return context.print(&sent, || {
            output::line(&output::visible(&output::cell(&sent, "task_id")))?;
            output::note("svc: the result comes to `svc inbox`");
            Ok(())
        });
    }
    task::watch(context, &output::cell(&sent, "task_id"), None).await
}
