//! Characters that a model reads and a person does not see, and those that end a line.

/// Whether nobody sees a character, or it changes the direction of what stands beside it. Line feed and tab are none.
pub fn is_invisible(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control() && !matches!(c, '\n' | '\t');
    }
    matches!(
        c,
        // 8-bit controls.
        '\u{80}'..='\u{9f}'
            // Soft hyphen, joiners, marks of direction, fillers of scripts, selectors of variants.
            | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}'
            // Separators of lines and paragraphs, embeddings, overrides and isolates, invisible operators.
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Annotations, and what is reserved for such.
            | '\u{fff0}'..='\u{fffb}'
            // Controls of hieroglyphs, shorthand and music.
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tags, and more selectors of variants.
            | '\u{e0000}'..='\u{e0fff}'
            // What will never be a character.
            | '\u{fdd0}'..='\u{fdef}'
    ) || u32::from(c) & 0xfffe == 0xfffe
}

/// Whether a character ends a line by some reader's rule, beside the line feed.
pub(super) fn ends_line(c: char) -> bool {
    matches!(c, '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use unicode_security::confusable_detection::skeleton;

    use super::*;

    #[test]
    fn what_unicode_ignores_by_default_is_invisible() {
        for c in (0x80..0x2_0000).chain(0xe_0000..0xe_1000).filter_map(char::from_u32) {
            let is_ignored = skeleton(&c.to_string()).next().is_none();
            assert!(!is_ignored || is_invisible(c), "{c:?}");
        }
        for c in ['\0', '\u{1b}', '\u{7f}', '\u{9b}', '\u{85}', '\u{202e}', '\u{2069}', '\u{fffa}']
        {
            assert!(is_invisible(c), "{c:?}");
        }
        for c in
            ['\n', '\t', ' ', '\u{a0}', 'a', 'é', '中', '😀', '\u{301}', '\u{fffc}', '\u{fffd}']
        {
            assert!(!is_invisible(c), "{c:?}");
        }
    }
}
