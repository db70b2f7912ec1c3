//! What a server answers to who may not (RFC 6750, RFC 9728).

use std::collections::HashMap;

use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// A challenge of the scheme `Bearer`, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuthChallenge {
    params: Option<HashMap<String, String>>,
}

impl AuthChallenge {
    /// The challenge of a response.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(WWW_AUTHENTICATE).iter();
        let params = values.filter_map(|value| value.to_str().ok()).find_map(bearer_params);
        Self { params }
    }

    fn param(&self, name: &str) -> Option<&str> {
        self.params.as_ref()?.get(name).map(String::as_str)
    }

    /// Whether a login may help.
    pub(crate) fn is_auth(&self) -> bool {
        self.params.is_some()
    }

    /// Whether the token is good, and not for this.
    pub(crate) fn lacks_scope(&self) -> bool {
        self.param("error") == Some("insufficient_scope")
    }

    /// The scopes that are wanted.
    pub(super) fn scope(&self) -> Option<&str> {
        self.param("scope").filter(|scope| !scope.trim().is_empty())
    }

    /// Where the server's metadata are.
    pub(super) fn resource_metadata(&self) -> Option<&str> {
        self.param("resource_metadata")
    }
}

/// The parameters of the first `Bearer` challenge of a header; names are in lower case.
fn bearer_params(text: &str) -> Option<HashMap<String, String>> {
    let mut params = None;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end =
            rest.find(|c: char| c.is_whitespace() || c == '=' || c == ',').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let after = after.trim_start();
        if let Some(value) = after.strip_prefix('=').filter(|_| !word.is_empty()) {
            let (value, more) = param_value(value.trim_start());
            if let Some(params) = &mut params {
                let params: &mut HashMap<String, String> = params;
                params.entry(word.to_ascii_lowercase()).or_insert(value);
            }
            rest = more;
        } else {
            // A scheme begins.
            if params.is_some() && !word.is_empty() {
                break;
            }
            if word.eq_ignore_ascii_case("bearer") {
                params = Some(HashMap::new());
            }
            // What stands before the first word, such as `=`, belongs to nothing.
            rest = after.trim_start_matches('=');
        }
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
    }
    params
}

fn param_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if is_escaped => {
                value.push(c);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            _ => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn challenges_by_table() {
        for (text, scope, metadata, lacks, is_auth) in [
            ("Bearer", None, None, false, true),
            ("bearer realm=\"x\"", None, None, false, true),
            (
                "Bearer error=\"insufficient_scope\", scope=\"a b\", resource_metadata=\"https://h/m?a=1,2\"",
                Some("a b"),
                Some("https://h/m?a=1,2"),
                true,
                true,
            ),
            ("Basic realm=\"a, Bearer b\", Bearer scope=one", Some("one"), None, false, true),
            (
                "Bearer scope=\"a \\\"b\\\"\"  , Basic realm=\"x\"",
                Some("a \"b\""),
                None,
                false,
                true,
            ),
            ("Bearer scope=\"open", Some("open"), None, false, true),
            ("Bearer scope=\"\"", None, None, false, true),
            ("Basic realm=\"x\"", None, None, false, false),
            ("", None, None, false, false),
            ("= ,,\"", None, None, false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_str(text).expect("is a value"));
            let challenge = AuthChallenge::of(&headers);
            assert_eq!(
                (
                    challenge.scope(),
                    challenge.resource_metadata(),
                    challenge.lacks_scope(),
                    challenge.is_auth()
                ),
                (scope, metadata, lacks, is_auth),
                "{text}"
            );
        }
    }
}
