//! Child MCP servers: the configuration entry of one (`entry`), and here its state, names that
//! every client accepts, and the secrets of its entry.
//!
//! Of secrets: variables that are filled in, how their values are hidden, and where they may go. A
//! secret that was set for one destination is given to no other, whatever entry bears the server's
//! name.

mod entry;

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::Serialize;
use serde_with::skip_serializing_none;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::{Timestamp, json::code_unit, quote::is_invisible, words::words};

pub(crate) use entry::loads_code;
pub use entry::{
    BUILTIN_CORE, OauthChoice, RemoteKind, Sharing, SourceEntry, SourceProblem, SourceTransport,
    matches_glob,
};

words! {
    /// What a server is doing.
    pub enum SourceState {
        /// It is about to be started.
        Pending = "pending",
        /// It has been started and has not given its lists yet.
        Connecting = "connecting",
        /// It works.
        Connected = "connected",
        /// Somebody has to log in.
        NeedsAuth = "needs_auth",
        /// It never worked, and nothing more is tried by itself.
        Failed = "failed",
        /// Its entry cannot be used.
        Misconfigured = "misconfigured",
        /// A person has turned it off.
        Disabled = "disabled",
        /// Its file waits for a person's approval.
        PendingApproval = "pending_approval",
        /// It ended, and is started again later.
        BackingOff = "backing_off",
        /// A stronger entry has its name.
        Hidden = "hidden",
    }
}

impl SourceState {
    /// Whether a call may wait for it.
    pub const fn is_starting(self) -> bool {
        matches!(self, Self::Pending | Self::Connecting)
    }
}

/// A server as lists show it.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceView {
    /// Its name.
    pub name: String,
    /// Root of the project whose file names it.
    pub project: Option<String>,
    /// What it is doing.
    pub state: SourceState,
    /// Why, if it does not work.
    pub reason: Option<String>,
    /// What would help.
    pub next_action: Option<String>,
    /// How many starts have failed in a row.
    pub attempt: Option<u32>,
    /// When the next start is.
    pub next_at: Option<Timestamp>,
    /// `stdio`, `http`, `sse` or `builtin`.
    pub transport: String,
    /// Who shares one instance.
    pub sharing: Sharing,
    /// How many tools it shows.
    pub tools: usize,
    /// How many resources it has.
    pub resources: usize,
    /// How many prompts it has.
    pub prompts: usize,
    /// How many of its definitions (tools, resources, prompts) are not those that a person has
    /// approved. Of a project's server they wait; a person's own server shows them.
    #[serde(default, skip_serializing_if = "crate::json::is_default")]
    pub changed: usize,
    /// Its process.
    pub pid: Option<u32>,
    /// Further instances: those of projects and sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<SourceInstance>,
    /// What it runs or calls and what it is given, while its file waits for approval (operator).
    pub runs: Option<String>,
    /// The file that names it.
    pub from: String,
    /// The file whose entry of this name is used instead.
    pub hidden_by: Option<String>,
    /// What is odd about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
}

/// An instance of a server, of a project or a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SourceInstance {
    /// The project, or the session.
    pub key: String,
    /// Its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: SourceState,
}

/// Maximum starts of a server that has never worked.
pub const STARTS_BEFORE_FAILED: u32 = 6;

/// Maximum length of a server's name.
const SOURCE_NAME: usize = 32;
/// Maximum length of a tool's name, without the prefix of clients (`mcp__svc__`).
const TOOL_NAME: usize = 64 - 10;
/// Maximum description of a tool, in bytes.
const DESCRIPTION: usize = 2048;

fn normal(text: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    text.chars().map(|c| if keep(c) { c } else { '_' }).collect()
}

/// The name of a server as tools' names contain it.
pub fn source_name(text: &str) -> Result<String, SourceProblem> {
    let name = normal(text);
    let problem = if name.is_empty() {
        "the name is empty"
    } else if name.len() > SOURCE_NAME {
        "the name is longer than 32 characters"
    } else if name.contains("__") {
        "the name has `__`, which parts a server's name from its tool's"
    } else {
        return Ok(name);
    };
    Err(SourceProblem::new("", problem))
}

