//! A setting with its origin, the sources of a setting in their precedence, and parsers of values.

use std::cell::RefCell;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::{Deref, RangeInclusive};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use svc_model::hook::HookClient;
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::file::each;
use super::{ConfigError, Env, FileConfig, Flags};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub origin: Origin,
}

/// Where a value came from, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    Flag,
    Env,
    File,
    Default,
}

pub fn hook_client(name: &str) -> Result<HookClient, String> {
    HookClient::parse(name)
        .ok_or_else(|| format!("`{name}` is not claude, codex, gemini or opencode"))
}

/// One line of `svc config show`.
#[derive(Debug, Clone, Serialize)]
pub struct ConfigRow {
    /// The key as written in the file, dotted.
    pub key: &'static str,
    pub value: Value,
    pub origin: Origin,
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::Env => "env",
            Self::File => "file",
            Self::Default => "default",
        })
    }
}

/// The value of a key in its sources, if one has it, before the default is known.
pub(super) struct GivenValue<'a, T> {
    key: &'static str,
    value: Option<T>,
    origin: Origin,
    rows: &'a RefCell<Vec<ConfigRow>>,
}

impl<T> GivenValue<'_, T> {
    /// The setting that `value` makes of this, with `show` of it in the row of `svc config show`.
    pub(super) fn shown_as<U>(
        self,
        value: impl FnOnce(Option<T>) -> U,
        show: impl FnOnce(&U) -> Value,
    ) -> Setting<U> {
        let Self { key, origin, rows, value: given } = self;
        let setting = Setting { value: value(given), origin };
        rows.borrow_mut().push(ConfigRow { key, value: show(&setting.value), origin });
        setting
    }

    /// As [`Self::or`], for a value that the row shows in another form.
    pub(super) fn or_shown_as(self, default: T, show: impl FnOnce(&T) -> Value) -> Setting<T> {
        self.shown_as(|given| given.unwrap_or(default), show)
    }
}

impl<T: Serialize> GivenValue<'_, T> {
    pub(super) fn or(self, default: T) -> Setting<T> {
        self.or_shown_as(default, |value| json!(value))
    }

    pub(super) fn or_default(self) -> Setting<T>
    where
        T: Default,
    {
        self.or(T::default())
    }

    /// The setting of a key without a default.
    pub(super) fn optional(self) -> Setting<Option<T>> {
        self.shown_as(|given| given, |value| json!(value))
    }
}

/// The sources of a key. The strongest one sets the value, but all are validated.
pub(super) struct SettingSources<'a> {
    env: &'a Env,
    path: &'a Path,
    flags: Value,
    file: &'a FileConfig,
    /// The rows of the settings so far, for `svc config show`.
    pub(super) rows: RefCell<Vec<ConfigRow>>,
}

impl<'a> SettingSources<'a> {
    pub(super) fn new(env: &'a Env, path: &'a Path, flags: &Flags, file: &'a FileConfig) -> Self {
        Self { env, path, flags: json!(flags), file, rows: RefCell::default() }
    }

    /// The flag of a key, if it was given.
    fn flag(&self, key: &str) -> Option<Value> {
        let flag = self.flags.get(key.replace('.', "_"))?;
        let is_absent = *flag == json!([]) || *flag == json!(false) || flag.is_null();
        (!is_absent).then(|| flag.clone())
    }

    fn value<R: DeserializeOwned, T>(
        &self,
        key: &'static str,
        from_env: impl Fn(&str) -> Result<R, String>,
        check: impl Fn(R) -> Result<T, String>,
    ) -> Result<GivenValue<'_, T>, ConfigError> {
        let read = |value: Option<Value>, origin| {
            let read = value.map(serde_json::from_value).transpose();
            read.map_err(|error| self.invalid(key, origin, &error.to_string()))
        };
        let flag = read(self.flag(key), Origin::Flag)?;
        let file = read(self.file.value(key).cloned(), Origin::File)?;
        self.strongest(key, (flag, file), from_env, check)
    }

    fn strongest<R, T>(
        &self,
        key: &'static str,
        (flag, file): (Option<R>, Option<R>),
        from_env: impl Fn(&str) -> Result<R, String>,
        check: impl Fn(R) -> Result<T, String>,
    ) -> Result<GivenValue<'_, T>, ConfigError> {
        let name = env_name(key);
        let env = self.env.text(&name)?;
        let (mut value, mut strongest) = (None, Origin::Default);
        let given = [
            (Origin::Flag, flag.map(Ok)),
            (Origin::Env, env.map(from_env)),
            (Origin::File, file.map(Ok)),
        ];
        for (origin, raw) in given {
            let Some(raw) = raw else { continue };
            let checked =
                raw.and_then(&check).map_err(|problem| self.invalid(key, origin, &problem))?;
            if value.is_none() {
                (value, strongest) = (Some(checked), origin);
            }
        }
        Ok(GivenValue { key, value, origin: strongest, rows: &self.rows })
    }

    pub(super) fn list<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<GivenValue<'_, Vec<T>>, ConfigError> {
        self.value(key, |text| Ok(comma(text)), |items: Vec<String>| each(&items, &parse))
    }

    pub(super) fn text<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<GivenValue<'_, T>, ConfigError> {
        self.value(key, |text| Ok(text.to_owned()), |text: String| parse(&text))
    }

    /// The result is absolute. A relative path in the file begins at the file's folder.
    pub(super) fn path(
        &self,
        key: &'static str,
        flag: Option<&PathBuf>,
    ) -> Result<GivenValue<'_, PathBuf>, ConfigError> {
        let absolute = |path: PathBuf| std::path::absolute(path).map_err(|it| it.to_string());
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let written = self.file.value(key).and_then(Value::as_str).map(|path| folder.join(path));
        self.strongest(key, (flag.cloned(), written), |text| Ok(PathBuf::from(text)), absolute)
    }

    pub(super) fn boolean(&self, key: &'static str) -> Result<GivenValue<'_, bool>, ConfigError> {
        self.value(key, boolean, Ok)
    }

    /// Parses a whole number and validates it.
    pub(super) fn checked<T: FromStr + DeserializeOwned>(
        &self,
        key: &'static str,
        check: impl Fn(T) -> Result<T, String>,
    ) -> Result<GivenValue<'_, T>, ConfigError> {
        self.value(key, whole_number, check)
    }

    /// A whole number above 0.
    pub(super) fn number(&self, key: &'static str) -> Result<GivenValue<'_, u64>, ConfigError> {
        // The largest integer that a column of the database can hold.
        self.checked(key, within(1..=i64::MAX.cast_unsigned()))
    }

    fn invalid(&self, key: &str, origin: Origin, problem: &str) -> ConfigError {
        let (source_name, what) = match origin {
            Origin::Flag => (format!("--{}:", key.replace(['_', '.'], "-")), "flag"),
            Origin::Env => (format!("environment variable {}:", env_name(key)), "variable"),
            Origin::File | Origin::Default => {
                (format!("{}, key `{key}`:", self.path.display()), "file")
            }
        };
        let advice = format!("correct the {what}");
        ConfigError::Invalid { source_name, problem: problem.to_owned(), advice }
    }
}

