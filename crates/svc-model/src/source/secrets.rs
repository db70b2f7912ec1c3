//! The secrets of a server's entry: variables that are filled in, how their values are hidden, and
//! where they may go. A secret that was set for one destination is given to no other, whatever
//! entry bears the server's name.

use std::{borrow::Cow, fmt};

use url::Url;

use super::{SourceEntry, SourceTransport};

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

    /// The text without the secrets, both as they are and as JSON escapes them.
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.0 {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), "***"));
            }
            let written = serde_json::to_string(secret).unwrap_or_default();
            let inner = written.trim_matches('"');
            if inner != secret && !inner.is_empty() && text.contains(inner) {
                text = Cow::Owned(text.replace(inner, "***"));
            }
        }
        text
    }
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
