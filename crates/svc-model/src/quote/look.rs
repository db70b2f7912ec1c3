//! How a text looks: characters that a model reads and a person does not see, line terminators, and
//! the skeleton of a text.
//!
//! The skeleton is letters and digits as a reader sees them, without separators, so two texts that
//! look alike have the same. Compatibility forms, cases, accents and confusable letters (Unicode
//! Technical Standard 39) are folded to ASCII; spaces, punctuation and symbols are left out, so a
//! word is the same however it is spaced, hyphenated and bracketed. `i`, `l`, `1` and `|` look like
//! each other and like a separator, so they are left out as well.

use unicode_normalization::{
    UnicodeNormalization as _,
    char::{canonical_combining_class, is_combining_mark},
};
use unicode_security::confusable_detection::skeleton as confusable;

/// Whether a character is invisible or changes the direction of its neighbours. Line feed and tab
/// are visible.
pub fn is_invisible(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control() && !matches!(c, '\n' | '\t');
    }
    matches!(
        c,
        // 8-bit controls.
        '\u{80}'..='\u{9f}'
            // Soft hyphen, joiners, direction marks, script fillers, variation selectors.
            | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}'
            // Line and paragraph separators, embeddings, overrides and isolates, invisible
            // operators.
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            // Annotations, and code points reserved for them.
            | '\u{fff0}'..='\u{fffb}'
            // Controls of hieroglyphs, shorthand and music.
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            // Tags, and further variation selectors.
            | '\u{e0000}'..='\u{e0fff}'
            // Noncharacters.
            | '\u{fdd0}'..='\u{fdef}'
    ) || u32::from(c) & 0xfffe == 0xfffe
}

/// The characters of a text, each with whether it is invisible in its context. A joiner within an
/// emoji, or within a word of a script that needs joiners, has a visible effect; so has a variation
/// selector after a character with two presentations.
pub fn chars_with_visibility(text: &str) -> impl Iterator<Item = (char, bool)> {
    let mut before = None;
    text.char_indices().map(move |(at, c)| {
        let after = || text[at + c.len_utf8()..].chars().next();
        let is_unseen = is_invisible(c) && !before.is_some_and(|before| joins(before, c, after()));
        // A line end is visible as such, whatever character it is.
        if !is_unseen || ends_line(c) {
            before = Some(c);
        }
        (c, is_unseen)
    })
}

/// Whether a joiner or a variation selector changes the look of its neighbours.
fn joins(before: char, joiner: char, after: Option<char>) -> bool {
    let is_of_word = |c: char| needs_joiners(c) && (c.is_alphabetic() || is_combining_mark(c));
    let is_within_word = || is_of_word(before) && after.is_some_and(is_of_word);
    // The last character of a word may be a dead consonant.
    let is_dead = || needs_joiners(before) && canonical_combining_class(before) == VIRAMA;
    let is_sign = || is_pictograph(before) || matches!(before, '\u{fe0e}' | '\u{fe0f}');
    match joiner {
        ZERO_WIDTH_NON_JOINER => is_within_word(),
        ZERO_WIDTH_JOINER => {
            is_within_word() || is_dead() || (is_sign() && after.is_some_and(is_pictograph))
        }
        '\u{fe0e}' | '\u{fe0f}' => is_pictograph(before),
        _ => false,
    }
}

const ZERO_WIDTH_NON_JOINER: char = '\u{200c}';
const ZERO_WIDTH_JOINER: char = '\u{200d}';
/// The combining class of signs that remove the vowel from a consonant.
const VIRAMA: u8 = 9;

/// Whether a character is of a script whose letters change with their neighbours: Arabic and
/// related scripts, and Brahmic scripts.
fn needs_joiners(c: char) -> bool {
    matches!(c,
        '\u{600}'..='\u{8ff}' | '\u{900}'..='\u{dff}' | '\u{1000}'..='\u{109f}' | '\u{1700}'..='\u{18af}'
            | '\u{1a20}'..='\u{1aaf}' | '\u{1b00}'..='\u{1c4f}' | '\u{a800}'..='\u{a8ff}' | '\u{a930}'..='\u{a9df}'
            | '\u{aa00}'..='\u{aaff}' | '\u{abc0}'..='\u{abff}' | '\u{fb50}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'
            | '\u{10a00}'..='\u{10fff}' | '\u{11000}'..='\u{11fff}' | '\u{1e900}'..='\u{1e95f}')
}

