//! `svc answer`: answers what an agent or a session asks of a person.

use std::process::ExitCode;

use clap::Args;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use svc_client::{ClientError, encode};
use svc_model::LATEST;

use crate::cli::context::Context;
use crate::cli::output;

/// Arguments of `svc answer`.
#[derive(Debug, Args)]
pub(in crate::cli) struct AnswerArgs {
    /// The request: its id or the beginning of it, or `latest`
    request: String,
    /// The option's id; `-` for words alone
    option: String,
    /// Words: the reason of a denial, or the answer to a question
    text: Option<String>,
    /// The option holds from now on, and is meant so
    #[arg(long)]
    confirm: bool,
}

/// Answers a request.
pub(in crate::cli) async fn answer(
    context: &Context,
    args: AnswerArgs,
) -> anyhow::Result<ExitCode> {
    let AnswerArgs { request, option, text, confirm } = args;
    let client = context.client()?;
    let option_id = (option != "-").then_some(option);
    let body = json!({ "option_id": option_id, "text": text, "confirm": confirm });
    let path = format!("/v1/requests/{}/answer", encode(&request));
    let body = serde_json::to_vec(&body)?;
    let reply = client.exchange(Method::POST, &path, Some(body.into())).await?;
    if !reply.status.is_success() {
        return Err(ClientError::Problem(Box::new(reply.problem())).into());
    }
    let answered: Value = reply.json()?;
    if context.json {
        output::json(&answered)?;
        return Ok(ExitCode::SUCCESS);
    }
    let title = output::visible(&output::cell(&answered, "title"));
    let given = output::visible(option_id.as_deref().or(text.as_deref()).unwrap_or(LATEST));
    output::line(&if reply.status == StatusCode::ACCEPTED {
        format!("sent the answer to {title}: {given}; the client has not shown yet that it took it")
    } else {
        format!("answered {title}: {given}")
    })?;
    Ok(ExitCode::SUCCESS)
}
