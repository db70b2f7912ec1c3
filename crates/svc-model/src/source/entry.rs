//! The configuration entry of one server.

use std::{collections::BTreeMap, num::NonZeroU16, time::Duration};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::parse_word;

/// Name of the built-in server.
pub const BUILTIN_CORE: &str = "core";

const TIMEOUT_MS: u64 = 60_000;
const STARTUP_TIMEOUT_MS: u64 = 30_000;

/// A server as it is configured. Variables in it are not filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceEntry {
    pub transport: SourceTransport,
    pub enabled: bool,
    /// Maximum time of one call.
    pub timeout: Duration,
    /// Maximum time from the start to the lists of tools.
    pub startup_timeout: Duration,
    pub sharing: Sharing,
    /// Globs of the tools that are shown; `None` shows all.
    pub tools: Option<Vec<String>>,
    pub exclude_tools: Vec<String>,
    /// Globs of tools in the short list.
    pub listed: Vec<String>,
    /// Variables of the daemon's environment that a child gets.
    pub env_inherit: Vec<String>,
    pub description: Option<String>,
    /// The scope that a caller needs.
    pub scope: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceTransport {
    Stdio {
        command: String,
        args: Vec<String>,
        env: BTreeMap<String, String>,
        cwd: Option<String>,
    },
    Remote {
        kind: RemoteKind,
        url: String,
        /// Headers of each request.
        headers: BTreeMap<String, String>,
        /// A shell command that prints further headers.
        headers_helper: Option<String>,
        oauth: OauthChoice,
    },
    Builtin {
        name: String,
        /// Folders that paths may lead into; empty: the caller's own.
        roots: Vec<String>,
        /// Whether pages at private addresses may be fetched.
        allow_private: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OauthChoice {
    /// A client that is registered already.
    pub client_id: Option<String>,
    /// Separated by spaces.
    pub scopes: Option<String>,
    pub callback_port: Option<u16>,
    /// Address of the document that describes the client.
    pub client_metadata_url: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteKind {
    Http,
    /// HTTP with server-sent events, as of 2024-11-05.
    Sse,
}

/// Who shares one instance of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Everybody.
    Shared,
    /// The callers of one project.
    Project,
    /// Nobody: each session has its own.
    Session,
}

impl Sharing {
    /// Of an entry that does not say it.
    const fn usual(is_stdio: bool) -> Self {
        if is_stdio { Self::Project } else { Self::Shared }
    }
}

/// Why an entry cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if path.is_empty() { String::new() } else { format!("{path}: ") })]
pub struct SourceProblem {
    /// The field, dotted; empty for the entry itself.
    pub path: String,
    pub reason: String,
}

impl SourceProblem {
    pub fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}

const KNOWN: &str = "type command args env cwd url headers headersHelper oauth name enabled timeout \
    startup_timeout sharing tools exclude_tools listed env_inherit description scope roots \
    allow_private";

impl SourceEntry {
    /// Parses an entry, with warnings. `trusted`: it stands in the person's own configuration,
    /// where variables that load code into a program are allowed.
    pub fn parse(value: &Value, trusted: bool) -> Result<(Self, Vec<String>), SourceProblem> {
        let Value::Object(object) = value else {
            return Err(SourceProblem::new("", "must be an object"));
        };
        let fields = Fields(object);
        let mut warnings = Vec::new();
        for name in object.keys().filter(|name| !KNOWN.split(' ').any(|known| known == *name)) {
            warnings.push(format!("unknown field {name:?} is ignored"));
        }
        let transport = transport(&fields, trusted, &mut warnings)?;
        let (used, unused) = match &transport {
            SourceTransport::Stdio { .. } => ("command", "url"),
            SourceTransport::Remote { .. } => ("url", "command"),
            SourceTransport::Builtin { .. } => ("", ""),
        };
        if fields.get(unused).is_some() {
            warnings.push(format!("{unused} is ignored: the entry has a {used}, which counts"));
        }
        let usual = Sharing::usual(matches!(transport, SourceTransport::Stdio { .. }));
        let sharing = match fields.text("sharing")? {
            None => usual,
            Some(word) => parse_word(&word)
                .map_err(|_| SourceProblem::new("sharing", "must be shared, project or session"))?,
        };
        let inherited = fields.texts("env_inherit")?.unwrap_or_default();
        let (env_inherit, barred): (Vec<_>, Vec<_>) =
            inherited.into_iter().partition(|name| trusted || !loads_code(name));
        for name in barred {
            warnings.push(format!("env_inherit: {name} is allowed in config.toml only; ignored"));
        }
        let entry = Self {
            transport,
            enabled: fields.flag("enabled")?.unwrap_or(true),
            timeout: fields.millis("timeout", TIMEOUT_MS)?,
            startup_timeout: fields.millis("startup_timeout", STARTUP_TIMEOUT_MS)?,
            sharing,
            tools: fields.texts("tools")?,
            exclude_tools: fields.texts("exclude_tools")?.unwrap_or_default(),
            listed: fields.texts("listed")?.unwrap_or_default(),
            env_inherit,
            description: fields.text("description")?,
            scope: fields.text("scope")?,
        };
        Ok((entry, warnings))
    }

    /// Whether a tool with this name of the server's own is shown.
    pub fn shows(&self, tool: &str) -> bool {
        let any = |globs: &[String]| globs.iter().any(|glob| matches_glob(glob, tool));
        self.tools.as_deref().is_none_or(any) && !any(&self.exclude_tools)
    }

    /// The transport and the sharing of an entry that may be invalid: as far as it says them, else
    /// those of an entry that says nothing.
    pub fn outline(written: &Value) -> (&'static str, Sharing) {
        let text = |name: &str| written.get(name).and_then(Value::as_str);
        let transport = match text("type") {
            Some("builtin") => "builtin",
            Some("http" | "streamable-http") => "http",
            Some("sse") => "sse",
            Some("stdio") => "stdio",
            _ if text("url").is_some() && text("command").is_none() => "http",
            _ => "stdio",
        };
        let sharing = text("sharing").and_then(|word| parse_word(word).ok());
        (transport, sharing.unwrap_or_else(|| Sharing::usual(transport == "stdio")))
    }

    pub fn transport_name(&self) -> &'static str {
        match &self.transport {
            SourceTransport::Stdio { .. } => "stdio",
            SourceTransport::Remote { kind: RemoteKind::Http, .. } => "http",
            SourceTransport::Remote { kind: RemoteKind::Sse, .. } => "sse",
            SourceTransport::Builtin { .. } => "builtin",
        }
    }
}

fn transport(
    fields: &Fields<'_>,
    trusted: bool,
    warnings: &mut Vec<String>,
) -> Result<SourceTransport, SourceProblem> {
    let kind = fields.text("type")?;
    let has = |name: &str| fields.0.contains_key(name);
    match kind.as_deref() {
        Some("stdio") => stdio(fields, trusted, warnings),
        Some("http" | "streamable-http") => remote(fields, RemoteKind::Http),
        Some("sse") => remote(fields, RemoteKind::Sse),
        Some("builtin") if !trusted => Err(SourceProblem::new(
            "type",
            "builtin is allowed in config.toml only: [sources.core] turns the built-in server on",
        )),
        Some("builtin") => {
            let name = fields.required("name")?;
            if name != BUILTIN_CORE {
                return Err(SourceProblem::new(
                    "name",
                    format!("there is no built-in {name:?}; there is `core`"),
                ));
            }
            let roots = fields.texts("roots")?.unwrap_or_default();
            if roots.iter().any(|root| !root.starts_with('/')) {
                return Err(SourceProblem::new("roots", "must be absolute paths"));
            }
            let allow_private = fields.flag("allow_private")?.unwrap_or(false);
            Ok(SourceTransport::Builtin { name, roots, allow_private })
        }
        Some("ws") => Err(SourceProblem::new("type", "WebSocket is no transport of MCP: use http")),
        Some("sdk") => Err(SourceProblem::new(
            "type",
            "sdk servers run inside another program and cannot be shared",
        )),
        Some(other) => Err(SourceProblem::new(
            "type",
            format!("{other:?} is none of stdio, http, streamable-http, sse, builtin"),
        )),
        None if has("command") => stdio(fields, trusted, warnings),
        None if has("url") => {
            warnings.push(
                "url without type: taken for http; say type = \"http\" or \"sse\"".to_owned(),
            );
            remote(fields, RemoteKind::Http)
        }
        None => Err(SourceProblem::new("", "needs a command or a url")),
    }
}

fn stdio(
    fields: &Fields<'_>,
    trusted: bool,
    warnings: &mut Vec<String>,
) -> Result<SourceTransport, SourceProblem> {
    let mut env = fields.map("env")?;
    if !trusted {
        env.retain(|name, _| {
            let keep = !loads_code(name);
            if !keep {
                warnings.push(format!("env.{name} is allowed in config.toml only; ignored"));
            }
            keep
        });
    }
    if let Some(name) = env.keys().find(|name| name.is_empty() || name.contains(['=', '\0'])) {
        return Err(SourceProblem::new(format!("env.{name}"), "is no name of a variable"));
    }
    Ok(SourceTransport::Stdio {
        command: fields.required("command")?,
        args: fields.texts("args")?.unwrap_or_default(),
        env,
        cwd: fields.text("cwd")?,
    })
}

fn remote(fields: &Fields<'_>, kind: RemoteKind) -> Result<SourceTransport, SourceProblem> {
    Ok(SourceTransport::Remote {
        kind,
        url: fields.required("url")?,
        headers: fields.map("headers")?,
        headers_helper: fields.text("headersHelper")?,
        oauth: oauth(fields)?,
    })
}

fn oauth(fields: &Fields<'_>) -> Result<OauthChoice, SourceProblem> {
    let Some(object) = fields.read("oauth", "must be an object")? else {
        return Ok(OauthChoice::default());
    };
    let own = Fields(&object);
    let within = |problem: SourceProblem| {
        SourceProblem::new(format!("oauth.{}", problem.path), problem.reason)
    };
    let scopes = match own.get("scopes") {
        Some(Value::Array(_)) => own.texts("scopes").map_err(within)?.map(|all| all.join(" ")),
        _ => own.text("scopes").map_err(|_| {
            SourceProblem::new("oauth.scopes", "must be a string, or a list of strings")
        })?,
    };
    let port = own.read::<NonZeroU16>("callbackPort", "must be from 1 to 65535").map_err(within)?;
    Ok(OauthChoice {
        client_id: own.text("clientId").map_err(within)?,
        scopes: scopes.filter(|scopes| !scopes.trim().is_empty()),
        callback_port: port.map(NonZeroU16::get),
        client_metadata_url: own.text("clientMetadataUrl").map_err(within)?,
    })
}

/// Whether a variable loads code into any program.
pub(crate) fn loads_code(name: &str) -> bool {
    let prefixes = ["LD_", "DYLD_", "BASH_FUNC_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || matches!(name, "NODE_OPTIONS" | "PYTHONPATH")
}

/// Whether a name matches a glob, in which `*` is any text and `?` one character.
pub fn matches_glob(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while of < name.len() {
        if at < glob.len() && glob[at] == '*' {
            retry = Some((at, of));
            at += 1;
        } else if at < glob.len() && (glob[at] == '?' || glob[at] == name[of]) {
            at += 1;
            of += 1;
        } else if let Some((star, taken)) = retry {
            at = star + 1;
            of = taken + 1;
            retry = Some((star, of));
        } else {
            return false;
        }
    }
    glob[at..].iter().all(|c| *c == '*')
}

struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// The value of a field; `form` is the reason for one of another form.
    fn read<T: DeserializeOwned>(
        &self,
        name: &str,
        form: &str,
    ) -> Result<Option<T>, SourceProblem> {
        let read =
            |value: &Value| T::deserialize(value).map_err(|_| SourceProblem::new(name, form));
        self.get(name).map(read).transpose()
    }

    fn text(&self, name: &str) -> Result<Option<String>, SourceProblem> {
        let text: Option<String> = self.read(name, "must be a string")?;
        if text.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err(SourceProblem::new(name, "must not hold a NUL character"));
        }
        Ok(text)
    }

    fn required(&self, name: &str) -> Result<String, SourceProblem> {
        match self.text(name)? {
            Some(text) if !text.trim().is_empty() => Ok(text),
            Some(_) => Err(SourceProblem::new(name, "is empty")),
            None => Err(SourceProblem::new(name, "is missing")),
        }
    }

    fn texts(&self, name: &str) -> Result<Option<Vec<String>>, SourceProblem> {
        self.read(name, "must be a list of strings")
    }

    fn map(&self, name: &str) -> Result<BTreeMap<String, String>, SourceProblem> {
        let object: Option<Map<String, Value>> = self.read(name, "must be an object of strings")?;
        let pairs = object.unwrap_or_default().into_iter().map(|(key, value)| match value {
            Value::String(text) => Ok((key, text)),
            Value::Number(_) | Value::Bool(_) => Ok((key, value.to_string())),
            _ => Err(SourceProblem::new(format!("{name}.{key}"), "must be a string")),
        });
        pairs.collect()
    }

    fn flag(&self, name: &str) -> Result<Option<bool>, SourceProblem> {
        self.read(name, "must be true or false")
    }

    fn millis(&self, name: &str, default: u64) -> Result<Duration, SourceProblem> {
        const FORM: &str = "must be from 1 to 86400000 (milliseconds)";
        let millis = self.read(name, FORM)?.unwrap_or(default);
        if !(1..=86_400_000).contains(&millis) {
            return Err(SourceProblem::new(name, FORM));
        }
        Ok(Duration::from_millis(millis))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        Sharing::{Project, Session, Shared},
        *,
    };

    #[test]
    fn entries_by_table() {
        for (entry, transport, sharing, warnings) in [
            (json!({ "command": "x" }), "stdio", Project, 0),
            (json!({ "type": "stdio", "command": "x", "sharing": "session" }), "stdio", Session, 0),
            (json!({ "url": "http://h" }), "http", Shared, 1),
            (json!({ "type": "streamable-http", "url": "http://h" }), "http", Shared, 0),
            (json!({ "type": "sse", "url": "http://h", "colour": 1 }), "sse", Shared, 1),
            (json!({ "command": "x", "url": "http://h" }), "stdio", Project, 1),
            (json!({ "type": "http", "command": "x", "url": "http://h" }), "http", Shared, 1),
            (json!({ "command": "x", "env": { "LD_PRELOAD": "y", "A": 1 } }), "stdio", Project, 1),
        ] {
            let (parsed, told) = SourceEntry::parse(&entry, false).expect("is good");
            assert_eq!((parsed.transport_name(), parsed.sharing), (transport, sharing), "{entry}");
            assert_eq!(told.len(), warnings, "{entry}: {told:?}");
            assert_eq!(SourceEntry::outline(&entry), (transport, sharing), "{entry}");
        }
        for (entry, outline) in [
            (json!(3), ("stdio", Project)),
            (json!({ "command": 3, "sharing": "shared" }), ("stdio", Shared)),
            (json!({ "type": "ws", "url": "ws://h" }), ("http", Shared)),
            (json!({ "type": "sse", "sharing": "all" }), ("sse", Shared)),
            (json!({ "type": "builtin", "name": "x" }), ("builtin", Shared)),
        ] {
            SourceEntry::parse(&entry, true).expect_err("is invalid");
            assert_eq!(SourceEntry::outline(&entry), outline, "{entry}");
        }
        let core = json!({ "type": "builtin", "name": "core", "roots": ["/"] });
        SourceEntry::parse(&core, true).expect("the person's own file turns it on");
        assert_eq!(SourceEntry::parse(&core, false).expect_err("others do not").path, "type");
        for (entry, path) in [
            (json!(3), ""),
            (json!({}), ""),
            (json!({ "command": 3 }), "command"),
            (json!({ "command": " " }), "command"),
            (json!({ "command": "x", "args": [1] }), "args"),
            (json!({ "command": "x", "env": { "A": [] } }), "env.A"),
            (json!({ "command": "x", "timeout": 0 }), "timeout"),
            (json!({ "command": "x", "sharing": "all" }), "sharing"),
            (json!({ "type": "ws", "url": "ws://h" }), "type"),
            (json!({ "type": "sdk" }), "type"),
            (json!({ "type": "http" }), "url"),
            (json!({ "url": "http://h", "oauth": 1 }), "oauth"),
            (json!({ "url": "http://h", "oauth": { "clientId": 1 } }), "oauth.clientId"),
            (json!({ "url": "http://h", "oauth": { "scopes": [1] } }), "oauth.scopes"),
            (
                json!({ "url": "http://h", "oauth": { "callbackPort": 70000 } }),
                "oauth.callbackPort",
            ),
            (json!({ "type": "builtin", "name": "shell" }), "name"),
        ] {
            assert_eq!(SourceEntry::parse(&entry, true).expect_err("is bad").path, path, "{entry}");
        }
    }

    #[test]
    fn what_loads_code_is_taken_from_the_persons_own_file_alone() {
        let entry = json!({ "command": "x", "env": { "NODE_OPTIONS": "--require y" }, "env_inherit": ["LD_PRELOAD"] });
        let env = |trusted| match SourceEntry::parse(&entry, trusted).expect("is good").0 {
            SourceEntry { transport: SourceTransport::Stdio { env, .. }, env_inherit, .. } => {
                (env.len(), env_inherit.len())
            }
            _ => unreachable!("it has a command"),
        };
        assert_eq!((env(true), env(false)), ((1, 1), (0, 0)));
    }

    #[test]
    fn tool_globs_by_table() {
        for (glob, name, expected) in [
            ("*", "", true),
            ("read_*", "read_file", true),
            ("read_*", "write", false),
            ("*file*", "a_file_b", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "a", false),
        ] {
            assert_eq!(matches_glob(glob, name), expected, "{glob} {name}");
        }
    }
}
