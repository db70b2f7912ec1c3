//! The skeleton of a text: letters and digits as a reader sees them, without separators.
//!
//! Two texts that look alike have the same skeleton. Compatibility forms, cases, accents and
//! confusable letters (Unicode Technical Standard 39) are folded to ASCII; spaces, punctuation and
//! symbols are left out, so a word is the same however it is spaced, hyphenated and bracketed. `i`,
//! `l`, `1` and `|` look like each other and like a separator, so they are left out as well.

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};
use unicode_security::confusable_detection::skeleton as confusable;

/// A letter that resembles no ASCII letter.
pub(super) const OTHER: u8 = b'.';

/// Appends the skeleton of a character: lower-case ASCII letters, digits and [`OTHER`].
pub(super) fn push(key: &mut Vec<u8>, c: char) {
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
    push_byte(key, c as u8);
}

fn push_byte(key: &mut Vec<u8>, byte: u8) {
    match FOLDED[usize::from(byte)] {
        0 => {}
        b'm' => key.extend(b"rn"),
        letter => key.push(letter),
    }
}

/// The skeleton of each ASCII character; 0 for none.
const FOLDED: [u8; 256] = {
    let mut folded = [0; 256];
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
            const SMALL: [(char, char); 28] = [
                ('ᴀ', 'a'),
                ('ʙ', 'b'),
                ('ᴄ', 'c'),
                ('ᴅ', 'd'),
                ('ᴇ', 'e'),
                ('ꜰ', 'f'),
                ('ɢ', 'g'),
                ('ʜ', 'h'),
                ('ᴊ', 'j'),
                ('ᴋ', 'k'),
                ('ᴍ', 'm'),
                ('ʍ', 'm'),
                ('ɴ', 'n'),
                ('ᴏ', 'o'),
                ('ᴘ', 'p'),
                ('ʀ', 'r'),
                ('ɹ', 'r'),
                ('ɼ', 'r'),
                ('ɾ', 'r'),
                ('ɿ', 'r'),
                ('ʇ', 't'),
                ('ǝ', 'e'),
                ('ꜱ', 's'),
                ('ᴛ', 't'),
                ('ᴜ', 'u'),
                ('ᴠ', 'v'),
                ('ᴡ', 'w'),
                ('ᴢ', 'z'),
            ];
            SMALL.iter().find(|(small, _)| *small == c).map(|(_, letter)| *letter)
        }
    }
}

/// The skeleton of a whole text.
pub(crate) fn skeleton(text: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(text.len());
    if text.is_ascii() {
        text.bytes().for_each(|byte| push_byte(&mut key, byte));
    } else {
        text.chars().for_each(|c| push(&mut key, c));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

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
