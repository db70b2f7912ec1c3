//! `svc open`: the page, in a browser that is signed in by a link which works once.

use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::{Context, daemon::daemon_url, output};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc open                         a link, and a browser where there is a desktop
  svc open --no-browser            the link alone, for a browser elsewhere
  ssh -L 6334:127.0.0.1:6334 host  and then the link of `svc open` there, in a browser here

The link signs one browser in, within 60 seconds, for 12 hours. `svc token list` shows who is signed in, and `svc token \
revoke` signs out.";

/// Arguments of `svc open`.
#[derive(Debug, Clone, Args)]
pub(super) struct OpenArgs {
    /// Print the link, and start no browser
    #[arg(long)]
    no_browser: bool,
}

pub(super) async fn run(context: &Context, args: &OpenArgs) -> anyhow::Result<ExitCode> {
    let base = daemon_url(context).await?;
    let minted: Value = context.client()?.post("/v1/login_codes", &json!({})).await?;
    let code =
        minted.get("code").and_then(Value::as_str).context("the daemon answered without a code")?;
    // After `#`: what stands there is sent to no server and stands in no log.
    let url = format!("{}/login#{code}", base.trim_end_matches('/'));
    if context.json {
        output::json(&json!({ "url": url }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&url)?;
    if !args.no_browser {
        open_browser(context, &url);
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a link on this desktop, if there is one and the person sits at it.
pub(super) fn open_browser(context: &Context, url: &str) {
    let Some(mut browser) = browser(context) else { return };
    browser.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = browser.spawn() {
        output::note(&format!("cannot start a browser ({error}): open the link above"));
    }
}

/// What opens a link on this desktop, if there is one and the person sits at it.
fn browser(context: &Context) -> Option<Command> {
    let is_set = |name: &str| context.env.os(name).is_some_and(|value| !value.is_empty());
    if is_set("SSH_CONNECTION") {
        return None;
    }
    if cfg!(target_os = "macos") {
        return Some(Command::new("open"));
    }
    (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")).then(|| Command::new("xdg-open"))
}