/// Whether a character is a pictograph or a skin tone modifier.
fn is_pictograph(c: char) -> bool {
    matches!(c,
        '©' | '®' | '‼' | '⁉' | '™' | 'ℹ' | '〰' | '〽' | '㊗' | '㊙'
            | '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{23ff}' | '\u{25a0}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}'
            | '\u{1f000}'..='\u{1faff}')
}

/// Whether any reader takes the character as a line terminator. The line feed is not included.
pub(super) fn ends_line(c: char) -> bool {
    matches!(c, '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Stands for a letter that resembles no ASCII letter.
const OTHER: u8 = b'.';

/// Appends the skeleton of a character: lower-case ASCII letters, digits and [`OTHER`].
pub(super) fn push_skeleton(key: &mut Vec<u8>, c: char) {
    if c.is_ascii() {
        return push_ascii(key, c);
    }
    match c {
        // Ideographs and syllables resemble no letter. A fast path for long texts of them.
        '\u{4e01}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}' => return key.push(OTHER),
        // Letters that look like a dash.
        'ー' | 'ｰ' | '一' | 'ㅡ' | 'ᅳ' => return,
        // The upper case is two letters.
        'ß' | 'ẞ' => return key.extend(b"ss"),
        _ => {}
    }
    if let Some(letter) = enclosed_letter(c) {
        return push_ascii(key, letter);
    }
    for part in std::iter::once(c).nfkd() {
        push_part(key, part);
    }
}

fn push_part(key: &mut Vec<u8>, part: char) {
    if part.is_ascii() {
        return push_ascii(key, part);
    }
    if is_combining_mark(part) {
        return;
    }
    let look_alikes = |c: char| {
        let text = c.to_string();
        confusable(&text).filter(|c| !is_combining_mark(*c)).collect::<Vec<char>>()
    };
    for like in look_alikes(part) {
        if like.is_ascii() {
            push_ascii(key, like);
            continue;
        }
        // A capital may resemble nothing while its lower case resembles another letter.
        for small in like.to_lowercase().flat_map(look_alikes) {
            match enclosed_letter(small).unwrap_or(small) {
                small if small.is_ascii() => push_ascii(key, small),
                // A symbol is a separator, even if it resembles a letter of another script.
                _ if part.is_alphanumeric() => key.push(OTHER),
                _ => {}
            }
        }
    }
}

fn push_ascii(key: &mut Vec<u8>, c: char) {
    match FOLDED[c as usize] {
        0 => {}
        b'm' => key.extend(b"rn"),
        letter => key.push(letter),
    }
}

/// The skeleton of each ASCII character; 0 for none.
const FOLDED: [u8; 128] = {
    let mut folded = [0; 128];
    let mut byte = 0;
    while byte < 128_u8 {
        folded[byte as usize] = match byte.to_ascii_lowercase() {
            b'i' | b'l' => 0,
            b'0' => b'o',
            letter @ (b'a'..=b'z' | b'2'..=b'9') => letter,
            _ => 0,
        };
        byte += 1;
    }
    folded
};

/// The letter in a box, circle, flag or small capital that neither Unicode table maps.
fn enclosed_letter(c: char) -> Option<char> {
    let nth = |first: u32| char::from_u32(u32::from('a') + u32::from(c) - first);
    match c {
        '\u{1f130}'..='\u{1f149}' => nth(0x1_f130),
        '\u{1f150}'..='\u{1f169}' => nth(0x1_f150),
        '\u{1f170}'..='\u{1f189}' => nth(0x1_f170),
        '\u{1f1e6}'..='\u{1f1ff}' => nth(0x1_f1e6),
        _ => {
            const SMALL: [&str; 2] =
                ["ᴀʙᴄᴅᴇꜰɢʜᴊᴋᴍʍɴᴏᴘʀɹɼɾɿʇǝꜱᴛᴜᴠᴡᴢ", "abcdefghjkmmnoprrrrrtestuvwz"];
            SMALL[0]
                .chars()
                .zip(SMALL[1].chars())
                .find(|(small, _)| *small == c)
                .map(|(_, letter)| letter)
        }
    }
}

pub(crate) fn skeleton(text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(text.len());
    if text.is_ascii() {
        text.bytes().for_each(|byte| push_ascii(&mut key, char::from(byte)));
    } else {
        text.chars().for_each(|c| push_skeleton(&mut key, c));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joiner_is_visible_where_it_has_an_effect() {
        for seen in [
            // A family, a woman who writes code, a flag, a heart on fire.
            "👨\u{200d}👩\u{200d}👧",
            "👩\u{1f3fd}\u{200d}💻",
            "🏳\u{fe0f}\u{200d}🌈",
            "❤\u{fe0f}\u{200d}🔥",
            // Persian, Hindi, Sinhala, and Malayalam at the end of a word.
            "می\u{200c}خواهم",
            "क्\u{200d}ष",
            "ශ්\u{200d}රී",
            "അവന്\u{200d} വന്നു",
        ] {
            let hidden = chars_with_visibility(seen).filter(|(_, is_unseen)| *is_unseen);
            assert_eq!(hidden.count(), 0, "{seen:?}");
        }
        for (text, unseen) in [
            ("a\u{200d}b\u{200c}c", 2),
            ("\u{200d}👩", 1),
            ("👩\u{200d}", 1),
            ("👩\u{200d}x", 1),
            ("👩\u{200d}\u{200d}💻", 1),
            ("می\u{200c}\u{200d}\u{200c}خواهم", 2),
            ("می\u{200b}\u{200c}خواهم", 1),
            ("سلام\u{200c} دنیا", 1),
            ("x\u{fe0f}❤\u{fe0f}\u{fe0f}", 2),
            ("\u{200d}\u{200c}", 2),
        ] {
            let hidden = chars_with_visibility(text).filter(|(_, is_unseen)| *is_unseen);
            assert_eq!(hidden.count(), unseen, "{text:?}");
        }
    }

    #[test]
    fn default_ignorable_characters_are_invisible() {
        for c in (0x80..0x2_0000).chain(0xe_0000..0xe_1000).filter_map(char::from_u32) {
            let is_ignored = confusable(&c.to_string()).next().is_none();
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

    #[test]
    fn lookalikes_have_the_same_skeleton() {
        let key = skeleton("Inter-session message");
        assert_eq!(key, b"ntersessonrnessage");
        for text in [
            "ＩＮＴＥＲ－ＳＥＳＳＩＯＮ　ＭＥＳＳＡＧＥ",
            "Іntеr‑sеssіоn\u{a0}mеssаgе",
            "ΙΝΤΕR–ЅЕЅЅІОΝ МЕЅЅАGЕ",
            "𝐈𝐧𝐭𝐞𝐫-𝓼𝓮𝓼𝓼𝓲𝓸𝓷 𝕞𝕖𝕤𝕤𝕒𝕘𝕖",
            "ɪɴᴛᴇʀ-ꜱᴇꜱꜱɪᴏɴ ᴍᴇꜱꜱᴀɢᴇ",
            "🅸🅽🆃🅴🆁 🅢🅔🅢🅢🅘🅞🅝 🇲🇪🇸🇸🇦🇬🇪",
            "ⓘⓝⓣⓔⓡ⒮⒠⒮⒮⒤⒪⒩ ᵐᵉˢˢᵃᵍᵉ",
            "Ïntér—sêssĩøn mèßåge",
            "lnter−sess1on rnessage",
            "|nter•sess∣0n…message",
            "Ｉｎｔｅｒーseſſion messa\u{301}ge",
        ] {
            assert_eq!(skeleton(text), key, "{text} {:?}", String::from_utf8(skeleton(text)));
        }
        for text in ["Intersection message", "Inter-sesje message", "内session message"] {
            assert_ne!(skeleton(text), key, "{text}");
        }
    }
}
