//! Variables in entries, and hiding what they hold.

use std::borrow::Cow;

/// A variable that has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingVariable(pub String);

/// Fills in `${VAR}` and `${VAR:-default}`; `$${` is a literal `${`. Values that were filled in go
/// to `used`.
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

/// Shorter values are everywhere by chance, and tell nothing.
const SHORTEST: usize = 4;

impl Redactor {
    /// Hides these values, and the tokens behind `Bearer` and the like in them.
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
        // The longest first, so that no part of one stays.
        all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        all.dedup();
        Self(all)
    }

    /// Whether it hides this value.
    pub fn covers(&self, value: &str) -> bool {
        value.len() < SHORTEST || self.0.iter().any(|own| own == value)
    }

    /// One that hides these values too.
    #[must_use]
    pub fn with(&self, values: impl IntoIterator<Item = String>) -> Self {
        let also = Self::new(values);
        Self::new(self.0.iter().cloned().chain(also.0))
    }

    /// Whether it hides nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text without the secrets. They are found as they are and as JSON writes them.
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

#[cfg(test)]
mod tests {
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
}
