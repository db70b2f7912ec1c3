//! `svc send`: gives work to an agent and prints its output.

use clap::Args;
use serde_json::{Value, json};
use svc_client::TokenSource;
use svc_model::PeerId;

use super::people::{present, which_one};
use super::{Context, ExitResult, UsageError, agent, output, task};

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
#[command(override_usage = "svc send [OPTIONS] [NAME] <PROMPT>")]
pub(super) struct SendArgs {
    /// Who gets it: an instance, or the name, key or id of an agent in `svc agent list`
    name: Option<String>,
    /// The same as NAME
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Any callable instance with this tag
    #[arg(long, conflicts_with = "agent")]
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
    prompt: Option<String>,
}

impl SendArgs {
    /// Who gets the work, if that is said, and the prompt. A word alone is the prompt: clap cannot
    /// tell it from a name that an option follows, so both words are optional for it.
    fn split(&mut self) -> Result<(Option<String>, String), UsageError> {
        let (name, prompt) = match (self.name.take(), self.prompt.take()) {
            (name, Some(prompt)) => (name, prompt),
            (Some(prompt), None) => (None, prompt),
            (None, None) => {
                let text = "say what to do: `svc send [NAME] PROMPT`; `-` reads standard input";
                return Err(UsageError(text.to_owned()));
            }
        };
        if let Some(name) = name.as_ref().filter(|_| self.agent.is_some() || self.tag.is_some()) {
            let text = format!("NAME ({name}) cannot be used with --agent or --tag");
            return Err(UsageError(text));
        }
        Ok((name.or(self.agent.take()), prompt))
    }
}

pub(super) async fn run(context: &Context, mut args: SendArgs) -> ExitResult {
    let (named, prompt) = args.split()?;
    let by_environment = || context.env.text("SVC_AGENT").ok().flatten().map(str::to_owned);
    let instance = match (named, &args.tag) {
        (None, None) => by_environment(),
        (named, _) => named,
    };
    let (member, cwd) = match args.cwd {
        Some(cwd) => ("cwd", std::path::absolute(cwd)?),
        None => ("default_cwd", std::env::current_dir()?),
    };
    let opts = json!({
        "async": true, member: cwd.to_string_lossy(), "mode": args.mode, "model": args.model,
        "idempotency_key": args.idempotency_key,
    });
    let prompt = agent::text(prompt)?;
    let mut body = json!({ "prompt": prompt, "instance": instance, "tag": args.tag, "opts": opts });
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        send: SendArgs,
    }

    #[test]
    fn options_may_stand_anywhere_among_the_words() {
        let split = |line: &str| {
            let words = ["send"].into_iter().chain(line.split_whitespace());
            Line::try_parse_from(words).expect("parses").send.split()
        };
        for (line, name) in [
            ("do", None),
            ("--cwd /tmp do", None),
            ("do --cwd /tmp", None),
            ("--tag t do", None),
            ("bob do", Some("bob")),
            ("bob --cwd /tmp do", Some("bob")),
            ("bob --mode spawn-only do --model m", Some("bob")),
            ("--async bob do", Some("bob")),
            ("--agent bob do", Some("bob")),
            ("do --agent bob", Some("bob")),
        ] {
            let (named, prompt) = split(line).expect("is clear");
            assert_eq!((named.as_deref(), &*prompt), (name, "do"), "{line}");
        }
        for line in ["", "--async", "bob do --agent ann", "bob --tag t do"] {
            split(line).expect_err(line);
        }
        let more = ["send", "bob", "--async", "do", "more"];
        assert!(Line::try_parse_from(more).is_err());
    }
}
