//! Wraps or truncates a text to the width of the screen.

use ratatui::text::Span;

/// Wraps a text between words at `room` columns; `None` wraps nothing. A longer word stays whole.
pub(crate) fn wrapped(text: &str, room: Option<usize>) -> String {
    let Some(room) = room.filter(|room| *room > 0) else { return text.to_owned() };
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        if width(line) <= room {
            lines.push(line.to_owned());
            continue;
        }
        let mut broken = String::new();
        for word in line.split(' ') {
            if !broken.is_empty() && width(&broken) + 1 + width(word) > room {
                lines.push(std::mem::take(&mut broken));
            }
            if !broken.is_empty() {
                broken.push(' ');
            }
            broken.push_str(word);
        }
        lines.push(broken);
    }
    lines.join("\n")
}

/// The width of a text in columns of the screen.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Truncates a text to `room` columns, with `…` at its end.
pub(crate) fn cut(text: String, room: usize) -> String {
    if width(&text) <= room {
        return text;
    }
    let (mut shown, mut taken) = (String::new(), 0);
    let mut buffer = [0; 4];
    for c in text.chars() {
        let own = width(c.encode_utf8(&mut buffer));
        if taken + own + 1 > room {
            break;
        }
        taken += own;
        shown.push(c);
    }
    shown.push('…');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_between_words() {
        assert_eq!(wrapped("one two three", Some(8)), "one two\nthree");
        assert_eq!(wrapped("one\n\ntwo three four", Some(9)), "one\n\ntwo three\nfour");
        assert_eq!(wrapped("a-word-that-is-too-long b", Some(5)), "a-word-that-is-too-long\nb");
        assert_eq!(wrapped("中文 中文", Some(5)), "中文\n中文", "a character may take two");
        assert_eq!(wrapped("one two three", None), "one two three");
    }

    #[test]
    fn truncated_text_ends_with_an_ellipsis() {
        let shown = |text: &str, room| cut(text.to_owned(), room);
        assert_eq!((shown("four", 4), shown("fours", 4)), ("four".to_owned(), "fou…".to_owned()));
        assert_eq!(shown("中文中文", 6), "中文…", "a character may take two");
    }
}