/// The name of a tool as clients see it, with a hash if the plain name is too long or is taken.
pub fn child_tool_name(source: &str, tool: &str, is_taken: &dyn Fn(&str) -> bool) -> String {
    let whole = format!("{source}__{tool}");
    let plain = normal(&whole.replace(is_invisible, ""));
    if plain.len() <= TOOL_NAME && !is_taken(&plain) {
        return plain;
    }
    let hash = hex::encode(&Sha256::digest(&whole)[..4]);
    let head: String = plain.chars().take(TOOL_NAME - 9).collect();
    format!("{head}_{hash}")
}

/// A description that is too long, cut at a word; `None` if it is not.
pub fn cut_description(text: &str) -> Option<String> {
    if text.len() <= DESCRIPTION {
        return None;
    }
    let mut end = DESCRIPTION - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = &text[..end];
    let cut = head.rfind(char::is_whitespace).filter(|at| *at > end / 2).unwrap_or(end);
    Some(format!("{}…", head[..cut].trim_end()))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingVariable(pub String);

/// Fills in `${VAR}` and `${VAR:-default}`; `$${` is a literal `${`. Values of variables are
/// appended to `used`.
pub fn expand(
    text: &str,
    value_of: &dyn Fn(&str) -> Option<String>,
    used: &mut Vec<String>,
) -> Result<String, MissingVariable> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        let inside = &rest[at + 2..];
        let Some(end) = inside.find('}') else { break };
        let (name, default) = match inside[..end].split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (&inside[..end], None),
        };
        if !is_name(name) {
            out.push_str(&rest[..at + 2]);
            rest = inside;
            continue;
        }
        out.push_str(&rest[..at]);
        match (value_of(name).filter(|value| default.is_none() || !value.is_empty()), default) {
            (Some(value), _) => {
                out.push_str(&value);
                used.push(value);
            }
            (None, Some(default)) => out.push_str(default),
            (None, None) => return Err(MissingVariable(name.to_owned())),
        }
        rest = &inside[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Replaces secrets in texts by `***`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redactor(Vec<String>);

/// Minimum length of a hidden value: shorter ones occur everywhere by chance, and reveal nothing.
const SHORTEST: usize = 4;

impl Redactor {
    /// Hides these values, and the tokens after `Bearer` and the like in them.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut all: Vec<String> = Vec::new();
        for value in values {
            for line in value.lines() {
                let words = line.split_once(' ').map(|(_, token)| token.to_owned());
                all.extend(words.into_iter().chain([line.to_owned()]));
            }
            all.push(value);
        }
        all.retain(|value| value.len() >= SHORTEST);
        // The longest first, so that no part of a secret remains.
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Self(all)
    }

    pub fn covers(&self, value: &str) -> bool {
        value.len() < SHORTEST || self.0.iter().any(|own| own == value)
    }

    /// A redactor that hides these values, too.
    #[must_use]
    pub fn with(&self, values: impl IntoIterator<Item = String>) -> Self {
        let also = Self::new(values);
        Self::new(self.0.iter().cloned().chain(also.0))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text without the secrets, both as they are and in every form that JSON allows.
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.0 {
            // First, so that no backslash is left before what replaces an escaped secret.
            if let Some(hidden) = without_escaped(&text, secret) {
                text = Cow::Owned(hidden);
            }
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), "***"));
            }
        }
        text
    }
}

/// The text without a secret of which any characters may be escapes of JSON: some programs escape
/// `/`, `<` and all that is not ASCII. `None` if it is not there.
fn without_escaped(text: &str, secret: &str) -> Option<String> {
    if !text.contains('\\') {
        return None;
    }
    let (mut hidden, mut copied, mut at) = (String::new(), 0, 0);
    while let Some((_, length)) = first_character(&text[at..]) {
        let end = secret.chars().try_fold(at, |at, expected| {
            let (found, length) = first_character(&text[at..])?;
            (found == expected).then_some(at + length)
        });
        if let Some(end) = end {
            hidden.push_str(&text[copied..at]);
            hidden.push_str("***");
            copied = end;
        }
        at = end.unwrap_or(at + length);
    }
    (copied > 0).then(|| hidden + &text[copied..])
}

