//! `svc open`: opens the page in a browser and signs it in by a link that works once.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::{Value, json};
use svc_server::daemon;

use super::daemon::daemon_url;
use super::{Context, ExitResult, output};

pub(super) const EXAMPLES: &str = "\
Examples:
  svc open                         a link, and a browser where there is a desktop
  svc open --no-browser            the link alone, for a browser elsewhere
  svc open --plain                 a link on 127.0.0.1 in place of a name below localhost
  ssh -L 6334:127.0.0.1:6334 host  and then the link of `svc open` there, in a browser here

The link signs one browser in, within 60 seconds, for 12 hours. `svc token list` shows who is signed in, and `svc token \
revoke` signs out.";

#[derive(Debug, Clone, Args)]
pub(super) struct OpenArgs {
    /// Print the link, and start no browser
    #[arg(long)]
    no_browser: bool,
    /// Print a link with the address 127.0.0.1, for a browser that does not find names below
    /// localhost
    #[arg(long)]
    plain: bool,
}

pub(super) async fn run(context: &Context, args: &OpenArgs) -> ExitResult {
    let url = page_url(context, &daemon_url(context).await?, args.plain)?;
    let client = context.client()?;
    let minted: Value = client.post("/v1/login_codes", &json!({})).await?;
    let code = member(&minted, "code")?;
    // In the fragment: browsers send it to no server, so no log has it.
    let link = format!("{url}/login#{code}");
    if context.json {
        output::json(&json!({ "url": link }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&link)?;
    if !args.no_browser && has_desktop(context) {
        // Other users of this machine can read the arguments of the program that opens the browser;
        // a ticket works once.
        let minted: Value = client.post("/v1/login_tickets", &json!({})).await?;
        open_browser(context, &format!("{url}/login?ticket={}", member(&minted, "ticket")?));
    }
    Ok(ExitCode::SUCCESS)
}

fn member<'a>(minted: &'a Value, name: &str) -> Result<&'a str> {
    let value = minted.get(name).and_then(Value::as_str);
    value.with_context(|| format!("the daemon answered without a {name}"))
}

/// The URL of the page. For a loopback daemon a name below `localhost`, which browsers resolve to a
/// loopback address and which belongs to this data folder's daemon alone; else the address as
/// given.
fn page_url(context: &Context, base: &str, plain: bool) -> Result<String> {
    let base = base.trim_end_matches('/');
    let is_given = context.discovery()?.fixed().is_some();
    let authority = base.strip_prefix("http://").unwrap_or_default();
    let Some((host, port)) = authority.rsplit_once(':') else { return Ok(base.to_owned()) };
    if is_given || plain || !matches!(host, "127.0.0.1" | "[::1]") {
        return Ok(base.to_owned());
    }
    let paths = &context.paths;
    let name = daemon::page_host(paths)
        .with_context(|| format!("cannot use {}", paths.page_name.display()))?;
    Ok(format!("http://{name}:{port}"))
}

/// Opens a link on this desktop, if there is one and the person sits at it.
///
/// Every user of this machine can read the link in the arguments of the program, so it must not
/// hold a secret that lasts.
pub(super) fn open_browser(context: &Context, url: &str) {
    if !has_desktop(context) {
        return;
    }
    let mut browser = Command::new("xdg-open");
    browser.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = browser.spawn() {
        output::note(&format!("cannot start a browser ({error}): open the link above"));
    }
}

/// Whether there is a desktop, and the person sits at it.
fn has_desktop(context: &Context) -> bool {
    let is_set = |name: &str| context.env.os(name).is_some_and(|value| !value.is_empty());
    !is_set("SSH_CONNECTION") && (is_set("DISPLAY") || is_set("WAYLAND_DISPLAY"))
}
