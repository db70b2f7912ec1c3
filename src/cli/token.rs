//! `svc token`: the operator token, and the list of minted tokens.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use svc_client::{Token, encode};
use svc_model::{Timestamp, check_secret};
use svc_sys::config::Flags;
use svc_sys::private_file;

use super::daemon::{DaemonProbe, find_settled_daemon};
use super::naming::all_items;
use super::output::{Column, Listing};
use super::{Context, ExitResult, agent};

#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Print the operator token
    #[command(after_help = "Example:\n  \
        curl -H \"Authorization: Bearer $(svc token show)\" http://127.0.0.1:6334/v1/peers")]
    Show,
    /// Replace the operator token; the old one stops working at once, in a running daemon too
    #[command(after_help = "Example:\n  svc token rotate\n\n\
        Session tokens stay as they are; browsers are signed out.")]
    Rotate,
    /// Write a new token to a file that must not exist, for --token-file
    #[command(after_help = "Examples:\n  svc token init /etc/svc/token\n  \
        svc token init - < token-of-the-team")]
    Init {
        /// The file to create; - puts the token on standard input into the token file
        path: PathBuf,
    },
    /// Tokens of sessions and of clients' processes, and browsers that are signed in, the latest
    /// first
    #[command(after_help = "Examples:\n  svc token list --limit 10\n  \
        svc token list --all\n\nIt shows no token: the daemon keeps only hashes.")]
    List {
        /// Also those that were taken back or have ended
        #[arg(long)]
        all: bool,
        /// How many
        #[arg(long, value_name = "N", default_value = "50")]
        limit: NonZeroUsize,
    },
    /// Take a token back, or sign a browser out; from the next request on
    #[command(after_help = "Example:\n  svc token revoke tok_…")]
    Revoke {
        /// Its id, as `svc token list` shows it
        id: String,
    },
}

const LIST: Listing = Listing {
    items: "tokens",
    columns: &[
        Column::id("TOKEN", "token_id"),
        Column::text("KIND", "kind"),
        Column::name("SESSION", "session"),
        Column::path("PROJECT", "project").least(24).rank(2),
        Column::time("CREATED", "created_at").rank(5),
        Column::time("EXPIRES", "expires_at").rank(3),
        Column::time("LAST USED", "last_used_at").rank(4),
        Column::time("REVOKED", "revoked_at").rank(1),
    ],
    empty: "no tokens except the operator's (--all shows revoked and expired ones)",
    next: None,
};

pub(super) async fn run(context: &Context, command: TokenCommand) -> ExitResult {
    match command {
        TokenCommand::Show => show(context),
        TokenCommand::Rotate => rotate(context).await,
        TokenCommand::Init { path } if path.as_os_str() == "-" => take(context).await,
        TokenCommand::Init { path } => init(context, &path),
        TokenCommand::List { all, limit } => list(context, all, limit.get()).await,
        TokenCommand::Revoke { id } => revoke(context, &id).await,
    }
}

fn show(context: &Context) -> ExitResult {
    let config = context.config(&Flags::default())?;
    let path = config.token_file.value;
    private_file::check_folder(&context.paths.home)?;
    match Token::read(&path)? {
        Some(token) => print(context, token.expose(), &path),
        None => bail!(
            "there is no token in {}; `svc start` or `svc serve` makes one at first start",
            path.display()
        ),
    }
}

async fn rotate(context: &Context) -> ExitResult {
    let path = context.config(&Flags::default())?.token_file.value;
    if is_daemon_running(context).await? {
        let answer: Value = context.client()?.post("/v1/token/rotate", &json!({})).await?;
        let token = answer["token"].as_str().context("the daemon answered without a token")?;
        return print(context, token, &path);
    }
    let token = svc_model::new_secret();
    replace(context, &path, &token)?;
    print(context, &token, &path)
}

/// Fails if that cannot be told.
async fn is_daemon_running(context: &Context) -> Result<bool> {
    if context.discovery()?.fixed().is_some() {
        return Ok(true);
    }
    match find_settled_daemon(context).await {
        DaemonProbe::Running(..) => Ok(true),
        DaemonProbe::Absent => Ok(false),
        DaemonProbe::Unready { problem, .. } => bail!("{problem}; the token stays as it is"),
    }
}

fn replace(context: &Context, path: &Path, token: &str) -> Result<()> {
    private_file::check_folder(&context.paths.home)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    private_file::create_folder(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    private_file::replace(path, format!("{token}\n").as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the token on standard input the operator's.
async fn take(context: &Context) -> ExitResult {
    context.refuse_url("token init -")?;
    let path = context.config(&Flags::default())?.token_file.value;
    let token = Token::parse(&agent::text("-".to_owned())?, Path::new("standard input"))?;
    let token = token.expose();
    check_secret(token).map_err(|fault| anyhow!("the token on standard input {fault}"))?;
    let known = Token::read(&path).ok().flatten();
    if known.is_none_or(|known| known.expose() != token) {
        // A daemon reads the file when it starts, and would refuse the new token until then.
        if is_daemon_running(context).await? {
            bail!("a daemon runs with another token: `svc stop` it, and repeat this");
        }
        replace(context, &path, token)?;
    }
    let line = format!("the token is in {}", path.display());
    context.print_line(&json!({ "path": path }), &line)
}

fn init(context: &Context, path: &Path) -> ExitResult {
    private_file::check_above_file(path)
        .with_context(|| format!("cannot create {}", path.display()))?;
    let token = svc_model::new_secret();
    match private_file::create_new(path, format!("{token}\n").as_bytes()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!(
                "{} exists already and is left as it is; `svc token rotate` replaces a token",
                path.display()
            )
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot create {}", path.display()));
        }
    }
    let line = format!("wrote a new token to {}", path.display());
    context.print_line(&json!({ "path": path }), &line)
}

async fn list(context: &Context, all: bool, limit: usize) -> ExitResult {
    let is_shown = |token: &Value| all || is_good(token, context.screen.now);
    let client = context.client()?;
    let tokens = all_items(&client, "/v1/tokens", LIST.items, limit, is_shown).await?;
    LIST.print(context, &json!({ "count": tokens.len(), "tokens": tokens }))
}

fn is_good(token: &Value, now: Timestamp) -> bool {
    let end = token["expires_at"].as_str().and_then(Timestamp::parse);
    token["revoked_at"].is_null() && end.is_none_or(|end| end > now)
}

async fn revoke(context: &Context, id: &str) -> ExitResult {
    let path = format!("/v1/tokens/{}", encode(id));
    let token = context.client()?.delete(&path).await?;
    context.print_object(&token, &["token_id", "kind", "session"])
}

fn print(context: &Context, token: &str, path: &Path) -> ExitResult {
    context.print_line(&json!({ "token": token, "path": path }), token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_until_revoked_or_expired() {
        let now = Timestamp::parse("2026-03-31T12:00:00Z").expect("a time");
        let good = json!({ "expires_at": "2026-03-31T12:00:01Z" });
        assert!(is_good(&good, now));
        assert!(!is_good(&json!({ "expires_at": "2026-03-31T12:00:00Z" }), now));
        let revoked =
            json!({ "expires_at": "2026-04-01T12:00:00Z", "revoked_at": "2026-03-31T11:00:00Z" });
        assert!(!is_good(&revoked, now));
    }
}
