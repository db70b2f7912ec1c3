//! `svc install status`: the entries in each client, and drift from what was installed.

use std::process::ExitCode;

use anyhow::Result;
use futures_util::future::join_all;
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use serde_json::json;
use svc_client::{Token, Url};
use svc_install::{
    Abilities, ClientStatus, DaemonAddress, Expectation, InstallRecord, KnownClient, OperatorToken,
    ToolApprovals,
};
use svc_model::{
    HARMLESS_TOOLS,
    hook::{AttendedPrompts, HookClient},
};
use svc_sys::config::{Flags, WakeMode};

use super::{chosen, command, listed_tools};
use crate::cli::output::Screen;
use crate::cli::{Context, ExitResult, output};

/// Prints what is installed; exit code 1 if an entry has drifted.
pub(super) async fn status(context: &Context, named: &[KnownClient]) -> ExitResult {
    let expectation = expectation(context)?;
    let config = context.config(&Flags::default()).ok();
    let clients_to_show = chosen(named, |_| true);
    // Concurrent, so the total time is that of the slowest client.
    let mut inspections: FuturesOrdered<_> =
        clients_to_show.into_iter().map(|client| expectation.inspect(client)).collect();
    let mut statuses = Vec::new();
    while let Some(mut status) = inspections.next().await {
        if let (Some(abilities), Some(config)) = (&mut status.abilities, &config) {
            let is_off = |off: &HookClient| off.as_str() == status.client.name();
            let may_wake =
                !config.wake_off.iter().any(is_off) && config.hooks_wake.value != WakeMode::Never;
            let may_answer = config.approvals_attended.value == AttendedPrompts::Answer;
            abilities.restrict(may_wake, may_answer);
        }
        // Clients that are not on this machine are shown only if they are named.
        if named.is_empty() && !status.found && status.is_absent() {
            continue;
        }
        // Each client is printed as soon as it is known, so that a person sees the progress.
        if !context.json {
            print(&context.screen, &status)?;
        }
        statuses.push(status);
    }
    let is_fine = statuses.iter().all(|status| status.problems.is_empty());
    if context.json {
        let program = expectation.command.path();
        output::json(&json!({ "ok": is_fine, "program": program, "clients": statuses }))?;
    } else if statuses.is_empty() {
        output::line("no client was found here")?;
    }
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The entries in all clients.
pub(crate) async fn inspected(context: &Context) -> Result<Vec<ClientStatus>> {
    let expectation = expectation(context)?;
    let inspections = KnownClient::all().iter().map(|client| expectation.inspect(*client));
    Ok(join_all(inspections).await)
}

fn expectation(context: &Context) -> Result<Expectation> {
    let config = context.config(&Flags::default()).ok();
    let live = svc_server::daemon::live_file(&context.paths);
    let listener = || {
        let addresses = &config.as_ref()?.listen;
        let address = addresses.iter().find(|address| address.port() != 0)?;
        Some(Url::from_listener(*address))
    };
    let url = live.and_then(|daemon| Url::parse(&daemon.url).ok()).or_else(listener);
    let token = config.as_ref().and_then(|config| Token::read(&config.token_file.value).ok()?);
    Ok(Expectation {
        command: command(context)?,
        locations: context.client_locations()?,
        record: InstallRecord::read(&context.paths.home)?,
        daemon: url.map(|url| DaemonAddress { port: url.socket().1, url: url.to_string() }),
        token: token.map(|token| OperatorToken(token.expose().to_owned())),
        version: env!("CARGO_PKG_VERSION"),
        harmless_tools: HARMLESS_TOOLS.to_vec(),
        listed_tools: listed_tools(context),
    })
}

fn print(screen: &Screen, status: &ClientStatus) -> Result<()> {
    let version =
        status.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    output::line(&format!("{}{version}", status.client.name()))?;
    for (label, parts) in [("server", &status.servers), ("hooks", &status.hooks)] {
        if parts.is_empty() && (label == "server" || status.client.has_hooks()) {
            output::line(&format!("  {label:<8} not installed"))?;
        }
        for part in parts {
            let path = output::visible(&part.path.display().to_string());
            output::line(&format!("  {label:<8} {:<12} {:<8} {path}", part.state, part.scope))?;
        }
    }
    if let Some(approvals) = &status.approvals {
        output::block(&tools(screen, status.client.name(), approvals))?;
    }
    if let Some(abilities) = &status.abilities {
        output::block(&able(screen, status, abilities))?;
    }
    for problem in &status.problems {
        // A parser quotes the faulty line below its message.
        for (number, line) in problem.trim_end().lines().enumerate() {
            let mark = if number == 0 { "!!" } else { "  " };
            output::line(&format!("  {mark} {}", output::visible(line)))?;
        }
    }
    if !status.problems.is_empty() {
        output::line(&format!("  -> {}", status.advice))?;
    }
    Ok(())
}

fn able(screen: &Screen, status: &ClientStatus, abilities: &Abilities) -> String {
    let mut out = String::new();
    for (label, text) in abilities.texts() {
        push_wrapped(&mut out, screen, label, text);
    }
    if !abilities.proven && status.client.has_hooks() {
        let version = status.version.as_deref().unwrap_or("its version");
        let text = format!("not proven: no test has run {}", output::visible(version));
        push_wrapped(&mut out, screen, "", &text);
    }
    out
}

fn push_wrapped(out: &mut String, screen: &Screen, label: &str, text: &str) {
    const LABEL: usize = 11;
    let room = screen.fit_width().map(|width| usize::from(width).saturating_sub(LABEL));
    let mut label = format!("  {label}");
    for line in output::wrapped(text, room).lines() {
        out.extend([&*format!("{label:LABEL$}"), line, "\n"]);
        label.clear();
    }
}

fn tools(screen: &Screen, client: &str, approvals: &ToolApprovals) -> String {
    let missing = &approvals.missing;
    let text = if missing.is_empty() {
        "called without a question".to_owned()
    } else {
        format!(
            "the client asks you before {} of {} harmless ones: {}\nsvc install {client} --allow-tools",
            missing.len(),
            approvals.allowed + missing.len(),
            missing.join(", ")
        )
    };
    let mut out = String::new();
    push_wrapped(&mut out, screen, "tools", &text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_counted_and_named() {
        let names: Vec<&'static str> = HARMLESS_TOOLS.to_vec();
        let count = names.len();
        let approvals = ToolApprovals {
            path: "/home/ann/.claude/settings.json".into(),
            allowed: 0,
            missing: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        let all = tools(&Screen::for_tests(Some(62)), "claude-code", &approvals);
        assert!(all.contains(&format!("{count} of {count} harmless ones")), "{all}");
        assert!(all.contains("svc install claude-code --allow-tools"), "{all}");
        assert!(all.lines().all(|line| line.len() <= 62), "{all}");
        for name in &names {
            assert!(all.split([' ', ',', '\n']).any(|word| word == *name), "{name} whole: {all}");
        }
    }
}