fn env_name(key: &str) -> String {
    format!("SVC_{}", key.replace('.', "_").to_ascii_uppercase())
}

pub const DEFAULT_LISTEN: &str = "127.0.0.1:6334";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    Text,
    /// One JSON object per record.
    Json,
}

/// Parses one of the words of an enum's JSON form; the error lists `words`.
pub(super) fn word<T: DeserializeOwned>(words: &str) -> impl Fn(&str) -> Result<T, String> {
    move |text| serde_json::from_value(json!(text)).map_err(|_| format!("`{text}` is not {words}"))
}

fn whole_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is not a whole number"))
}

/// Which idle sessions a message may wake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeMode {
    Terminal,
    /// Also sessions that a program keeps open. Such a program must end its sessions itself.
    Always,
    Never,
}

pub(super) fn default_listen() -> SocketAddr {
    listen(DEFAULT_LISTEN).expect("the default address is well formed")
}

/// The base URL of a registry, with trailing slashes removed.
pub(super) fn url(text: &str) -> Result<String, String> {
    let url = text.trim_end_matches('/');
    let is_url = url.starts_with("https://") || url.starts_with("http://");
    if is_url { Ok(url.to_owned()) } else { Err(format!("`{text}` is not a URL")) }
}

/// An address to listen on: `127.0.0.1:6334`, `[::1]:6334`, `localhost:6334` (IPv4), or `:6334`
/// (all addresses). Port 0 lets the system choose.
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

/// A name of one word, as it occurs in lists and after other names.
pub(super) fn machine_name(text: &str) -> Result<String, String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if text.is_empty() || text.len() > 63 || !text.chars().all(is_part) {
        return Err("must be one word of at most 63 letters, digits and -._".to_owned());
    }
    Ok(text.to_owned())
}

/// A host name as in a `Host` header, with or without a port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{text}` is not a host name, such as svc.example.com"));
    }
    Ok(text.to_ascii_lowercase())
}

/// A user's name or number. The daemon checks at its start that the user exists.
pub(super) fn user(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control()) {
        return Err(format!("`{text}` is not the name of a user, such as www-data"));
    }
    Ok(text.to_owned())
}

/// An origin as in an `Origin` header: scheme, host and perhaps a port, but no path.
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
    // The filter would take an unknown word as a module's name, and then log nothing else.
    let is_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    let is_filter = text.parse::<Targets>().is_ok() && text.split(',').all(is_level);
    if is_filter {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is not a log level (error, warn, info, debug, trace) or a list such as svc=debug,warn"
    ))
}

/// A time such as `30m`, `90s`, `500ms`, `1h`, or `0`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time such as 90s, 30m or 1h");
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

/// Formats a time as [`duration`] parses it, in the largest unit that divides it.
pub(super) fn shown_duration(time: Duration) -> String {
    let millis = time.as_millis();
    let units = [("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000)];
    let fitting = units.into_iter().find(|(_, unit)| millis > 0 && millis.is_multiple_of(*unit));
    let (name, unit) = fitting.unwrap_or(("ms", 1));
    format!("{}{name}", millis / unit)
}

fn boolean(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

/// A check that a number is in a range.
pub(super) fn within<T: PartialOrd + fmt::Display>(
    range: RangeInclusive<T>,
) -> impl Fn(T) -> Result<T, String> {
    move |number| {
        let problem = || format!("must be from {} to {}", range.start(), range.end());
        if range.contains(&number) { Ok(number) } else { Err(problem()) }
    }
}

/// Splits at commas and drops blank items.
fn comma(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}