/// The first character, which may be an escape of JSON, and its length in the text.
fn first_character(text: &str) -> Option<(char, usize)> {
    let first = text.chars().next()?;
    let escaped = text.as_bytes().get(1).filter(|_| first == '\\');
    Some(match escaped {
        Some(byte @ (b'"' | b'\\' | b'/')) => (char::from(*byte), 2),
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'n') => ('\n', 2),
        Some(b'r') => ('\r', 2),
        Some(b't') => ('\t', 2),
        Some(b'u') => {
            let units = [0, 6].into_iter().map_while(|at| code_unit(text.as_bytes(), at));
            match char::decode_utf16(units).next() {
                Some(Ok(character)) => (character, 6 * character.len_utf16()),
                _ => (first, 1),
            }
        }
        _ => (first, first.len_utf8()),
    })
}

const OWN: &str = "own";

/// Where the secrets of an entry go: the origin of a server at a URL, or the file that names a
/// program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretDestination(String);

impl SecretDestination {
    /// `file` is the project's or plugin's file with the entry; `None` for the person's own files.
    pub fn from_entry(entry: &SourceEntry, file: Option<&str>) -> Self {
        let file = file.unwrap_or(OWN);
        let SourceTransport::Remote { url, headers_helper, .. } = &entry.transport else {
            return Self(file.to_owned());
        };
        // A variable may hold any address, and a helper gets the URL with all variables filled in.
        let helper = headers_helper.as_ref().filter(|_| url.contains("${"));
        match (literal_origin(url), helper) {
            (Some(origin), None) => Self(origin),
            (_, None) => Self(format!("{file} {url}")),
            (_, Some(helper)) => Self(format!("{file} {url} {helper}")),
        }
    }

    pub fn named(id: &str) -> Self {
        Self(id.to_owned())
    }

    pub fn id(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, rest) = self.0.split_once(' ').unwrap_or((&self.0, ""));
        match (file, rest) {
            (OWN, "") => f.write_str("a program of your own configuration"),
            (OWN, url) => f.write_str(url),
            (file, "") if file.starts_with('/') => write!(f, "a program of {file}"),
            (_, _) => f.write_str(&self.0),
        }
    }
}

