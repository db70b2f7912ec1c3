//! Parsers of the values.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::Serialize;
use tracing_subscriber::filter::{LevelFilter, Targets};

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:6334";

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// One readable line per record.
    Text,
    /// One JSON object per record.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is not auto, text or json")),
        }
    }
}

/// A whole number as a variable has it.
pub(super) fn whole_number(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number"))
}

/// Seconds that a prompt may be held up: clients end a hook that takes 10.
pub(super) fn cold_wait(seconds: u64) -> Result<u64, String> {
    if seconds <= 8 { Ok(seconds) } else { Err("must be from 0 to 8 seconds".to_owned()) }
}

/// The name of a scope: a word.
pub fn scope(text: &str) -> Result<String, String> {
    let is_word =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':');
    if text.is_empty() || !text.bytes().all(is_word) {
        return Err(format!("`{text}` is no scope: a word such as agents, approve or read_all"));
    }
    Ok(text.to_owned())
}

/// Which idle sessions a message wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeMode {
    /// Those at a terminal.
    Terminal,
    /// Also those that a program keeps open. It has to end them itself, as they wait for their waiter.
    Always,
    /// None.
    Never,
}

impl std::str::FromStr for WakeMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "terminal" => Ok(Self::Terminal),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("`{text}` is not terminal, always or never")),
        }
    }
}

/// An address to listen on: `127.0.0.1:6334`, `[::1]:6334`, `localhost:6334` (IPv4), or `:6334` (all addresses). Port 0 lets
/// the system choose.
pub(super) fn listen(text: &str) -> Result<SocketAddr, String> {
    let text = text.trim();
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    }
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse().map_err(|_| {
        format!("`{text}` is not an address with a port, such as 127.0.0.1:6334, [::1]:6334 or :6334 (all addresses)")
    })
}

/// A host name or address as it may stand in a `Host` header, with or without a port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{text}` is not a host name, such as svc.example.com"));
    }
    Ok(text.to_ascii_lowercase())
}

/// The name of a user of this machine, or its number. Whether there is such a user is known where the daemon starts.
pub(super) fn user(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{text}` is not the name of a user, such as www-data"));
    }
    Ok(text.to_owned())
}

/// An origin as it may stand in an `Origin` header: scheme, host and perhaps a port; no path.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let text = text.trim();
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest.map(host) {
        Some(Ok(_)) => Ok(text.to_ascii_lowercase()),
        _ => Err(format!("`{text}` is not an origin, such as https://svc.example.com")),
    }
}

/// Log filter directives, such as `info` or `svc=debug,warn`.
pub(super) fn log_level(text: &str) -> Result<String, String> {
    // The filter takes a single word that is no level for the name of a module, and then logs nothing of all others.
    let is_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    let is_filter = text.parse::<Targets>().is_ok() && text.split(',').all(is_level);
    if is_filter {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is not a log level (error, warn, info, debug, trace) or a list such as svc=debug,warn"
    ))
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

/// A number from 1 to the largest that a column of the database can hold.
pub(super) fn positive(number: u64) -> Result<u64, String> {
    if (1..=i64::MAX.cast_unsigned()).contains(&number) {
        return Ok(number);
    }
    Err(format!("{number} is not between 1 and {}", i64::MAX))
}

/// Turns in which replies of sessions may answer replies.
pub(super) fn ping_pong(turns: u32) -> Result<u32, String> {
    if turns <= 5 { Ok(turns) } else { Err(format!("{turns} is not between 0 and 5")) }
}

/// Applies a parser to each item.
pub(super) fn each<T>(
    items: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    items.iter().map(|item| parse(item)).collect()
}

/// The items of a comma-separated list; blank ones are left out.
pub(super) fn comma(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}
