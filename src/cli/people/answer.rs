//! `svc answer`: answers what an agent or a session asks of a person.

use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{ClientError, encode};
use svc_model::{AgentRequestId, LATEST};

use super::name_of;
use crate::cli::context::Context;
use crate::cli::output;

/// Arguments of `svc answer`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AnswerArgs {
    /// The request: its id or the beginning of it, or `latest`, which may be left out
    request: String,
    /// The option's id; `-` for words alone
    option: Option<String>,
    /// Words: the reason of a denial, or the answer to a question
    text: Option<String>,
    /// The option holds from now on, and is meant so
    #[arg(long)]
    confirm: bool,
}

impl AnswerArgs {
    /// The request, the option and the words. A first word that names no request is the option.
    fn split(self) -> anyhow::Result<(String, String, Option<String>)> {
        let Self { request: first, option: second, text: third, .. } = self;
        if first == LATEST || first.starts_with(AgentRequestId::PREFIX) {
            let option =
                second.context("say which option, or - for words alone; `svc inbox` shows them")?;
            return Ok((first, option, third));
        }
        ensure!(third.is_none(), "{first:?} is no request: requests are `latest` or req_…");
        Ok((LATEST.to_owned(), first, second))
    }
}

/// Answers a request.
pub(in crate::cli) async fn answer(
    context: &Context,
    args: AnswerArgs,
) -> anyhow::Result<ExitCode> {
    let confirm = args.confirm;
    let (request, option, text) = args.split()?;
    let client = context.client()?;
    let option_id = (option != "-").then_some(option);
    let body = json!({ "option_id": option_id, "text": text, "confirm": confirm });
    let path = format!("/v1/requests/{}/answer", encode(&request));
    let body = serde_json::to_vec(&body)?;
    let reply = client.exchange(Method::POST, &path, Some(body.into())).await?;
    if request == LATEST && reply.status == StatusCode::NOT_FOUND {
        bail!("no request is open");
    }
    if !reply.status.is_success() {
        return Err(ClientError::Problem(Box::new(reply.problem())).into());
    }
    let answered: Value = reply.json()?;
    if context.json {
        output::json(&answered)?;
        return Ok(ExitCode::SUCCESS);
    }
    let peers: Value = client.get("/v1/peers?limit=500").await.unwrap_or_default();
    let mut peers = output::items(&peers, "peers").iter();
    let asker = peers.find(|peer| peer["session_id"] == answered["session_key"]);
    let asker = asker.map_or_else(|| output::cell(&answered, "session_key"), name_of);
    let title = format!("{asker}, {}", output::cell(&answered, "title"));
    let title = output::visible(&title);
    let given = output::visible(option_id.as_deref().or(text.as_deref()).unwrap_or(LATEST));
    output::line(&if reply.status == StatusCode::ACCEPTED {
        format!("sent the answer to {title}: {given}; the client has not shown yet that it took it")
    } else {
        format!("answered {title}: {given}")
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_be_left_out() {
        let split = |words: &[&str]| {
            let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
            let request = word(0).unwrap_or_default();
            AnswerArgs { request, option: word(1), text: word(2), confirm: false }.split()
        };
        for (words, request, option, text) in [
            (&["allow"][..], "latest", "allow", None),
            (&["deny", "use make"], "latest", "deny", Some("use make")),
            (&["latest", "allow"], "latest", "allow", None),
            (&["req_1", "deny", "no"], "req_1", "deny", Some("no")),
            (&["-", "blue"], "latest", "-", Some("blue")),
        ] {
            let (asked, chosen, said) = split(words).unwrap();
            assert_eq!((&*asked, &*chosen, said.as_deref()), (request, option, text), "{words:?}");
        }
        for words in [&["latest"][..], &["allow", "a", "b"]] {
            split(words).unwrap_err();
        }
    }
}
