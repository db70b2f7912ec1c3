//! Stems of English words: Porter's algorithm (M. F. Porter, "An algorithm for suffix stripping",
//! 1980), the same as in FTS5. Implemented here because terms have to be stemmed before they are
//! split, matched with the thesaurus and compared for typos.

#[rustfmt::skip]
const SECOND: &[(&str, &str)] = &[
    ("ational", "ate"), ("ization", "ize"), ("iveness", "ive"), ("fulness", "ful"),
    ("ousness", "ous"), ("tional", "tion"), ("biliti", "ble"), ("entli", "ent"),
    ("ousli", "ous"), ("ation", "ate"), ("alism", "al"), ("aliti", "al"), ("iviti", "ive"),
    ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("alli", "al"), ("ator", "ate"),
    ("logi", "log"), ("bli", "ble"), ("eli", "e"),
];
#[rustfmt::skip]
const THIRD: &[(&str, &str)] = &[
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"),
    ("ness", ""), ("ful", ""),
];
const FOURTH: &[&str] = &[
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous",
    "ive", "ize", "ion", "al", "er", "ic", "ou",
];

/// The stem of a word in lower case. A word with other characters than ASCII letters is unchanged.
pub(super) fn stem(word: &str) -> String {
    if word.len() < 3 || !word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return word.to_owned();
    }
    let mut word = word.to_owned();
    if word.ends_with("sses") || word.ends_with("ies") {
        word.truncate(word.len() - 2);
    } else if word.ends_with('s') && !word.ends_with("ss") {
        word.pop();
    }
    participle(&mut word);
    if let Some(start) = word.strip_suffix('y')
        && has_vowel(start)
    {
        word.pop();
        word.push('i');
    }
    for rules in [SECOND, THIRD] {
        if let Some((start, (_, to))) =
            rules.iter().find_map(|rule| Some((word.strip_suffix(rule.0)?, rule)))
            && measure(start) > 0
        {
            word = format!("{start}{to}");
        }
    }
    if let Some((start, from)) =
        FOURTH.iter().find_map(|from| Some((word.strip_suffix(from)?, *from)))
        && measure(start) > 1
        && (from != "ion" || start.ends_with(['s', 't']))
    {
        word.truncate(start.len());
    }
    if let Some(start) = word.strip_suffix('e')
        && (measure(start) > 1 || measure(start) == 1 && !is_short(start))
    {
        word.pop();
    }
    if word.ends_with("ll") && measure(&word) > 1 {
        word.pop();
    }
    word
}

fn participle(word: &mut String) {
    if let Some(start) = word.strip_suffix("eed") {
        if measure(start) > 0 {
            word.pop();
        }
        return;
    }
    let Some(start) =
        ["ed", "ing"].iter().find_map(|end| word.strip_suffix(end)).filter(|it| has_vowel(it))
    else {
        return;
    };
    word.truncate(start.len());
    if ["at", "bl", "iz"].iter().any(|end| word.ends_with(end)) {
        word.push('e');
    } else if is_doubled(word) && !word.ends_with(['l', 's', 'z']) {
        word.pop();
    } else if measure(word) == 1 && is_short(word) {
        word.push('e');
    }
}

/// For each letter, whether it is a consonant. `y` is one at the start and after a vowel.
fn consonants(word: &str) -> impl Iterator<Item = bool> {
    let mut last = false;
    word.bytes().enumerate().map(move |(at, byte)| {
        last = match byte {
            b'a' | b'e' | b'i' | b'o' | b'u' => false,
            b'y' => at == 0 || !last,
            _ => true,
        };
        last
    })
}

fn has_vowel(word: &str) -> bool {
    consonants(word).any(|consonant| !consonant)
}

/// How often a consonant follows a vowel (Porter's measure *m*).
fn measure(word: &str) -> usize {
    let mut after_vowel = false;
    let mut count = 0;
    for consonant in consonants(word) {
        count += usize::from(consonant && after_vowel);
        after_vowel = !consonant;
    }
    count
}

fn is_doubled(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() > 1
        && bytes[bytes.len() - 1] == bytes[bytes.len() - 2]
        && consonants(word).last() == Some(true)
}

/// Whether the word ends in consonant, vowel, consonant, the last not being w, x or y (Porter's
/// *\*o*).
fn is_short(word: &str) -> bool {
    let kinds: Vec<bool> = consonants(word).collect();
    kinds.ends_with(&[true, false, true]) && !word.ends_with(['w', 'x', 'y'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_agree_with_porter() {
        for (word, is) in [
            ("caresses", "caress"),
            ("ponies", "poni"),
            ("agreed", "agre"),
            ("hopping", "hop"),
            ("filing", "file"),
            ("happy", "happi"),
            ("relational", "relat"),
            ("vietnamization", "vietnam"),
            ("electricity", "electr"),
            ("adoption", "adopt"),
            ("effective", "effect"),
            ("controll", "control"),
            ("sky", "sky"),
            ("zertifikat", "zertifikat"),
            ("größe", "größe"),
            ("502", "502"),
        ] {
            assert_eq!(stem(word), is, "{word}");
        }
    }
}
