//! Removes secrets of known formats from texts that other sessions are shown.

use std::borrow::Cow;

const MARK: &str = "[redacted]";

/// Prefixes of vendors' secrets, by the minimum number of characters that follow.
const SECRET_PREFIXES: [(usize, &[&str]); 4] = [
    (16, &["sk_live_", "rk_live_", "glpat-", "xoxb-", "xoxp-", "xoxa-"]),
    (20, &["sk-ant-", "sk-proj-", "sk-", "ya29."]),
    (30, &["ghp_", "gho_", "ghu_", "ghs_", "github_pat_", "AIza", "npm_", "hf_"]),
    (64, &["svc_"]),
];

/// Prefixes of AWS access key ids: four capitals, followed by sixteen characters.
const ACCESS_KEYS: [&str; 2] = ["AKIA", "ASIA"];

/// A text without secrets of known formats, otherwise unchanged.
pub fn redacted(text: &str) -> Cow<'_, str> {
    let mut spans = key_blocks(text);
    let mut after_bearer = false;
    for (start, word) in words(text) {
        let is_inside = spans.iter().any(|(from, to)| (*from..*to).contains(&start));
        if !is_inside && (is_secret(word) || after_bearer && word.len() >= 16) {
            spans.push((start, start + word.len()));
        }
        after_bearer = word.eq_ignore_ascii_case("bearer");
    }
    if spans.is_empty() {
        return Cow::Borrowed(text);
    }
    spans.sort_unstable();
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for (start, end) in spans {
        out.push_str(&text[at..start]);
        out.push_str(MARK);
        at = end;
    }
    out.push_str(&text[at..]);
    Cow::Owned(out)
}

/// Runs of characters that secrets consist of, each with its offset.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut rest = 0;
    std::iter::from_fn(move || {
        let start = rest + text[rest..].find(is_part)?;
        let length = text[start..].find(|c| !is_part(c)).unwrap_or(text.len() - start);
        rest = start + length;
        Some((start, &text[start..rest]))
    })
}

fn is_secret(word: &str) -> bool {
    let has_shape = |(least, prefixes): &(usize, &[&str])| {
        prefixes
            .iter()
            .filter_map(|prefix| word.strip_prefix(prefix))
            .any(|rest| rest.len() >= *least)
    };
    let is_access_key = || {
        let capitals = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        word.len() == 20
            && ACCESS_KEYS.iter().any(|prefix| word.starts_with(prefix))
            && word.bytes().all(capitals)
    };
    // JSON Web Tokens: three parts, the first of which begins with `{"`, encoded.
    let is_web_token = || {
        word.starts_with("eyJ")
            && word.len() >= 40
            && word.split('.').all(|part| !part.is_empty())
            && word.matches('.').count() == 2
    };
    SECRET_PREFIXES.iter().any(has_shape) || is_access_key() || is_web_token()
}

/// Private keys, from the first line to the last; to the end of the text if the last line is
/// missing.
fn key_blocks(text: &str) -> Vec<(usize, usize)> {
    const BEGIN: &str = "-----BEGIN ";
    let (mut blocks, mut at) = (Vec::new(), 0);
    while let Some(start) = text[at..].find(BEGIN).map(|found| at + found) {
        let first = text[start..].lines().next().unwrap_or_default();
        at = start + BEGIN.len();
        if !first.contains("PRIVATE KEY-----") {
            continue;
        }
        let end = text[at..].find("-----END ").map(|found| at + found);
        let end = end.map_or(text.len(), |end| {
            let last = text[end..].lines().next().unwrap_or_default();
            let closing = last["-----END ".len()..].find("-----");
            end + closing.map_or(last.len(), |closing| "-----END ".len() + closing + 5)
        });
        blocks.push((start, end));
        at = end;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_of_known_formats_are_redacted() {
        let letters = "a1".repeat(40);
        let of = |prefix: &str, length: usize| format!("{prefix}{}", &letters[..length]);
        for secret in [
            of("sk-ant-api03-", 40),
            of("sk-proj-", 40),
            of("sk-", 40),
            of("ghp_", 36),
            of("github_pat_", 40),
            of("glpat-", 20),
            of("xoxb-", 20),
            of("AIza", 35),
            of("npm_", 36),
            of("hf_", 34),
            of("svc_", 64),
            "AKIAIOSFODNN7EXAMPLE".to_owned(),
            of("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.", 20),
        ] {
            let text = format!("the key is \"{secret}\", keep it");
            assert_eq!(redacted(&text), "the key is \"[redacted]\", keep it", "{secret}");
            assert_eq!(redacted(&format!("KEY={secret}")), "KEY=[redacted]");
        }
        assert_eq!(
            redacted("Authorization: Bearer 0123456789abcdef0123"),
            "Authorization: Bearer [redacted]"
        );
        let key = "a\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\nAAAA\n-----END OPENSSH PRIVATE KEY-----\nb";
        assert_eq!(redacted(key), "a\n[redacted]\nb");
        assert_eq!(redacted("-----BEGIN RSA PRIVATE KEY-----\nMII"), "[redacted]");
    }

    #[test]
    fn other_texts_are_unchanged() {
        for text in [
            "",
            "sk-1, ghp_x, a sk-learn model, npm_config_registry, svc_test, AKIA",
            "bearer of news, the Bearer token",
            "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            "eyJ.a.b",
            "agent:reviewer:main msg_01m8aaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(matches!(redacted(text), Cow::Borrowed(_)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn redaction_accepts_any_text_and_is_idempotent(text in any::<String>()) {
            let once = redacted(&text).into_owned();
            prop_assert_eq!(redacted(&once), once.as_str());
        }

        #[test]
        fn no_secret_remains_in_any_context(before in "[ a-z\n\"=:]{0,9}", after in "[ \n\",;]{1,9}") {
            let secret = format!("ghp_{}", "x9".repeat(18));
            let text = format!("{before} {secret}{after}");
            prop_assert!(!redacted(&text).contains(&secret));
        }
    }
}
