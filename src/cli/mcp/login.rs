//! Login to a server, and logout. The daemon runs the flow; a person confirms it in a browser.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::super::Context;
use super::super::open::open_browser;
use super::super::output;
use super::show::path_of;

pub(super) async fn log_in(
    context: &Context,
    name: &str,
    no_browser: bool,
    port: Option<u16>,
) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let begun: Value = client.post(&path_of(name, "/login")?, &json!({ "port": port })).await?;
    let url = begun.get("authorization_url").and_then(Value::as_str).unwrap_or_default();
    if context.json {
        output::json(&begun)?;
    } else {
        output::note(&format!("open this in a browser to log in to {name}:"));
        output::line(url)?;
    }
    if !no_browser {
        open_browser(context, url);
    }
    let mut pasted = None;
    let may_paste = std::io::stdin().is_terminal();
    if may_paste {
        output::note("if the browser runs elsewhere, paste the address to which it was redirected");
    }
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let wait = path_of(name, "/login/wait")?;
    loop {
        let body = json!({ "redirect": pasted.take() });
        let waiting = client.post::<Value>(&wait, &body);
        let told = tokio::select! {
            told = waiting => told?,
            line = lines.next_line(), if may_paste => {
                pasted = line?.filter(|line| !line.trim().is_empty());
                continue;
            }
        };
        let reason = told.get("reason").and_then(Value::as_str).unwrap_or_default();
        match told.get("state").and_then(Value::as_str) {
            Some("done") => break,
            Some("failed") => bail!("{name}: {reason}"),
            _ => {}
        }
    }
    if !context.json {
        output::line(&format!("logged in to {name}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn log_out(context: &Context, name: &str) -> anyhow::Result<ExitCode> {
    let told: Value = context.client()?.post(&path_of(name, "/logout")?, &json!({})).await?;
    if context.json {
        output::json(&told)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is = |field: &str| told.get(field).and_then(Value::as_bool) == Some(true);
    output::line(&match (is("logged_out"), is("revoked")) {
        (false, _) => format!("there was no login to {name}"),
        (true, true) => format!("logged out of {name}, and its tokens are revoked"),
        (true, false) => {
            format!(
                "logged out of {name}: its tokens are deleted here, but were not revoked at the issuer"
            )
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