/// Scheme, host and port of a URL, if no variable is in them.
fn literal_origin(url: &str) -> Option<String> {
    let url = url.trim();
    let after = url.find("://")? + "://".len();
    let end = url[after..].find(['/', '\\', '?', '#']).map_or(url.len(), |at| after + at);
    let (head, _) = url.split_at(end);
    if head.contains("${") {
        return None;
    }
    let origin = Url::parse(head).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn server_names_by_table() {
        for (text, expected) in [
            ("github", Some("github")),
            ("a.b c", Some("a_b_c")),
            ("", None),
            ("a__b", None),
            ("é__", None),
            (&"x".repeat(32), Some(&*"x".repeat(32))),
            (&"x".repeat(33), None),
        ] {
            assert_eq!(source_name(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn names_of_tools_fit_and_are_stable() {
        let free = |_: &str| false;
        assert_eq!(child_tool_name("fs", "read_file", &free), "fs__read_file");
        assert_eq!(child_tool_name("fs", "a.b/c", &free), "fs__a_b_c");
        let fits = "x".repeat(50);
        assert_eq!(child_tool_name("fs", &fits, &free).len(), 54);
        let long = "x".repeat(51);
        let name = child_tool_name("fs", &long, &free);
        let hash = hex::encode(&Sha256::digest(format!("fs__{long}"))[..4]);
        assert_eq!(name.len(), 54);
        assert!(name.ends_with(&format!("_{hash}")), "{name}");
        let other = child_tool_name("fs", "a_b", &|name| name == "fs__a_b");
        assert!(other.starts_with("fs__a_b_") && other.len() == 16, "{other}");
    }

    #[test]
    fn descriptions_are_cut_at_a_word() {
        assert_eq!(cut_description("short"), None);
        let cut = cut_description(&"word ".repeat(600)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with("word…"), "{}", cut.len());
        let cut = cut_description(&"é".repeat(2000)).expect("is long");
        assert!(cut.len() <= 2048 && cut.ends_with('…'));
    }

    #[test]
    fn variables_by_table() {
        let value = |name: &str| match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        for (text, expected) in [
            ("plain", Ok("plain")),
            ("${A}/${A}", Ok("one/one")),
            ("${NO:-d}", Ok("d")),
            ("${EMPTY:-d}", Ok("d")),
            ("${EMPTY}", Ok("")),
            ("${NO:-a:-b}", Ok("a:-b")),
            ("${NO:-${A}", Ok("${A")),
            ("$A", Ok("$A")),
            ("$${A}", Ok("${A}")),
            ("x$${A}${A}", Ok("x${A}one")),
            ("${A", Ok("${A")),
            ("${1}", Ok("${1}")),
            ("${NO}", Err(MissingVariable("NO".to_owned()))),
        ] {
            let mut used = Vec::new();
            let filled = expand(text, &value, &mut used);
            assert_eq!(filled, expected.map(str::to_owned), "{text}");
        }
        let mut used = Vec::new();
        expand("${A}${NO:-d}", &value, &mut used).expect("has values");
        assert_eq!(used, ["one"]);
    }

    #[test]
    fn secrets_are_hidden_in_every_form() {
        let redactor = Redactor::new([
            "Bearer tok\"en1".to_owned(),
            "abc".to_owned(),
            "longer-abcd".to_owned(),
        ]);
        for (text, expected) in [
            ("x Bearer tok\"en1 y", "x *** y"),
            ("x tok\"en1 y", "x *** y"),
            (r#"{"h":"tok\"en1"}"#, r#"{"h":"***"}"#),
            ("abc", "abc"),
            ("nothing", "nothing"),
            ("longer-abcd", "***"),
        ] {
            assert_eq!(redactor.hide(text), expected, "{text}");
        }
        let redactor = Redactor::new(["a/b<é😀".to_owned(), "\\n/x\n".to_owned()]);
        for (text, expected) in [
            (r#"["a\/b<é😀"]"#, r#"["***"]"#),
            (r#"["a/b\u003c\u00E9\ud83d\uDE00","x\n"]"#, r#"["***","x\n"]"#),
            (r#"["\\n\/x\n"]"#, r#"["***"]"#),
            ("\\a/b<é😀", "\\***"),
            // Another text, half a character, and an escape without an end.
            (r#"["a\\/b<é😀"]"#, r#"["a\\/b<é😀"]"#),
            (r#"["a/b<é\ud83d"]"#, r#"["a/b<é\ud83d"]"#),
            (r"a/b<\u00e", r"a/b<\u00e"),
            ("a/b<é\\", "a/b<é\\"),
        ] {
            assert_eq!(redactor.hide(text), expected, "{text}");
        }
    }

    fn destination(entry: &Value, file: Option<&str>) -> String {
        let (entry, _) = SourceEntry::parse(entry, true).expect("is good");
        SecretDestination::from_entry(&entry, file).id().to_owned()
    }

    #[test]
    fn a_server_at_a_url_is_its_origin_and_a_program_its_file() {
        let file = Some("/p/.mcp.json");
        for (url, origin) in [
            ("https://a.example/mcp", "https://a.example"),
            (" https://A.example:443/other?x=${KEY}", "https://a.example"),
            ("https://a.example:8443/mcp", "https://a.example:8443"),
            ("http://a.example/mcp", "http://a.example"),
            ("https://a.example@b.example/mcp", "https://b.example"),
            ("https://b.example\\@a.example/", "https://b.example"),
        ] {
            let entry = json!({ "type": "http", "url": url });
            assert_eq!(destination(&entry, None), origin, "{url}");
            assert_eq!(destination(&entry, file), origin, "{url}");
        }
        // A variable may be any host, so the destination is the author and the text.
        for url in
            ["https://${HOST}/mcp", "https://a.example${X}/", "${URL}", "https:/a.example/${X}"]
        {
            let entry = json!({ "type": "http", "url": url });
            assert_eq!(destination(&entry, None), format!("own {url}"));
            assert_eq!(destination(&entry, file), format!("/p/.mcp.json {url}"));
        }
        let entry =
            json!({ "type": "http", "url": "https://a.example/${KEY}", "headersHelper": "./x" });
        assert_eq!(destination(&entry, file), "/p/.mcp.json https://a.example/${KEY} ./x");
        let entry = json!({ "command": "x" });
        assert_eq!(
            (destination(&entry, None), destination(&entry, file)),
            ("own".into(), "/p/.mcp.json".into())
        );
    }
}
