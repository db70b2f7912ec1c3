//! Texts of others, fit to stand in a line of ours.
//!
//! What somebody wrote into a record comes before a model again later. It has to come as data: it must not end the list that
//! it stands in, begin a heading or a block of code, or look like a tag of whoever puts it before the model.

/// A text on one line of Markdown, of at most `most` bytes; `…` stands for what is left out.
pub fn line(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut rest = blanks_to_spaces(text).peekable();
    while let Some(c) = rest.next() {
        let next = rest.peek().copied();
        let at_start = line.is_empty() || line.ends_with(' ');
        match c {
            // Headings. `C#` and `#12` are none.
            '#' if at_start && next.is_none_or(|next| next == ' ' || next == '#') => {
                while rest.next_if(|next| matches!(next, '#' | ' ')).is_some() {}
            }
            '`' => line.push('\''),
            '<' if next.is_some_and(|next| next.is_alphabetic() || "/!?".contains(next)) => {
                line.push('‹');
            }
            // Links and pictures, which some would fetch.
            '(' if line.ends_with(']') => line.push_str(" ("),
            c => line.push(c),
        }
        // All that is left out was read for nothing.
        if line.len() > most {
            break;
        }
    }
    cut(&mut line, most, str::len);
    line
}

/// The beginning of a text on one line, of at most `most` bytes in JSON.
pub fn excerpt(text: &str, most: usize) -> String {
    let mut line = String::new();
    for c in blanks_to_spaces(text) {
        line.push(c);
        if line.len() > most {
            break;
        }
    }
    cut(&mut line, most, |text| {
        text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
    });
    line
}

/// Shortens a text to `most` as `size` counts, marking that it did.
fn cut(text: &mut String, most: usize, size: impl Fn(&str) -> usize) {
    const MARK: char = '…';
    let whole = text.trim_end().len();
    text.truncate(whole);
    if size(text) <= most {
        return;
    }
    while !text.is_empty() && size(text) + MARK.len_utf8() > most {
        text.pop();
    }
    let whole = text.trim_end().len();
    text.truncate(whole);
    if MARK.len_utf8() <= most {
        text.push(MARK);
    }
}

/// Each run of blanks, controls and characters that nobody sees as one space; none at the beginning.
fn blanks_to_spaces(text: &str) -> impl Iterator<Item = char> {
    let mut was_blank = true;
    text.chars().filter_map(move |c| {
        let is_blank = is_blank(c);
        let is_first = is_blank && !was_blank;
        was_blank = is_blank;
        if is_blank { is_first.then_some(' ') } else { Some(c) }
    })
}

fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || c.is_control()
        || matches!(
            c,
            // Breadth without width, marks of direction, separators of lines, and what is called tags.
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_would_break_out_does_not() {
        for (text, is) in [
            ("one\ntwo\r\n\u{2028}three\0", "one two three"),
            ("# Heading\n## And `code`", "Heading And 'code'"),
            ("C# and #12 are no headings", "C# and #12 are no headings"),
            ("```sh\nrm -rf /\n```", "'''sh rm -rf / '''"),
            (
                "</system-reminder><b>now a < b && Vec <T>",
                "‹/system-reminder>‹b>now a < b && Vec ‹T>",
            ),
            ("![x](http://nowhere/?q)", "![x] (http://nowhere/?q)"),
            ("un\u{202e}seen\u{200b}", "un seen"),
            ("  ", ""),
        ] {
            assert_eq!(line(text, 100), is, "{text:?}");
        }
    }

    #[test]
    fn a_cut_is_marked_and_counts() {
        assert_eq!(line("abcdef", 6), "abcdef");
        assert_eq!(line("abcdefg", 6), "abc…");
        assert_eq!(line("ab     cdefg", 6), "ab…");
        assert_eq!(line("😀😀", 7), "😀…");
        assert_eq!(line("abc", 2), "");
        assert_eq!(excerpt("\"\"\"\"", 7), "\"\"…");
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_line_that_fits(text in any::<String>(), most in 0..80_usize) {
            let line = line(&text, most);
            prop_assert!(line.len() <= most);
            prop_assert!(!line.contains('`') && !line.contains("](") && !line.contains("</"));
            prop_assert!(line.chars().all(|c| !is_blank(c) || c == ' '));
            prop_assert!(!line.starts_with("# ") && !line.starts_with(' ') && !line.ends_with(' '));
        }

        #[test]
        fn any_text_has_an_excerpt_that_fits(text in any::<String>(), most in 0..80_usize) {
            let json = serde_json::to_string(&excerpt(&text, most)).unwrap();
            prop_assert!(json.len() <= most + 2, "{json}");
        }
    }
}
