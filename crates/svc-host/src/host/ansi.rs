//! Colours that a program writes for a terminal, and that are no part of what it says.

/// The text without escape sequences: those that set colours or move the cursor, and titles of windows.
pub(super) fn without_ansi(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, sequence)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = behind(sequence);
    }
    plain.push_str(rest);
    plain
}

/// What follows a sequence whose escape character is gone already.
fn behind(sequence: &str) -> &str {
    let mut chars = sequence.chars();
    match chars.next() {
        Some('[') => {
            let body = chars.as_str();
            let end = body.find(|c: char| ('@'..='~').contains(&c));
            end.map_or("", |end| &body[end + 1..])
        }
        Some(']') => {
            let body = chars.as_str();
            let Some(end) = body.find(['\u{7}', '\u{1b}']) else { return "" };
            body[end + 1..].strip_prefix('\\').unwrap_or(&body[end + 1..])
        }
        _ => chars.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_removed_and_words_stay() {
        for (text, is) in [
            ("\u{1b}[2m2026-03-31\u{1b}[0m \u{1b}[31mERROR\u{1b}[0m lost", "2026-03-31 ERROR lost"),
            ("\u{1b}]0;title\u{7}words", "words"),
            ("\u{1b}]0;title\u{1b}\\words", "words"),
            ("\u{1b}7words", "words"),
            ("[31m is no sequence", "[31m is no sequence"),
            ("cut \u{1b}[3", "cut "),
            ("", ""),
        ] {
            assert_eq!(without_ansi(text), is, "{text:?}");
        }
    }
}
